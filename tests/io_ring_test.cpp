#include "base/io_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

constexpr size_t kPage = kDirectAlignment;
constexpr size_t kRange = 5 * IoRing::kPiece + 3 * kPage;  // more pieces than one, the last a short one

class Memory {
 public:
  explicit Memory(size_t bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage)), &std::free),
        bytes_(bytes) {}
  std::span<std::byte> span() { return {data_.get(), bytes_}; }
  Memory& number(uint64_t seed) {
    for (size_t i = 0; i < bytes_; i++) data_.get()[i] = static_cast<std::byte>((i * 7 + i / 251 + seed) & 255);
    return *this;
  }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
  size_t bytes_;
};

bool same(std::span<std::byte> a, std::span<std::byte> b) { return std::ranges::equal(a, b); }

class Ring : public testing::Test {
 protected:
  void SetUp() override {
    if (!IoRing().usable()) GTEST_SKIP() << "io_uring is refused here";
  }
  // An open file of so many numbered bytes.
  int numbered(size_t bytes) {
    File file = File::create(path_, IoMode::Buffered);
    file.write(0, Memory(bytes).number(0).span());
    descriptor_ = ::open(path_.c_str(), O_RDWR);
    return descriptor_;
  }
  ~Ring() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  TempDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "data";
  int descriptor_ = -1;
};

TEST_F(Ring, MovesEveryPieceToItsPlaceAtEveryDepth) {
  const int file = numbered(1 << 20);
  for (const unsigned depth : {1u, 2u, 3u, 8u})
    for (const size_t bytes : {size_t{1}, size_t{999}, size_t{1000}, size_t{1001}, size_t{77'777}}) {
      IoRing ring(depth, 1000);
      Memory out(bytes), in(bytes);
      ASSERT_EQ(ring.move(Transfer::Write, file, 4321, out.number(bytes).span().data(), bytes), bytes);
      ASSERT_EQ(ring.move(Transfer::Read, file, 4321, in.span().data(), bytes), bytes);
      ASSERT_TRUE(same(in.span(), out.span())) << depth << " in flight, " << bytes << " bytes";
    }
}

TEST_F(Ring, StopsWhereTheFileEndsOrARequestFails) {
  const int file = numbered(2500);
  IoRing ring(4, 1000);
  Memory memory(9000), expected(2500);
  EXPECT_EQ(ring.move(Transfer::Read, file, 0, memory.span().data(), 9000), 2500u);
  EXPECT_TRUE(same(memory.span().first(2500), expected.number(0).span()));
  EXPECT_EQ(ring.move(Transfer::Read, file, 9999, memory.span().data(), 9000), 0u);
  EXPECT_EQ(ring.move(Transfer::Read, -1, 0, memory.span().data(), 9000), 0u);
  EXPECT_EQ(ring.move(Transfer::Read, file, 0, memory.span().data(), 2500), 2500u);  // and goes on being of use
}

// Allows all system calls but io_uring's, in this thread, as containers do.
bool forbid_io_uring() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),  // the call's number
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_io_uring_setup, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_io_uring_register, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

void write_and_read_back(const std::filesystem::path& path) {
  Memory out(kRange), in(kRange);
  File file = File::create(path, IoMode::Direct);
  file.write(kPage, out.number(3).span());
  file.read(kPage, in.span());
  EXPECT_TRUE(same(in.span(), out.span()));
  EXPECT_EQ(file.read_to_end(2 * kPage, in.span()), kRange - kPage);
  EXPECT_TRUE(same(in.span().first(kRange - kPage), out.span().subspan(kPage)));
}

TEST(LargeRanges, ComeBackAsWrittenWithAndWithoutIoUring) {
  const TempDirectory directory;
  write_and_read_back(directory.path() / "with");
  std::thread([&] {
    IoRing early;  // made while it was permitted still
    if (!forbid_io_uring()) return;
    EXPECT_FALSE(IoRing().usable());
    Memory memory(kPage);
    EXPECT_EQ(early.move(Transfer::Write, 1, 0, memory.span().data(), kPage), 0u);
    EXPECT_FALSE(early.usable());
    write_and_read_back(directory.path() / "without");
  }).join();
}

TEST(LargeRanges, AreMovedByManyThreadsAtOnce) {
  const TempDirectory directory;
  File file = File::create(directory.path() / "data", IoMode::Direct);
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 3; i++)
    threads.emplace_back([&, i] {
      Memory out(kRange), in(kRange);
      for (uint64_t turn = 0; turn < 3; turn++) {
        file.write(i * kRange, out.number(i + turn).span());
        file.read(i * kRange, in.span());
        EXPECT_TRUE(same(in.span(), out.span()));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(LargeRanges, ThatFailNameFileOffsetBytesAndReason) {
  const TempDirectory directory;
  const std::filesystem::path path = directory.path() / "data";
  File::create(path, IoMode::Direct).resize(kRange);
  Memory memory(kRange + kPage);
  File file = File::open_read(path, IoMode::Direct);
  EXPECT_TRUE(fails_with<DeviceError>(
      [&] { file.read(0, memory.span()); },
      fmt::format("data: found {} bytes at offset 0, expected {}: the file ends there", kRange, kRange + kPage)));
  EXPECT_TRUE(fails_with<DeviceError>(
      [&] { file.write(kPage, memory.span()); },
      fmt::format("data: cannot write {} bytes at offset {}: Bad file descriptor", kRange + kPage, kPage)));
}

}  // namespace
}  // namespace snug
