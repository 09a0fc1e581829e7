// Gives the trainer batches of a data set.
#pragma once

#include "data/batcher.h"
#include "data/embedding_batcher.h"
#include "data/image_batcher.h"
#include "train/teacher.h"
#include "train/trainer.h"

namespace snug {

class StreamSource : public BatchSource {
 public:
  // Makes the batches of one rank. The data set must outlive the source. Without `images` it has none.
  StreamSource(const Dataset& dataset, std::vector<uint32_t> selection, const PackingOptions& packing,
               const StepShape& shape, const RunLength& length, int rank,
               const std::optional<ImageBatches>& images = std::nullopt);

  // Decodes this rank's images of steps `first` to `last`, if steps are to have pixels, up to the step in which they
  // are `most`. Throws UserError for one that cannot be decoded, which would else end its step: so a run refuses it
  // before it writes anything. Returns the last step that was looked at.
  int64_t look_at_images(int64_t first, int64_t last, int64_t most, const Heartbeat& heartbeat);
  Step begin_step(int64_t step) override;
  int64_t pass_tokens(int64_t pass) const override { return stream_.pass_tokens(pass, half_); }
  int64_t pass_patches(int64_t pass) const override { return stream_.pass_patches(pass); }
  void choose(Half half) override { half_ = half, counted_ = {}; }
  void fill(int64_t pass, const BatchViews& views, RuntimeScalars& runtime) override;
  void fill_images(int64_t pass, const ImageViews& views, RuntimeScalars& runtime) override;
  void fill_teacher(int64_t pass, const TeacherViews& views) override;
  // Makes fill_teacher() read what a teacher says of the data set, in tokens of a vocabulary of so many.
  void learn_from(const TeacherFile& teacher, int64_t vocabulary) { teacher_ = &teacher, vocabulary_ = vocabulary; }
  // Keeps what a teacher says of this rank's pass of the step begun last.
  void keep_teacher(int64_t pass, const TeacherViews& views, TeacherFile& teacher) const;
  void fill_embeddings(int64_t pass, const EmbeddingViews& views) override;
  const BlockStream& stream() const { return stream_; }
  // Returns the samples of the step begun last, of all ranks, by rising numbers.
  std::vector<uint32_t> step_samples() const;

 private:
  int64_t tokens_before(int64_t pass);
  // Calls visit(DocumentSpan, ids, log_probs) for each document of this rank's pass, with its rows of the views;
  // returns the number of all their rows.
  template <class Visit>
  int64_t for_each_taught(int64_t pass, const TeacherViews& views, int64_t top_k, const Visit& visit) const;
  std::vector<DocumentSpan> documents_of(int64_t pass) const;
  using BlockOf = std::span<const DocumentSpan> (BlockStream::*)(int64_t pass, int64_t rank, int64_t i) const;
  // Adds the documents of this rank's blocks of a step, pass by pass.
  void add_documents(BlockOf block_of, std::vector<DocumentSpan>& documents) const;

  // Holds how many tokens the step's first passes have, each of them once for each rank.
  struct Counted {
    int64_t passes = 0, tokens = 0;
  };

  const Dataset& dataset_;
  BlockStream stream_;
  std::optional<ImageBatcher> images_;  // unless embeddings are given
  std::optional<EmbeddingBatcher> embeddings_;
  Batcher batcher_;
  int rank_;
  Half half_ = Half::Both;
  Counted counted_;
  const TeacherFile* teacher_ = nullptr;
  int64_t vocabulary_ = 0;
};

}  // namespace snug
