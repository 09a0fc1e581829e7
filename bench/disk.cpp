// The rate of reading and writing a file in several ways: through the page cache, past it one call at a time, and past
// it with several requests in flight.
//
//   disk [directory] [MiB] [MiB of a range] [rounds]        (/tmp, 1024, 32 and 3)
//
// The file's blocks are reserved and written once before, as those of the disk arena are. Ways take turns, round by
// round; the median is shown, with the lowest and the highest. Each ends with everything on disk.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/file.h"
#include "base/io_ring.h"

namespace snug {
namespace {

struct Way {
  std::string name;
  // Moves one range; all of it.
  std::function<void(Transfer, uint64_t offset, std::span<std::byte> range)> move;
  std::vector<double> read, write;  // bytes a second, a round each
};

struct Descriptor {
  Descriptor(const std::filesystem::path& path, int flags) : number(::open(path.c_str(), O_RDWR | flags)) {
    if (number < 0) throw std::runtime_error("cannot open " + path.string());
  }
  ~Descriptor() { ::close(number); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number;
};

void move_by_calls(int descriptor, Transfer transfer, uint64_t offset, std::span<std::byte> range, size_t call) {
  for (size_t at = 0; at < range.size(); at += call) {
    const size_t bytes = std::min(call, range.size() - at);
    const auto place = static_cast<off_t>(offset + at);
    const ssize_t moved = transfer == Transfer::Read ? ::pread(descriptor, range.data() + at, bytes, place)
                                                     : ::pwrite(descriptor, range.data() + at, bytes, place);
    if (moved != static_cast<ssize_t>(bytes)) throw std::runtime_error("a call moved too little");
  }
}

void measure(Way& way, int cached, uint64_t file_bytes, std::span<std::byte> range) {
  for (const Transfer transfer : {Transfer::Write, Transfer::Read}) {
    ::fsync(cached);
    ::posix_fadvise(cached, 0, 0, POSIX_FADV_DONTNEED);
    const auto begin = std::chrono::steady_clock::now();
    for (uint64_t at = 0; at + range.size() <= file_bytes; at += range.size()) way.move(transfer, at, range);
    if (transfer == Transfer::Write) ::fsync(cached);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    (transfer == Transfer::Read ? way.read : way.write).push_back(static_cast<double>(file_bytes) / seconds);
  }
}

std::string summary(std::vector<double> rates) {
  std::ranges::sort(rates);
  return fmt::format("{:8.0f} ({:5.0f} .. {:5.0f})", rates[rates.size() / 2] / 1e6, rates[0] / 1e6, rates.back() / 1e6);
}

struct alignas(kDirectAlignment) Page {
  std::array<std::byte, kDirectAlignment> bytes;
};

int run(const std::filesystem::path& directory, uint64_t file_bytes, size_t range_bytes, int rounds) {
  PendingFile pending(directory / "snug-disk", IoMode::Direct);  // never published: removed at the end
  File& file = pending.file();
  std::vector<Page> memory(range_bytes / sizeof(Page), Page{{std::byte{0x5a}}});
  const std::span<std::byte> range(memory[0].bytes.data(), range_bytes);
  file.allocate(file_bytes);
  for (uint64_t at = 0; at < file_bytes; at += range_bytes) file.write(at, range);
  file.sync();

  const Descriptor cached(file.path(), 0), direct(file.path(), O_DIRECT);
  std::vector<Way> ways;
  auto calls = [&](const std::string& name, int descriptor, size_t call) {
    ways.push_back({name,
                    [=](Transfer transfer, uint64_t offset, std::span<std::byte> part) {
                      move_by_calls(descriptor, transfer, offset, part, call);
                    },
                    {},
                    {}});
  };
  constexpr size_t kMiB = 1 << 20;
  calls("page cache, a call a range", cached.number, range_bytes);
  calls("O_DIRECT, a call a range", direct.number, range_bytes);
  for (const size_t call : {kMiB, 4 * kMiB, 8 * kMiB})
    calls(fmt::format("O_DIRECT, calls of {} MiB", call / kMiB), direct.number, call);
  std::deque<IoRing> rings;
  for (const size_t piece : {kMiB / 4, kMiB, 2 * kMiB, 4 * kMiB})
    for (const unsigned depth : {2u, 4u, 8u, 16u}) {
      IoRing& ring = rings.emplace_back(depth, piece);
      if (!ring.usable()) continue;
      ways.push_back({fmt::format("io_uring, {:5} KiB, {:2} in flight", piece / 1024, depth),
                      [&ring, &direct](Transfer transfer, uint64_t offset, std::span<std::byte> part) {
                        if (ring.move(transfer, direct.number, offset, part.data(), part.size()) != part.size())
                          throw std::runtime_error("a ring moved too little");
                      },
                      {},
                      {}});
    }
  ways.push_back({"File",
                  [&](Transfer transfer, uint64_t offset, std::span<std::byte> part) {
                    transfer == Transfer::Read ? file.read(offset, part) : file.write(offset, part);
                  },
                  {},
                  {}});
  for (int round = 0; round < rounds; round++)
    for (Way& way : ways) measure(way, cached.number, file_bytes, range);
  fmt::print("{} MiB in ranges of {} MiB, {} rounds{}\n{:36} {:>24} {:>24}\n", file_bytes >> 20, range_bytes >> 20,
             rounds, file.direct() ? "" : "; no O_DIRECT here", "MB/s", "write", "read");
  for (const Way& way : ways) fmt::print("{:36} {:>24} {:>24}\n", way.name, summary(way.write), summary(way.read));
  return 0;
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const auto range = static_cast<size_t>(number(3, 32)) << 20;
  return snug::run(argc > 1 ? argv[1] : "/tmp", static_cast<uint64_t>(number(2, 1024)) << 20, range, number(4, 3));
}
