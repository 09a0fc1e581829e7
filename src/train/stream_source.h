// Gives the trainer batches of a data set.
#pragma once

#include "data/batcher.h"
#include "data/embedding_batcher.h"
#include "data/image_batcher.h"
#include "train/trainer.h"

namespace snug {

class StreamSource : public BatchSource {
 public:
  // Makes the batches of one rank. The data set must outlive the source. Without `images` it has none.
  StreamSource(const Dataset& dataset, std::vector<uint32_t> selection, const PackingOptions& packing,
               const StepShape& shape, const RunLength& length, int rank,
               const std::optional<ImageBatches>& images = std::nullopt);

  Step begin_step(int64_t step) override;
  int64_t pass_tokens(int64_t pass) const override { return stream_.pass_tokens(pass, half_); }
  int64_t pass_patches(int64_t pass) const override { return stream_.pass_patches(pass); }
  void choose(Half half) override { half_ = half, counted_ = {}; }
  void fill(int64_t pass, const BatchViews& views, RuntimeScalars& runtime) override;
  void fill_images(int64_t pass, const ImageViews& views, RuntimeScalars& runtime) override;
  void fill_embeddings(int64_t pass, const EmbeddingViews& views) override;
  const BlockStream& stream() const { return stream_; }

 private:
  int64_t tokens_before(int64_t pass);
  std::vector<DocumentSpan> documents_of(int64_t pass) const;

  // Holds how many tokens the step's first passes have, each of them once for each rank.
  struct Counted {
    int64_t passes = 0, tokens = 0;
  };

  BlockStream stream_;
  std::optional<ImageBatcher> images_;  // unless embeddings are given
  std::optional<EmbeddingBatcher> embeddings_;
  Batcher batcher_;
  int rank_;
  Half half_ = Half::Both;
  Counted counted_;
};

}  // namespace snug
