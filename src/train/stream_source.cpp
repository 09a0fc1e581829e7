#include "train/stream_source.h"

#include "base/error.h"

namespace snug {

StreamSource::StreamSource(const Dataset& dataset, std::vector<uint32_t> selection, const PackingOptions& packing,
                           const StepShape& shape, const RunLength& length, int rank,
                           const std::optional<ImageBatches>& images)
    : stream_(dataset, selection, packing, shape, length),
      batcher_(dataset, shape.micro_batch, packing.sequence_length, images ? images->tower : TowerShape{}),
      rank_(rank) {
  if (!images) return;
  images_.emplace(dataset, *images);
  ahead_.emplace(dataset, std::move(selection), packing, shape, length);
}

void StreamSource::add_documents(const BlockStream& stream, int64_t pass, std::vector<DocumentSpan>& documents) const {
  for (int64_t i = 0; i < stream.shape().micro_batch; i++)
    for_each_of(stream.block(pass, rank_, i), half_,
                [&](const DocumentSpan& document) { documents.push_back(document); });
}

BatchSource::Step StreamSource::begin_step(int64_t step) {
  stream_.seek(step - 1);
  if (images_) {
    std::vector<DocumentSpan> documents;
    const auto add_step = [&](const BlockStream& stream) {
      for (int64_t pass = 0; pass < stream.shape().passes; pass++) add_documents(stream, pass, documents);
    };
    add_step(stream_);
    if (step < ahead_->steps()) {
      ahead_->seek(step);
      add_step(*ahead_);
    }
    images_->expect(documents);
  }
  return {stream_.tokens(), stream_.loss_tokens(), stream_.ends_epoch(), stream_.samples()};
}

void StreamSource::fill(int64_t pass, const BatchViews& views, RuntimeScalars& runtime) {
  const BatchCounts counts = batcher_.fill(stream_, pass, rank_, views, half_);
  const StepShape& shape = stream_.shape();
  runtime.first_token = (pass * shape.ranks + rank_) * shape.micro_batch * stream_.sequence_length();
  runtime.documents = counts.documents;
  runtime.loss_rows = counts.loss_rows;
  runtime.segments = counts.segments;
}

void StreamSource::fill_images(int64_t pass, const ImageViews& views, RuntimeScalars& runtime) {
  check(images_.has_value(), "images of a source that has none");
  std::vector<DocumentSpan> documents;
  add_documents(stream_, pass, documents);
  const ImageCounts counts = images_->fill(documents, views);
  runtime.images = counts.images;
  runtime.image_windows = counts.windows;
}

}  // namespace snug
