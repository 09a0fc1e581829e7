#include "data/image_rows.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
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

// Decodes images on a queue, which waits for more when it has done those that it was given.
class PassRows::Ahead {
 public:
  Ahead(const Dataset& dataset, const ImageProcessor& processor, const ImageRowsOptions& options)
      : dataset_(dataset),
        queue_(
            processor, [this] { return next(); }, std::max(options.threads, 1), options.most_bytes) {}
  ~Ahead() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    given_.notify_all();
  }

  void add(const DocumentSpan& document) {
    const std::lock_guard lock(mutex_);
    for (const DatasetImage& image : images_of(dataset_, document)) waiting_.push_back(&image);
    given_.notify_all();
  }
  ImageRows take(const Heartbeat& heartbeat) { return queue_.next(heartbeat).value(); }

 private:
  std::optional<ImageTask> next() {
    std::unique_lock lock(mutex_);
    given_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
    if (closed_) return std::nullopt;
    const DatasetImage& image = *waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    return dataset_.all_images().task(image);
  }

  const Dataset& dataset_;
  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<const DatasetImage*> waiting_;
  bool closed_ = false;
  ImageQueue queue_;  // last, so that its threads end before what they use
};

PassRows::PassRows(const Dataset& dataset, const ImageProcessor& processor, ImageRowsOptions options)
    : dataset_(dataset), processor_(processor), options_(std::move(options)) {}
PassRows::PassRows(PassRows&&) noexcept = default;
PassRows::~PassRows() = default;

std::deque<DocumentSpan> PassRows::with_images(std::span<const DocumentSpan> documents) const {
  std::deque<DocumentSpan> out;
  for (const DocumentSpan& document : documents)
    if (!images_of(dataset_, document).empty()) out.push_back(document);
  return out;
}

void PassRows::begin_again(std::deque<DocumentSpan> documents) {
  expected_ = std::move(documents);
  ahead_.reset();
  if (expected_.empty()) return;
  ahead_ = std::make_unique<Ahead>(dataset_, processor_, options_);
  for (const DocumentSpan& document : expected_) ahead_->add(document);
}

void PassRows::expect(std::span<const DocumentSpan> documents) {
  std::deque<DocumentSpan> all = with_images(documents);
  const size_t known = expected_.size();
  if (!ahead_ || known > all.size() || !std::equal(expected_.begin(), expected_.end(), all.begin()))
    return begin_again(std::move(all));
  for (size_t i = known; i < all.size(); i++) ahead_->add(all[i]);
  expected_ = std::move(all);
}

void PassRows::look_at(std::span<const DocumentSpan> documents, const Heartbeat& heartbeat) {
  begin_again(with_images(documents));
  for (const DocumentSpan& document : expected_)
    for (size_t i = 0; i < images_of(dataset_, document).size(); i++) ahead_->take(heartbeat);
  begin_again({});
}

int64_t PassRows::fill(std::span<const DocumentSpan> documents, std::span<float> out, const Heartbeat& heartbeat) {
  const std::deque<DocumentSpan> asked = with_images(documents);
  int64_t patches = 0;
  for (const DocumentSpan& document : asked) patches += patches_of(dataset_, document);
  check(patches * processor_.row_size() <= std::ssize(out), "room for {} numbers, the images have {} patches",
        out.size(), patches);
  if (asked.empty()) return 0;
  if (asked.size() > expected_.size() || !std::equal(asked.begin(), asked.end(), expected_.begin())) begin_again(asked);
  float* to = out.data();
  for (const DocumentSpan& document : asked) {
    for (size_t i = 0; i < images_of(dataset_, document).size(); i++) {
      const ImageRows rows = ahead_->take(heartbeat);
      check(std::ssize(rows.rows) <= out.data() + patches * processor_.row_size() - to, "more rows than the data says");
      to = std::copy(rows.rows.begin(), rows.rows.end(), to);
      if (!rows.warning.empty() && options_.note && noted_.insert(rows.warning).second) options_.note(rows.warning);
    }
    expected_.pop_front();
  }
  check(to - out.data() == patches * processor_.row_size(), "{} numbers of {} patches", to - out.data(), patches);
  return patches;
}

}  // namespace snug
