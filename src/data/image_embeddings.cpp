#include "data/image_embeddings.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "data/image_rows.h"
#include "image/header.h"

namespace snug {

ImageTask task_in_memory(const Dataset& dataset, const DatasetImage& image) {
  ImageTask task = dataset.all_images().task(image);
  for (auto& [path, bytes] : task.pictures) {
    if (path.empty()) continue;
    if (!is_file(path))
      user_error("{}: {} is no file, expected it as when the data was read", task.source, path.string());
    bytes = read_text(path, kMostImageBytes);
    path.clear();
  }
  return task;
}

uint64_t content_hash(const ImageTask& task) {
  // A frame is resized by other bounds than an image of the same bytes.
  uint64_t hash = task.video ? snug::hash_of(std::string_view("a video's frames")) : 0;
  for (const ImageTask::Picture& picture : task.pictures)
    hash = snug::hash_of(std::span<const char>(picture.bytes), hash);
  return hash;
}

void ImageEmbeddings::add(const Dataset& dataset, std::span<const DocumentSpan> documents, const Heartbeat& heartbeat) {
  for (const DocumentSpan& document : documents)
    for (const DatasetImage& image : images_of(dataset, document)) {
      if (hash_of_.contains(&image)) continue;
      call(heartbeat);
      NamedImage named{&dataset, &image, content_hash(task_in_memory(dataset, image))};
      hash_of_.emplace(&image, named.hash);
      if (!known_.insert(named.hash).second) continue;
      for (const DatasetView& view : dataset.views(document.sample)) {
        if (view.begin < image.begin || view.begin >= image.end) continue;
        named.patches += view.patches();
        named.rows += view.tokens;
      }
      images_.push_back(named);
    }
}

std::vector<NamedImage> ImageEmbeddings::missing() const {
  std::vector<NamedImage> missing;
  std::ranges::copy_if(images_, std::back_inserter(missing),
                       [&](const NamedImage& image) { return !files_.has(image.hash, image.rows); });
  return missing;
}

uint64_t ImageEmbeddings::bytes() const {
  uint64_t bytes = 0;
  for (const NamedImage& image : images_) bytes += files_.bytes_of(image.rows);
  return bytes;
}

uint64_t ImageEmbeddings::hash_of(const DatasetImage& image) const {
  const auto found = hash_of_.find(&image);
  check(found != hash_of_.end(), "an image of the data whose bytes were not looked at");
  return found->second;
}

}  // namespace snug
