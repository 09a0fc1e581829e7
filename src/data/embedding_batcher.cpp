#include "data/embedding_batcher.h"

#include <algorithm>

#include "base/error.h"
#include "data/image_rows.h"

namespace snug {
namespace {

// Returns rows [begin, begin + count) of a dense view.
TensorView some_rows(const TensorView& rows, int64_t begin, int64_t count) {
  check(begin + count <= rows.rows(), "rows {} to {} of {} of a pass's images", begin, begin + count, rows.rows());
  const size_t row_bytes = static_cast<size_t>(rows.cols()) * element_bytes(rows.dtype);
  return {rows.data + static_cast<size_t>(begin) * row_bytes, rows.dtype, {count, rows.cols()}, rows.cols()};
}

}  // namespace

void EmbeddingBatcher::expect(std::span<const DocumentSpan> documents) const {
  for (const DocumentSpan& document : documents)
    for (const DatasetImage& image : images_of(dataset_, document))
      embeddings_.files().read_ahead(embeddings_.hash_of(image));
}

void EmbeddingBatcher::fill(std::span<const DocumentSpan> documents, const EmbeddingViews& views) const {
  int64_t token = 0, row = 0;
  for (const DocumentSpan& document : documents) {
    const std::span<const DatasetView> of_document = views_of(dataset_, document);
    auto view = of_document.begin();
    for (const DatasetImage& image : images_of(dataset_, document)) {
      const int64_t begin = row;
      for (; view != of_document.end() && view->begin < image.end; ++view)
        for (int64_t i = 0; i < view->tokens; i++, row++) {
          check(row < std::ssize(views.places), "more rows of images than a pass has room for, {}",
                views.places.size());
          views.places[static_cast<size_t>(row)] = static_cast<int32_t>(token + view->begin - document.begin + i);
        }
      embeddings_.files().read(embeddings_.hash_of(image), some_rows(views.rows, begin, row - begin));
    }
    token += document.length;
  }
  std::fill(views.places.begin() + row, views.places.end(), -1);
}

}  // namespace snug
