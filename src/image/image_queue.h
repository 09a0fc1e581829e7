// Decodes and processes images on threads ahead of who needs them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/heartbeat.h"
#include "image/processor.h"

namespace snug {

// Names an image that is to be processed, and the size that it was planned with. Of a video it names the frames of one
// step: fewer than a row has, where the last is repeated.
struct ImageTask {
  struct Picture {
    std::filesystem::path path;  // or empty, where the bytes stood in the data
    std::string bytes;
  };
  std::string source;             // for messages: file, line and image
  std::vector<Picture> pictures;  // one, or the frames
  int64_t width = 0, height = 0;  // upright, of each
  bool video = false;
};

struct ImageRows {
  ImagePlan plan;
  std::vector<float> rows;  // as of write_patches()
  std::string warning;      // as of DecodedImage, behind its source; else empty
};

// Returns the most bytes that processing one image takes, its rows included, without those of its file. A progressive
// JPEG, which is decoded as a whole, takes the most. With `later` frames its rows are there while these are decoded.
int64_t processing_bytes(const ImageProcessor& processor, int64_t width, int64_t height, std::string_view source,
                         bool later = false);

// Returns what a task takes until it is done, the bytes of its files included; 0 for one that will fail.
int64_t task_bytes(const ImageProcessor& processor, const ImageTask& task);

// Hands out rows in the order of the tasks. Tasks are begun in that order too, each when what it may take, with what
// all before it take that have not been handed out, is within a number of bytes, or when it is the only one: so the
// most that is taken at once is that number, or what the largest image takes alone.
class ImageQueue {
 public:
  // `next_task` returns the tasks one by one, then nothing. It is called on the queue's threads, by one at a time.
  ImageQueue(const ImageProcessor& processor, std::function<std::optional<ImageTask>()> next_task, int threads,
             int64_t most_bytes);
  // Ends without processing tasks that are not begun.
  ~ImageQueue();
  ImageQueue(const ImageQueue&) = delete;
  ImageQueue& operator=(const ImageQueue&) = delete;

  // Waits for the next task's rows; nothing after the last. Throws UserError, named by the task's source, for an image
  // that cannot be read or has another size than it was planned with, when its turn comes; after that nothing but that
  // error. For one thread.
  std::optional<ImageRows> next(const Heartbeat& heartbeat = {});

  // Returns the most bytes that were taken at once so far.
  int64_t peak_bytes() const;

 private:
  struct Slot {
    int64_t bytes = 0;
    bool done = false;
    ImageRows rows;
    std::exception_ptr error;
  };

  void work();
  // Takes the next task and room for it; false when there is none or the queue ends.
  bool begin(ImageTask& task, Slot*& slot);
  void finish(Slot& slot, ImageRows rows, std::exception_ptr error);

  const ImageProcessor processor_;
  const std::function<std::optional<ImageTask>()> next_task_;
  const int64_t most_bytes_;

  mutable std::mutex mutex_;
  std::mutex beginning_;  // held by the thread that takes a task and waits for room
  std::condition_variable changed_;
  std::deque<Slot> slots_;  // of tasks that are begun and not handed out, in order; addresses stay
  int64_t held_bytes_ = 0, peak_bytes_ = 0;
  int working_ = 0;  // threads that may yet begin a task
  bool stopped_ = false;
  std::vector<std::jthread> threads_;  // last, so that they end before what they use
};

}  // namespace snug
