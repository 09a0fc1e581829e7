#include "data/image_batcher.h"

#include "base/error.h"
#include "base/parallel.h"

namespace snug {

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

ImageBatcher::ImageBatcher(const Dataset& dataset, const ImageBatches& batches)
    : dataset_(dataset), tower_(batches.tower), rows_(dataset, batches.processor, batches.rows) {}

ImageCounts ImageBatcher::fill(std::span<const DocumentSpan> documents, const ImageViews& views,
                               const Heartbeat& heartbeat) {
  ImageLayout layout(tower_, views);
  order_.clear();
  int64_t token = 0;
  for (const DocumentSpan& document : documents) {
    for (const DatasetView& view : views_of(dataset_, document)) {
      const auto before = std::ssize(order_);
      for (const int32_t row : layout.add(view.rows, view.columns, token + view.begin - document.begin))
        order_.push_back(before + row);
    }
    token += document.length;
  }
  numbers_.resize(order_.size() * static_cast<size_t>(views.pixels.cols()));
  rows_.fill(documents, numbers_, heartbeat);
  copy_rows(numbers_, order_, views.pixels);
  return layout.finish();
}

}  // namespace snug
