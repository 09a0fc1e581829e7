#include <array>
#include <cstring>
#include <memory>

#include "base/disk.h"
#include "base/file.h"
#include "measure/measure.h"

namespace snug {
namespace {

constexpr uint64_t kFile = 256u << 20, kRange = 8u << 20;

// Holds a range of the file, aligned for direct I/O.
struct alignas(kDirectAlignment) Range {
  std::array<std::byte, kRange> bytes;
};

double rate_of(uint64_t bytes, const std::function<void()>& body) {
  const double begin = wall_seconds();
  body();
  return static_cast<double>(bytes) / (wall_seconds() - begin);
}

}  // namespace

Machine::Disk measure_disk(const std::filesystem::path& directory) {
  PendingFile pending(directory / "snug-doctor", IoMode::Direct);  // never published: removed at the end
  File& file = pending.file();
  Machine::Disk disk;
  disk.directory = directory.string();
  disk.direct = file.direct();
  disk.free_bytes = free_bytes(directory);
  const auto range = std::make_unique<Range>();
  std::memset(range->bytes.data(), 0x5a, kRange);
  disk.write = rate_of(kFile, [&] {
    for (uint64_t at = 0; at < kFile; at += kRange) file.write(at, range->bytes);
    file.sync();
  });
  disk.read = rate_of(kFile, [&] {
    for (uint64_t at = 0; at < kFile; at += kRange) file.read(at, range->bytes);
  });
  return disk;
}

}  // namespace snug
