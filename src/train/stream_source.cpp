#include "train/stream_source.h"

#include "base/parallel.h"

namespace snug {

StreamSource::StreamSource(const Dataset& dataset, std::vector<uint32_t> selection, const PackingOptions& packing,
                           const StepShape& shape, const RunLength& length, int rank,
                           const std::optional<ImageBatches>& images)
    : dataset_(dataset),
      stream_(dataset, std::move(selection), packing, shape, length),
      images_(images),
      batcher_(dataset, shape.micro_batch, packing.sequence_length, images ? images->tower : TowerShape{}),
      rank_(rank) {
  if (images) rows_.emplace(dataset, images->processor, images->rows);
}

BatchSource::Step StreamSource::begin_step(int64_t step) {
  stream_.seek(step - 1);
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

namespace {

// Writes rows of numbers in another order, and in the views' dtype.
void copy_rows(std::span<const float> numbers, std::span<const int64_t> order, const TensorView& out) {
  const int64_t columns = out.cols();
  dispatch_float(out.dtype, [&]<class T>() {
    T* const to = out.as<T>();
    parallel_for(std::ssize(order), [&](int64_t row) {
      const float* const from = numbers.data() + order[static_cast<size_t>(row)] * columns;
      for (int64_t i = 0; i < columns; i++) to[row * columns + i] = static_cast<T>(from[i]);
    });
  });
}

}  // namespace

void StreamSource::fill_images(int64_t pass, const ImageViews& views, RuntimeScalars& runtime) {
  check(rows_.has_value(), "images of a source that has none");
  ImageLayout layout(images_->tower, views);
  std::vector<DocumentSpan> documents;
  std::vector<int64_t> order;
  int64_t token = 0;
  for (int64_t i = 0; i < stream_.shape().micro_batch; i++)
    for_each_of(stream_.block(pass, rank_, i), half_, [&](const DocumentSpan& document) {
      documents.push_back(document);
      for (const DatasetView& view : dataset_.views(document.sample)) {
        if (view.begin < document.begin || view.begin + view.tokens > document.begin + document.length) continue;
        const auto before = std::ssize(order);
        for (const int32_t row : layout.add(view.rows, view.columns, token + view.begin - document.begin))
          order.push_back(before + row);
      }
      token += document.length;
    });
  numbers_.resize(order.size() * static_cast<size_t>(views.pixels.cols()));
  rows_->fill(documents, numbers_);
  copy_rows(numbers_, order, views.pixels);
  const ImageCounts counts = layout.finish();
  runtime.images = counts.images;
  runtime.image_windows = counts.windows;
}

}  // namespace snug
