#include "train/stream_source.h"

#include <algorithm>

#include "base/error.h"

namespace snug {

StreamSource::StreamSource(const Dataset& dataset, std::vector<uint32_t> selection, const PackingOptions& packing,
                           const StepShape& shape, const RunLength& length, int rank,
                           const std::optional<ImageBatches>& images)
    : dataset_(dataset),
      stream_(dataset, std::move(selection), packing, shape, length),
      batcher_(dataset, shape.micro_batch, packing.sequence_length, packing.pools,
               images ? images->tower : TowerShape{}),
      rank_(rank) {
  if (images && images->embeddings)
    embeddings_.emplace(dataset, *images->embeddings);
  else if (images)
    images_.emplace(dataset, *images);
}

void StreamSource::add_documents(BlockOf block_of, std::vector<DocumentSpan>& documents) const {
  const StepShape& shape = stream_.shape();
  for (int64_t pass = 0; pass < shape.passes; pass++)
    for (int64_t i = 0; i < shape.micro_batch; i++)
      for_each_of((stream_.*block_of)(pass, rank_, i), half_,
                  [&](const DocumentSpan& document) { documents.push_back(document); });
}

int64_t StreamSource::look_at_images(int64_t first, int64_t last, int64_t most, const Heartbeat& heartbeat) {
  if (!images_) return last;
  std::vector<DocumentSpan> documents;
  int64_t images = 0, step = first - 1;
  while (step < last && images < most) {
    stream_.seek(step++);
    const size_t before = documents.size();
    add_documents(&BlockStream::block, documents);
    for (const DocumentSpan& document : std::span(documents).subspan(before))
      images += std::ssize(dataset_.images(document.sample));
    call(heartbeat);
  }
  images_->look_at(documents, heartbeat);
  return step;
}

BatchSource::Step StreamSource::begin_step(int64_t step) {
  stream_.seek(step - 1);
  counted_ = {};
  if (images_ || embeddings_) {
    // Those of this step, then those of the next, which are decoded, or read, meanwhile.
    std::vector<DocumentSpan> documents;
    add_documents(&BlockStream::block, documents);
    add_documents(&BlockStream::next_block, documents);
    images_ ? images_->expect(documents) : embeddings_->expect(documents);
  }
  return {stream_.tokens(), stream_.loss_tokens(), stream_.ends_epoch(), stream_.samples()};
}

void StreamSource::fill(int64_t pass, const BatchViews& views, RuntimeScalars& runtime) {
  const BatchCounts counts = batcher_.fill(stream_, pass, rank_, views, half_);
  const StepShape& shape = stream_.shape();
  runtime.first_token = (pass * shape.ranks + rank_) * shape.micro_batch * stream_.sequence_length();
  runtime.tokens_before = tokens_before(pass);
  runtime.documents = counts.documents;
  runtime.loss_rows = counts.loss_rows;
  runtime.segments = counts.segments;
}

// Returns how many tokens the documents have that come before those of this rank's pass in the order of the data.
// Passes are asked for in their order, so that a step's documents are counted once.
int64_t StreamSource::tokens_before(int64_t pass) {
  const StepShape& shape = stream_.shape();
  const int64_t end = pass * shape.ranks + rank_;
  if (counted_.passes > end) counted_ = {};
  for (int64_t& one = counted_.passes; one < end; one++)
    for (int64_t i = 0; i < shape.micro_batch; i++)
      for_each_of(stream_.block(one / shape.ranks, one % shape.ranks, i), half_,
                  [&](const DocumentSpan& document) { counted_.tokens += document.length; });
  return counted_.tokens;
}

void StreamSource::fill_images(int64_t pass, const ImageViews& views, RuntimeScalars& runtime) {
  check(images_.has_value(), "images of a source that has none");
  const ImageCounts counts = images_->fill(documents_of(pass), views);
  runtime.images = counts.images;
  runtime.image_windows = counts.windows;
  runtime.patch_segments = counts.segments;
}

template <class Visit>
int64_t StreamSource::for_each_taught(int64_t pass, const TeacherViews& views, int64_t top_k,
                                      const Visit& visit) const {
  const auto k = static_cast<size_t>(top_k);
  size_t row = 0;
  for (int64_t i = 0; i < stream_.shape().micro_batch; i++)
    for_each_of(stream_.block(pass, rank_, i), half_, [&](const DocumentSpan& document) {
      const auto rows = static_cast<size_t>(counted_labels(dataset_, document));
      check((row + rows) * k <= views.ids.size() && (row + rows) * (k + 1) <= views.log_probs.size(),
            "{} rows of a teacher at row {}, where there is no room for them", rows, row);
      visit(document, views.ids.subspan(row * k, rows * k), views.log_probs.subspan(row * (k + 1), rows * (k + 1)));
      row += rows;
    });
  return static_cast<int64_t>(row);
}

void StreamSource::fill_teacher(int64_t pass, const TeacherViews& views) {
  check(teacher_, "what a teacher says of a source that has none");
  const int64_t rows =
      for_each_taught(pass, views, teacher_->top_k(),
                      [this](const DocumentSpan& document, std::span<int32_t> ids, std::span<float> log_probs) {
                        teacher_->read(dataset_, document, ids, log_probs, vocabulary_);
                      });
  std::ranges::fill(views.ids.subspan(static_cast<size_t>(rows * teacher_->top_k())), 0);
  std::ranges::fill(views.log_probs.subspan(static_cast<size_t>(rows * (teacher_->top_k() + 1))), 0.0f);
}

void StreamSource::keep_teacher(int64_t pass, const TeacherViews& views, TeacherFile& teacher) const {
  for_each_taught(pass, views, teacher.top_k(),
                  [&](const DocumentSpan& document, std::span<const int32_t> ids, std::span<const float> log_probs) {
                    teacher.write(dataset_, document, ids, log_probs);
                  });
}

void StreamSource::fill_embeddings(int64_t pass, const EmbeddingViews& views) {
  check(embeddings_.has_value(), "rows of images of a source that has none");
  embeddings_->fill(documents_of(pass), views);
}

std::vector<uint32_t> StreamSource::step_samples() const {
  const StepShape& shape = stream_.shape();
  std::vector<uint32_t> samples;
  for (int64_t pass = 0; pass < shape.passes; pass++)
    for (int64_t rank = 0; rank < shape.ranks; rank++)
      for (int64_t i = 0; i < shape.micro_batch; i++)
        for (const DocumentSpan& document : stream_.block(pass, rank, i)) samples.push_back(document.sample);
  std::ranges::sort(samples);
  const auto again = std::ranges::unique(samples);
  samples.erase(again.begin(), again.end());
  return samples;
}

// Returns the documents of this rank's pass whose tokens lie end to end in its batch.
std::vector<DocumentSpan> StreamSource::documents_of(int64_t pass) const {
  std::vector<DocumentSpan> documents;
  for (int64_t i = 0; i < stream_.shape().micro_batch; i++)
    for_each_of(stream_.block(pass, rank_, i), half_,
                [&](const DocumentSpan& document) { documents.push_back(document); });
  return documents;
}

}  // namespace snug
