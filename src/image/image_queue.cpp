#include "image/image_queue.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "base/error.h"
#include "image/decode.h"

namespace snug {

namespace {

constexpr std::chrono::milliseconds kHeartbeatInterval{500};

// Decodes a picture of a task. Throws UserError for one that has changed in size.
DecodedImage decoded_picture(const ImageTask& task, const ImageTask::Picture& picture) {
  DecodedImage decoded = picture.path.empty() ? decode_image(std::as_bytes(std::span(picture.bytes)), task.source)
                                              : decode_image(picture.path, task.source);
  const Image& image = decoded.image;
  if (image.width != task.width || image.height != task.height)
    user_error("{}: found {} x {} pixels, expected {} x {} as when the run was planned: the file has changed",
               task.source, image.width, image.height, task.width, task.height);
  return decoded;
}

ImageProcessor processor_of(const ImageProcessor& processor, const ImageTask& task) {
  return task.video ? frame_processor(processor) : processor;
}

ImageRows process(const ImageProcessor& images, const ImageTask& task) {
  const ImageProcessor processor = processor_of(images, task);
  ImageRows out{.plan = plan_image(processor, task.width, task.height, task.source), .rows = {}, .warning = {}};
  int64_t frame = 0;
  for (const ImageTask::Picture& picture : task.pictures) {
    const DecodedImage decoded = decoded_picture(task, picture);
    out.rows.resize(static_cast<size_t>(out.plan.patches * processor.row_size()));
    write_patches(processor, decoded.image, out.rows, frame++);
    if (!decoded.warning.empty()) out.warning = fmt::format("{}: {}", task.source, decoded.warning);
  }
  return out;
}

int64_t rows_bytes(const ImageRows& rows) { return static_cast<int64_t>(rows.rows.size() * sizeof(float)); }

}  // namespace

int64_t task_bytes(const ImageProcessor& processor, const ImageTask& task) {
  std::error_code missing;
  uint64_t files = 0;
  for (const ImageTask::Picture& picture : task.pictures) {
    files += picture.path.empty() ? picture.bytes.size() : std::filesystem::file_size(picture.path, missing);
    if (missing) return 0;
  }
  return processing_bytes(processor_of(processor, task), task.width, task.height, task.source,
                          task.pictures.size() > 1) +
         static_cast<int64_t>(files);
}

int64_t processing_bytes(const ImageProcessor& processor, int64_t width, int64_t height, std::string_view source,
                         bool later) {
  constexpr int64_t kPixel = 3, kCoefficients = 4 * 2;  // of the four channels at most
  // Tables of decoders, metadata; and for each line and column weights of resizing, sums, pointers.
  constexpr int64_t kTables = 2 << 20, kSide = 256;
  const ImagePlan plan = plan_image(processor, width, height, source);
  int64_t resized = 0, sides = width + height;
  for (const ImageView& view : plan.views) {
    resized = std::max(resized, (height + view.resized_height) * view.resized_width * kPixel);
    sides = std::max(sides, width + height + view.resized_width + view.resized_height);
  }
  // Blocks of 8 x 8 pixels, up to four of them side by side, fill up each line and column.
  const int64_t padded = (width + 32) * (height + 32);
  const int64_t decoding = width * height * kPixel + padded * std::max(kCoefficients, kPixel);
  const int64_t rows = plan.patches * processor.row_size() * static_cast<int64_t>(sizeof(float));
  // The previous view's pixels lie beside those of the next one until it is made.
  return std::max(decoding + (later ? rows : 0), width * height * kPixel + 2 * resized + rows) + sides * kSide +
         kTables;
}

ImageQueue::ImageQueue(const ImageProcessor& processor, std::function<std::optional<ImageTask>()> next_task,
                       int threads, int64_t most_bytes)
    : processor_(processor), next_task_(std::move(next_task)), most_bytes_(most_bytes), working_(threads) {
  check(threads > 0, "a queue of images with {} threads", threads);
  for (int i = 0; i < threads; i++) threads_.emplace_back([this] { work(); });
}

ImageQueue::~ImageQueue() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

void ImageQueue::work() {
  ImageTask task;
  Slot* slot = nullptr;
  while (begin(task, slot)) {
    try {
      finish(*slot, process(processor_, task), nullptr);
    } catch (...) {
      finish(*slot, {}, std::current_exception());
    }
  }
  const std::lock_guard lock(mutex_);
  working_--;
  changed_.notify_all();
}

bool ImageQueue::begin(ImageTask& task, Slot*& slot) {
  const std::lock_guard one_at_a_time(beginning_);
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
  }
  std::exception_ptr error;
  int64_t bytes = 0;
  try {
    std::optional<ImageTask> next = next_task_();
    if (!next) return false;
    task = std::move(*next);
    bytes = task_bytes(processor_, task);
  } catch (...) {
    error = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || held_bytes_ == 0 || held_bytes_ + bytes <= most_bytes_; });
  if (stopped_) return false;
  held_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
  slot = &slots_.emplace_back();
  slot->bytes = bytes;
  if (!error) return true;
  // The tasks themselves cannot be told: whoever waits gets that error in their place.
  slot->error = error;
  slot->done = stopped_ = true;
  changed_.notify_all();
  return false;
}

void ImageQueue::finish(Slot& slot, ImageRows rows, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  const int64_t kept = rows_bytes(rows);
  held_bytes_ += kept - slot.bytes;
  slot.bytes = kept;
  slot.rows = std::move(rows);
  slot.error = std::move(error);
  slot.done = true;
  if (slot.error) stopped_ = true;
  changed_.notify_all();
}

std::optional<ImageRows> ImageQueue::next(const Heartbeat& heartbeat) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return slots_.empty() ? working_ == 0 : slots_.front().done; };
  while (!changed_.wait_for(lock, kHeartbeatInterval, ready)) {
    lock.unlock();
    call(heartbeat);
    lock.lock();
  }
  if (slots_.empty()) return {};
  Slot& first = slots_.front();
  if (first.error) std::rethrow_exception(first.error);
  ImageRows rows = std::move(first.rows);
  held_bytes_ -= first.bytes;
  slots_.pop_front();
  changed_.notify_all();
  return rows;
}

int64_t ImageQueue::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

}  // namespace snug
