// Images are processed ahead, in order, within a number of bytes.
#include "image/image_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "expect_error.h"
#include "image_fixture.h"

namespace snug {
namespace {

const ImageProcessor kProcessor{.sizing = BoundedPixels{}, .merge = 2, .frames = 2};

// Small and large images by turns, so that later ones are done before earlier ones.
const std::vector<std::string> kNames = {"noise.png", "one.png",    "420.jpg",  "wide.png", "exif6.jpg",
                                         "one.jpg",   "lossy.webp", "rgb8.png", "thin.jpg", "cmyk.jpg"};

ImageTask task_of(const std::string& name, int line) {
  const ImageHeader header = read_image_header(image_path(name), name);
  return {.source = fmt::format("d.jsonl, line {}: {}", line, name),
          .pictures = {{image_path(name), {}}},
          .width = header.shown_width(),
          .height = header.shown_height()};
}

std::vector<ImageTask> tasks(int count) {
  std::vector<ImageTask> tasks;
  for (int i = 0; i < count; i++) tasks.push_back(task_of(kNames[static_cast<size_t>(i) % kNames.size()], i + 1));
  return tasks;
}

std::vector<float> rows_of(const ImageTask& task) {
  const auto& [path, bytes] = task.pictures.at(0);
  const Image image =
      path.empty() ? decode_image(std::as_bytes(std::span(bytes)), "x").image : decode_image(path, "x").image;
  std::vector<float> rows(
      static_cast<size_t>(plan_image(kProcessor, image.width, image.height, "x").patches * kProcessor.row_size()));
  write_patches(kProcessor, image, rows);
  return rows;
}

int64_t bytes_of(const ImageTask& task) {
  const auto& [path, bytes] = task.pictures.at(0);
  const auto file = path.empty() ? bytes.size() : std::filesystem::file_size(path);
  return processing_bytes(kProcessor, task.width, task.height, "x") + static_cast<int64_t>(file);
}

std::function<std::optional<ImageTask>()> each_of(std::vector<ImageTask> tasks, std::atomic<int>* begun = nullptr) {
  return [tasks = std::move(tasks), next = size_t{0}, begun]() mutable -> std::optional<ImageTask> {
    if (next == tasks.size()) return {};
    if (begun) ++*begun;
    return tasks[next++];
  };
}

TEST(ImageQueue, RowsComeInTheOrderOfTheTasks) {
  std::vector<ImageTask> all = tasks(40);
  all[7].pictures = {{{}, image_text(kNames[7])}};
  for (const int threads : {1, 2, 5}) {
    ImageQueue queue(kProcessor, each_of(all), threads, 1 << 28);
    for (const ImageTask& task : all) {
      const std::optional<ImageRows> out = queue.next();
      ASSERT_TRUE(out) << task.source;
      EXPECT_EQ(out->rows, rows_of(task)) << task.source;
      EXPECT_EQ(out->plan.patches * kProcessor.row_size(), static_cast<int64_t>(out->rows.size()));
      EXPECT_EQ(out->warning, "");
    }
    EXPECT_FALSE(queue.next());
    EXPECT_FALSE(queue.next());
  }
}

TEST(ImageQueue, NoMoreBytesAreTakenThanAllowed) {
  const std::vector<ImageTask> all = tasks(40);
  int64_t largest = 0, sum = 0;
  for (const ImageTask& task : all) largest = std::max(largest, bytes_of(task)), sum += bytes_of(task);
  for (const int64_t most : {int64_t{1}, largest, 2 * largest, sum}) {
    ImageQueue queue(kProcessor, each_of(all), 4, most);
    for (const ImageTask& task : all) EXPECT_EQ(queue.next()->rows, rows_of(task)) << task.source;
    EXPECT_LE(queue.peak_bytes(), std::max(most, largest));
    // Room for several is used.
    if (most == sum) {
      EXPECT_GT(queue.peak_bytes(), largest);
    }
  }
}

// With room for one image a task is begun when the one before it has been handed out; the next one may wait for that.
TEST(ImageQueue, TasksWaitForRoom) {
  std::atomic<int> begun = 0;
  ImageQueue queue(kProcessor, each_of(tasks(12), &begun), 3, 1);
  for (int taken = 0; taken < 12; taken++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_LE(begun, taken + 2);
    EXPECT_TRUE(queue.next());
  }
  EXPECT_FALSE(queue.next());
  EXPECT_EQ(begun, 12);
}

TEST(ImageQueue, AnErrorComesInItsPlace) {
  std::vector<ImageTask> all = tasks(20);
  all[5].pictures[0].path = image_path("bad_jpeg_cut_scan");
  all[9].pictures[0].path = image_path("nowhere.png");
  ImageQueue queue(kProcessor, each_of(all), 4, 1 << 28);
  for (size_t i = 0; i < 5; i++) EXPECT_EQ(queue.next()->rows, rows_of(all[i]));
  for (int i = 0; i < 2; i++)
    EXPECT_TRUE(fails_with<UserError>([&] { queue.next(); }, "d.jsonl, line 6: one.jpg: cannot decode this JPEG file"));
}

TEST(ImageQueue, WhatIsMissingOrChangedIsNamed) {
  std::vector<ImageTask> missing = tasks(1), changed = tasks(1), thin = tasks(1);
  missing[0].pictures[0].path = image_path("nowhere.png");
  changed[0].width = 96;
  thin[0].width = 60000, thin[0].height = 1;
  const auto first = [](const std::vector<ImageTask>& tasks) {
    ImageQueue(kProcessor, each_of(tasks), 2, 1 << 28).next();
  };
  EXPECT_TRUE(fails_with<UserError>([&] { first(missing); }, "d.jsonl, line 1: noise.png: "));
  EXPECT_TRUE(fails_with<UserError>(
      [&] { first(changed); }, "d.jsonl, line 1: noise.png: found 97 x 61 pixels, expected 96 x 61 as when the run"));
  EXPECT_TRUE(fails_with<UserError>([&] { first(thin); }, "d.jsonl, line 1: noise.png: found 60000 x 1 pixels"));
}

TEST(ImageQueue, AWarningNamesItsImage) {
  ImageQueue queue(kProcessor, each_of({task_of("junk.jpg", 1)}), 1, 1 << 28);
  EXPECT_EQ(queue.next()->warning,
            "d.jsonl, line 1: junk.jpg: Corrupt JPEG data: 3 extraneous bytes before marker 0xdb");
}

// A queue that nobody empties ends nevertheless, with threads that wait for room and some that work.
TEST(ImageQueue, EndsAtAnyTime) {
  for (const int64_t most : {int64_t{1}, int64_t{1} << 23, int64_t{1} << 28}) {
    for (int taken = 0; taken < 5; taken++) {
      ImageQueue queue(kProcessor, each_of(tasks(40)), 3, most);
      for (int i = 0; i < taken; i++) EXPECT_TRUE(queue.next());
    }
  }
}

// Who waits gives signs of life, whose failure ends the wait.
TEST(ImageQueue, WaitingCallsTheHeartbeat) {
  std::mutex held;
  std::unique_lock lock(held);
  ImageQueue queue(
      kProcessor,
      [&]() -> std::optional<ImageTask> {
        const std::lock_guard wait(held);
        return {};
      },
      2, 1 << 28);
  int calls = 0;
  EXPECT_THROW(queue.next([&] {
    if (++calls == 2) throw std::runtime_error("another rank failed");
  }),
               std::runtime_error);
  EXPECT_EQ(calls, 2);
  lock.unlock();
  EXPECT_FALSE(queue.next());
}

}  // namespace
}  // namespace snug
