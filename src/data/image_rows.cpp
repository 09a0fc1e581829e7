#include "data/image_rows.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace snug {

std::span<const DatasetImage> images_of(const Dataset& dataset, const DocumentSpan& document) {
  const std::span<const DatasetImage> all = dataset.images(document.sample);
  const auto is_before = [](const DatasetImage& image, uint32_t token) { return image.begin < token; };
  const auto begin = std::lower_bound(all.begin(), all.end(), document.begin, is_before);
  const auto end = std::lower_bound(begin, all.end(), document.begin + document.length, is_before);
  return {begin, end};
}

std::span<const DatasetView> views_of(const Dataset& dataset, const DocumentSpan& document) {
  const std::span<const DatasetView> all = dataset.views(document.sample);
  const auto is_before = [](const DatasetView& view, uint32_t token) { return view.begin < token; };
  const auto begin = std::lower_bound(all.begin(), all.end(), document.begin, is_before);
  const auto end = std::lower_bound(begin, all.end(), document.begin + document.length, is_before);
  return {begin, end};
}

std::optional<ImageTask> ImagesOfDocuments::next() {
  while (images_.empty()) {
    const std::optional<DocumentSpan> document = next_document_();
    if (!document) return {};
    images_ = images_of(dataset_, *document);
  }
  const DatasetImage& image = images_.front();
  images_ = images_.subspan(1);
  return dataset_.all_images().task(image);
}

PassRows::PassRows(const Dataset& dataset, const ImageProcessor& processor, ImageRowsOptions options)
    : dataset_(dataset), processor_(processor), options_(std::move(options)) {}

int64_t PassRows::fill(std::span<const DocumentSpan> documents, std::span<float> out, const Heartbeat& heartbeat) {
  int64_t patches = 0, images = 0;
  for (const DocumentSpan& document : documents) {
    patches += patches_of(dataset_, document);
    images += std::ssize(images_of(dataset_, document));
  }
  check(patches * processor_.row_size() <= std::ssize(out), "room for {} numbers, the images have {} patches",
        out.size(), patches);
  if (images == 0) return 0;
  size_t next = 0;
  ImagesOfDocuments walk(dataset_, [&]() -> std::optional<DocumentSpan> {
    return next < documents.size() ? std::optional(documents[next++]) : std::nullopt;
  });
  ImageQueue queue(
      processor_, [&] { return walk.next(); },
      static_cast<int>(std::min<int64_t>(std::max(options_.threads, 1), images)), options_.most_bytes);
  float* to = out.data();
  while (const std::optional<ImageRows> rows = queue.next(heartbeat)) {
    check(std::ssize(rows->rows) <= std::ssize(out) - (to - out.data()), "more rows than the data says");
    to = std::copy(rows->rows.begin(), rows->rows.end(), to);
    if (!rows->warning.empty() && options_.note && noted_.insert(rows->warning).second) options_.note(rows->warning);
  }
  check(to - out.data() == patches * processor_.row_size(), "{} numbers of {} patches", to - out.data(), patches);
  return patches;
}

}  // namespace snug
