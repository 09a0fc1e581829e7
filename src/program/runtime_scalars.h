// The numbers of a pass that ops read besides their operands.
#pragma once

#include <cstdint>

namespace snug {

// Says what the documents of attention are: those of the pass's tokens, or the images or windows of images of its
// patches. RuntimeScalars has the number of each.
enum class Documents : uint8_t { Tokens, Images, ImageWindows };

// Holds what varies from pass to pass while shapes stay. The host knows these numbers when it issues the pass.
struct RuntimeScalars {
  int64_t documents = 0;  // in this pass's batch
  int64_t loss_rows = 0;  // rows with a loss target
  int64_t segments = 0;   // distinct token ids
  float loss_scale = 0;   // 1 / loss tokens, or pairs, of the whole step over all ranks and passes
  int64_t step = 0;       // counted from 1
  double learning_rate = 0;
  double average_share = 1;               // of the newest iterate in the average of schedule-free training
  int64_t position = 0;                   // tokens in the cache already, in generation
  int64_t first_token = 0;                // first token of this pass on this rank, counted over the whole step
  int64_t tokens_before = 0;              // in documents that come before this pass's in the step's order of data
  int64_t images = 0, image_windows = 0;  // in this pass's batch: what attention takes for documents of patches
  int64_t patch_segments = 0;             // distinct rows that are added to its patches

  int64_t documents_of(Documents kind) const {
    return kind == Documents::Tokens ? documents : kind == Documents::Images ? images : image_windows;
  }
};

}  // namespace snug
