// Fills the arrays of a pass's images from their files.
#pragma once

#include <span>
#include <vector>

#include "data/image_layout.h"
#include "data/image_rows.h"

namespace snug {

class ImageEmbeddings;

// Says how the images of a data set become the arrays of a pass.
struct ImageBatches {
  ImageProcessor processor;
  TowerShape tower;
  ImageRowsOptions rows;
  const ImageEmbeddings* embeddings = nullptr;  // passes are given these, of which the tower's rows are no more made
};

// Writes rows of numbers in another order, and in the dtype of `out`: row i is row order[i] of `numbers`.
void copy_rows(std::span<const float> numbers, std::span<const int64_t> order, const TensorView& out);

// For one thread.
class ImageBatcher {
 public:
  // The data set must outlive it.
  ImageBatcher(const Dataset& dataset, const ImageBatches& batches);

  // Says which documents fill() will be asked for (PassRows::expect()).
  void expect(std::span<const DocumentSpan> documents) { rows_.expect(documents); }

  // Decodes the images of documents and forgets them (PassRows::look_at()).
  void look_at(std::span<const DocumentSpan> documents, const Heartbeat& heartbeat = {}) {
    rows_.look_at(documents, heartbeat);
  }

  // Fills in the images of documents whose tokens lie end to end, from token 0 of the batch on. Throws as PassRows and
  // ImageLayout do.
  ImageCounts fill(std::span<const DocumentSpan> documents, const ImageViews& views, const Heartbeat& heartbeat = {});

 private:
  const Dataset& dataset_;
  TowerShape tower_;
  PassRows rows_;
  std::vector<float> numbers_;  // scratch: patches as their images have them
  std::vector<int64_t> order_;  // scratch: which of these is each of the batch
};

}  // namespace snug
