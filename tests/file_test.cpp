#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> pattern(size_t bytes) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 7 + i / 251);
  return data;
}

class FileModes : public testing::TestWithParam<IoMode> {
 protected:
  TempDirectory directory_;
  fs::path path_ = directory_.path() / "data";
};
INSTANTIATE_TEST_SUITE_P(All, FileModes, testing::Values(IoMode::Buffered, IoMode::Direct));

TEST_P(FileModes, EveryRangeComesBackAsWritten) {
  const std::vector<std::byte> data = pattern(3 * kDirectAlignment + 17);
  File out = File::create(path_, GetParam());
  out.write(0, data);
  out.sync();
  const File in = File::open_read(path_, GetParam());
  EXPECT_EQ(in.size(), data.size());
  for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{0, 0},
                                      {0, data.size()},
                                      {1, 1},
                                      {kDirectAlignment, kDirectAlignment},
                                      {kDirectAlignment - 1, kDirectAlignment + 2},
                                      {data.size() - 1, 1}}) {
    std::vector<std::byte> found(bytes);
    in.read(offset, found);
    EXPECT_TRUE(std::equal(found.begin(), found.end(), data.begin() + static_cast<long>(offset)))
        << bytes << " at " << offset;
  }
}

TEST_P(FileModes, AlignedMemoryTakesWholePagesAndTheUnevenEnd) {
  const std::vector<std::byte> data = pattern(2 * kDirectAlignment + 100);
  File out = File::create(path_, GetParam());
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, 4 * kDirectAlignment));
  const std::unique_ptr<std::byte, decltype(&std::free)> owner(memory, &std::free);
  std::copy(data.begin(), data.end(), memory);
  out.write(0, {memory, 2 * kDirectAlignment});
  out.write(2 * kDirectAlignment, {memory + 2 * kDirectAlignment, 100});
  out.sync();

  std::fill(memory, memory + 4 * kDirectAlignment, std::byte{0});
  const File in = File::open_read(path_, GetParam());
  EXPECT_EQ(in.read_to_end(0, {memory, 4 * kDirectAlignment}), data.size());
  EXPECT_TRUE(std::equal(data.begin(), data.end(), memory));
  EXPECT_EQ(in.read_to_end(4 * kDirectAlignment, {memory, kDirectAlignment}), 0u);
}

// Not a multiple of blocks, from where blocks begin: most of it travels directly, the end does not.
TEST_P(FileModes, AlignedMemoryWritesWholeBlocksAndTheUnevenEndInOneRange) {
  const std::vector<std::byte> data = pattern(3 * kDirectAlignment + 100);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, 4 * kDirectAlignment));
  const std::unique_ptr<std::byte, decltype(&std::free)> owner(memory, &std::free);
  std::copy(data.begin(), data.end(), memory);
  File file = File::create(path_, GetParam());
  file.write(kDirectAlignment, {memory, data.size()});
  EXPECT_EQ(file.size(), kDirectAlignment + data.size());
  std::fill(memory, memory + 4 * kDirectAlignment, std::byte{0});
  file.read(kDirectAlignment, {memory, data.size() - 50});
  EXPECT_TRUE(std::equal(data.begin(), data.end() - 50, memory));
  EXPECT_EQ(memory[data.size() - 50], std::byte{0});
  EXPECT_EQ(file.read_to_end(2 * kDirectAlignment, {memory, 4 * kDirectAlignment - 1}), 2 * kDirectAlignment + 100);
  EXPECT_TRUE(std::equal(data.begin() + kDirectAlignment, data.end(), memory));
}

TEST_P(FileModes, ThreadsWriteRangesOfTheirOwn) {
  constexpr size_t kThreads = 4, kBytes = 3 * kDirectAlignment;
  const std::vector<std::byte> data = pattern(kThreads * kBytes);
  File out = File::create(path_, GetParam());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { out.write(i * kBytes, std::span(data).subspan(i * kBytes, kBytes)); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::byte> found(data.size());
  out.read(0, found);
  EXPECT_EQ(found, data);
}

TEST_P(FileModes, ReadingPastTheEndNamesFileOffsetAndBytes) {
  File file = File::create(path_, GetParam());
  file.write(0, pattern(10));
  std::vector<std::byte> found(8);
  EXPECT_TRUE(fails_with<DeviceError>([&] { file.read(5, found); },
                                      "data: found 5 bytes at offset 5, expected 8: the file ends there"));
}

TEST_P(FileModes, AllocatedFilesHaveTheirSizeAndReadAsZeros) {
  File file = File::create(path_, GetParam());
  file.allocate(10000);
  EXPECT_EQ(file.size(), 10000u);
  std::vector<std::byte> found(4, std::byte{1});
  file.read(9996, found);
  EXPECT_EQ(found, std::vector<std::byte>(4));
}

TEST_P(FileModes, AFailedWriteNamesFileOffsetAndBytes) {
  const auto restore = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limit{.rlim_cur = kDirectAlignment, .rlim_max = before.rlim_max};
  File file = File::create(path_, GetParam());
  setrlimit(RLIMIT_FSIZE, &limit);
  EXPECT_TRUE(fails_with<DeviceError>([&] { file.write(0, pattern(kDirectAlignment + 5)); },
                                      "data: cannot write 5 bytes at offset 4096: File too large"));
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, restore);
}

TEST(File, MissingInputIsTheUsersError) {
  EXPECT_TRUE(fails_with<UserError>([] { File::open_read("/nowhere/x", IoMode::Buffered); },
                                    "/nowhere/x: cannot open: No such file or directory"));
  EXPECT_TRUE(fails_with<UserError>([] { File::create("/nowhere/x", IoMode::Direct); }, "cannot create"));
  EXPECT_TRUE(fails_with<UserError>([] { File::open_read("/", IoMode::Buffered); }, "not a file"));
  EXPECT_TRUE(fails_with<UserError>([] { File::open_read("/dev/null", IoMode::Buffered); }, "not a file"));
}

TEST(File, ARelativePathThatIsNotThereIsNamedAsAWhole) {
  const std::string whole = (std::filesystem::current_path() / "nowhere/x").string();
  EXPECT_TRUE(fails_with<UserError>([] { File::open_read("./nowhere/x", IoMode::Buffered); },
                                    "./nowhere/x: cannot open: No such file or directory (looked for at " + whole +
                                        ": a relative path begins in the working folder)"));
  EXPECT_FALSE(fails_with<UserError>([] { File::open_read("/nowhere/x", IoMode::Buffered); }, "looked for at"));
}

TEST(File, AGitLfsPointerIsNotTheFile) {
  const TempDirectory directory;
  const auto path = directory.path() / "model.safetensors";
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '3') + "\nsize 4937253\n";
  write_text(path, pointer);
  for (const IoMode mode : {IoMode::Buffered, IoMode::Direct})
    EXPECT_TRUE(fails_with<UserError>([&] { File::open_read(path, mode); },
                                      "is a Git LFS pointer, the file itself (4937253 bytes) was not fetched"));
  write_text(path, pointer.substr(0, 60));
  EXPECT_TRUE(fails_with<UserError>([&] { read_text(path, 1000); }, "(an unknown number of bytes)"));
  write_text(path, "a text that speaks of https://git-lfs.github.com/spec/v1\n");
  EXPECT_NO_THROW(read_text(path, 1000));
}

TEST(File, ALinkToNothingIsNamed) {
  const TempDirectory directory;
  fs::create_symlink("../blobs/12", directory.path() / "config.json");
  EXPECT_TRUE(fails_with<UserError>([&] { read_text(directory.path() / "config.json", 1000); },
                                    "is a link to '../blobs/12', where nothing is"));
}

TEST(File, MovingHandsOverTheDescriptor) {
  const TempDirectory directory;
  File a = File::create(directory.path() / "a", IoMode::Buffered);
  a.write(0, pattern(3));
  File b = std::move(a);
  EXPECT_EQ(b.size(), 3u);
  b = File::create(directory.path() / "b", IoMode::Buffered);
  EXPECT_EQ(b.size(), 0u);
}

TEST(ReadText, RefusesFilesAboveTheLimit) {
  const TempDirectory directory;
  write_text(directory.path() / "x", "hello");
  EXPECT_EQ(read_text(directory.path() / "x", 5), "hello");
  EXPECT_TRUE(
      fails_with<UserError>([&] { read_text(directory.path() / "x", 4); }, "found 5 bytes, expected at most 4"));
}

TEST(WriteText, ReplacesAndLeavesNothingElse) {
  const TempDirectory directory;
  write_text(directory.path() / "x", "a longer text");
  write_text(directory.path() / "x", "short");
  EXPECT_EQ(read_text(directory.path() / "x", 100), "short");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), fs::directory_iterator()), 1);
}

TEST(PendingFile, UnpublishedLeavesTheOldFileAndNoTrace) {
  const TempDirectory directory;
  const fs::path path = directory.path() / "x";
  write_text(path, "old");
  {
    PendingFile pending(path, IoMode::Direct);
    pending.file().write(0, pattern(100));
  }
  EXPECT_EQ(read_text(path, 100), "old");
  EXPECT_FALSE(fs::exists(directory.path() / "x.partial"));
}

TEST(PendingDirectory, AppearsWholeOrNotAtAll) {
  const TempDirectory directory;
  const fs::path path = directory.path() / "new" / "model";
  {
    const PendingDirectory abandoned(path, Existing::Refuse);
    write_text(abandoned.path() / "x", "1");
  }
  EXPECT_FALSE(fs::exists(path));
  PendingDirectory pending(path / "", Existing::Refuse);  // a slash at the end names the same directory
  write_text(pending.path() / "x", "2");
  fs::create_directory(pending.path() / "deep");
  write_text(pending.path() / "deep" / "y", "3");
  EXPECT_FALSE(fs::exists(path));
  pending.publish();
  EXPECT_EQ(read_text(path / "x", 9), "2");
  EXPECT_EQ(read_text(path / "deep" / "y", 9), "3");
  EXPECT_FALSE(fs::exists(directory.path() / "new" / "model.partial"));
}

TEST(PendingDirectory, RefusesANameThatIsTakenUnlessItIsEmpty) {
  const TempDirectory directory;
  const fs::path path = directory.path() / "model";
  fs::create_directory(path);
  PendingDirectory(path, Existing::Refuse).publish();
  write_text(path / "x", "1");
  EXPECT_TRUE(fails_with<UserError>([&] { PendingDirectory(path, Existing::Refuse); }, "exists already"));
}

TEST(PendingDirectory, ReplacesAndForgetsWhatAKilledProcessLeft) {
  const TempDirectory directory;
  const fs::path path = directory.path() / "model";
  fs::create_directories(directory.path() / "model.partial");
  write_text(directory.path() / "model.partial" / "stale", "1");
  fs::create_directory(path);
  write_text(path / "old", "1");
  PendingDirectory pending(path, Existing::Replace);
  write_text(pending.path() / "new", "1");
  pending.publish();
  EXPECT_TRUE(fs::exists(path / "new"));
  EXPECT_FALSE(fs::exists(path / "old"));
  EXPECT_FALSE(fs::exists(path / "stale"));
  EXPECT_FALSE(fs::exists(directory.path() / "model.old"));
}

TEST(PendingFile, WritesWhatALinkNamesAndNoDevice) {
  const TempDirectory directory;
  std::filesystem::create_symlink("target", directory.path() / "link");
  write_text(directory.path() / "link", "text");
  EXPECT_TRUE(std::filesystem::is_symlink(directory.path() / "link"));
  EXPECT_EQ(read_text(directory.path() / "target", 100), "text");
  ASSERT_EQ(mkfifo((directory.path() / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(fails_with<UserError>([&] { write_text(directory.path() / "pipe", "text"); }, "pipe: found a device"));
  EXPECT_TRUE(fails_with<UserError>([&] { write_text(directory.path(), "text"); }, "found a directory"));
}

}  // namespace
}  // namespace snug
