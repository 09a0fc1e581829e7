#include "data/dataset_images.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "data/shapes.h"
#include "image/data_url.h"
#include "image/header.h"
#include "image/image_queue.h"

namespace snug {
namespace {

constexpr char kBetweenPaths = 0;

std::string paths_of(const SampleImage& image) {
  std::string paths = image.path;
  for (const std::string& path : image.later) (paths += kBetweenPaths) += path;
  return paths;
}

}  // namespace

void DatasetImages::add(uint32_t number, const TokenSample& sample) {
  if (sample.images.empty()) return;
  check(owners_.empty() || owners_.back().sample < number, "images of sample {} behind later ones", number);
  owners_.push_back({images_.size(), views_.size(), number, static_cast<uint32_t>(sample.images.size()),
                     static_cast<uint32_t>(sample.views.size()), 0});
  for (const SampleImage& image : sample.images) {
    const std::string paths = paths_of(image);
    images_.push_back({text_.size(), image.bytes.size(), image.place, image.place_bytes,
                       static_cast<uint32_t>(image.source.size()), static_cast<uint32_t>(paths.size()), image.width,
                       image.height, image.begin, image.end, image.step, image.time});
    for (const std::string* text : {&image.source, &paths, &image.bytes})
      text_.insert(text_.end(), text->begin(), text->end());
  }
  views_.insert(views_.end(), sample.views.begin(), sample.views.end());
}

uint64_t DatasetImages::growth(const TokenSample& sample) const {
  if (sample.images.empty()) return 0;
  uint64_t text = 0;
  for (const SampleImage& image : sample.images)
    text += image.source.size() + paths_of(image).size() + image.bytes.size();
  return growth_of(owners_, 1) + growth_of(images_, sample.images.size()) + growth_of(views_, sample.views.size()) +
         growth_of(text_, text);
}

const DatasetImages::Owner* DatasetImages::owner(int64_t sample) const {
  const auto found = std::ranges::lower_bound(owners_, sample, {}, &Owner::sample);
  return found != owners_.end() && found->sample == sample ? &*found : nullptr;
}

std::span<const DatasetImage> DatasetImages::images(int64_t sample) const {
  const Owner* const found = owner(sample);
  return found ? std::span(images_).subspan(found->images, found->image_count) : std::span<const DatasetImage>();
}

std::span<const DatasetView> DatasetImages::views(int64_t sample) const {
  const Owner* const found = owner(sample);
  return found ? std::span(views_).subspan(found->views, found->view_count) : std::span<const DatasetView>();
}

std::string_view DatasetImages::text(const DatasetImage& image, uint64_t begin, uint64_t count) const {
  return {text_.data() + image.text + begin, count};
}

std::vector<std::string_view> DatasetImages::paths(const DatasetImage& image) const {
  std::string_view all = text(image, image.source_bytes, image.path_bytes);
  std::vector<std::string_view> paths;
  for (size_t end = all.find(kBetweenPaths); end != all.npos; end = all.find(kBetweenPaths)) {
    paths.push_back(all.substr(0, end));
    all.remove_prefix(end + 1);
  }
  paths.push_back(all);
  return paths;
}

std::string_view DatasetImages::source(const DatasetImage& image) const { return text(image, 0, image.source_bytes); }

ImageTask DatasetImages::task(const DatasetImage& image) const {
  ImageTask task{.source = std::string(source(image)),
                 .pictures = {},
                 .width = image.width,
                 .height = image.height,
                 .video = image.step > 0};
  for (const std::string_view path : paths(image)) task.pictures.push_back({path, {}});
  ImageTask::Picture& first = task.pictures[0];
  first.bytes = text(image, uint64_t{image.source_bytes} + image.path_bytes, image.held_bytes);
  if (image.place_bytes == 0) return task;
  const File file = open_image(first.path, task.source);
  if (image.place > file.size() || image.place_bytes > file.size() - image.place)
    user_error("{}: the file ends before it, expected it as when the data was read: the file has changed", task.source);
  std::string url(image.place_bytes, '\0');
  file.read(image.place, std::as_writable_bytes(std::span(url)));
  first = {{}, bytes_of_data_url(url, task.source)};
  return task;
}

void DatasetImages::look_up_sizes(const Heartbeat& heartbeat) {
  sizes_.clear();
  for (const DatasetImage& image : images_) {
    call(heartbeat);
    uint64_t& bytes = sizes_.emplace_back(image.held_bytes + image.place_bytes);
    if (bytes > 0) continue;
    for (const std::string_view path : paths(image)) {
      std::error_code missing;
      const uint64_t size = std::filesystem::file_size(path, missing);
      if (!missing) bytes += size;
    }
  }
}

uint64_t DatasetImages::stored_bytes(const DatasetImage& image) const {
  const auto i = static_cast<size_t>(&image - images_.data());
  check(i < sizes_.size(), "the size of image {} of {} that were looked up", i, sizes_.size());
  return sizes_[i];
}

uint64_t DatasetImages::state() const {
  uint64_t state = 0;
  std::string_view last;  // images of one data file follow each other
  for (const DatasetImage& image : images_) {
    for (const std::string_view name : paths(image)) {
      if (name.empty() || name == std::exchange(last, name)) continue;
      const std::filesystem::path path = name;
      std::error_code missing;
      const uint64_t bytes = std::filesystem::file_size(path, missing);
      const auto time = std::filesystem::last_write_time(path, missing).time_since_epoch().count();
      const std::string now = fmt::format("{} {}", bytes, time);
      state = hash_of(std::span<const char>(now), state);
    }
  }
  return state;
}

}  // namespace snug
