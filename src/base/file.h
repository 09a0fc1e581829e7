// Files: ranged reads and writes past the page cache where the file system allows it, and names that appear only when
// what they name is complete and on disk.
//
// UserError: a path that is missing, unreadable, too large or in the way. DeviceError: reading, writing or syncing
// failed (a full disk is said so), with path, offset and bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/heartbeat.h"

namespace snug {

// How a file's ranges travel. Direct: past the page cache (O_DIRECT), because cached pages are charged to the process
// by control groups; where that is refused, through the cache with pages dropped behind. Buffered: the ordinary way,
// for small files and headers.
enum class IoMode { Buffered, Direct };

// Of a range whose offset and memory are multiples of this, as much as is one too travels directly; the rest, and other
// ranges, go through the page cache, with the same result.
constexpr uint64_t kDirectAlignment = 4096;

// An open file. One thread may move or close it; any number may read and write ranges of it at once, but for the writes
// that are summed (start_checksum()). Direct ranges of several MiB are cut into requests that are in flight together
// (base/io_ring.h), on a ring that each thread makes at its first such range; beyond that, reading and writing
// allocates nothing.
class File {
 public:
  static File open_read(const std::filesystem::path& path, IoMode mode);
  // A file without a name in a directory, for reading and writing: it goes with the last descriptor.
  static File create_unnamed(const std::filesystem::path& directory, IoMode mode);
  // An empty file for reading and writing; what had that name is cut to nothing.
  static File create(const std::filesystem::path& path, IoMode mode);

  File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::filesystem::path& path() const { return path_; }
  // Whether aligned ranges really bypass the page cache: asked for, and granted by the file system.
  bool direct() const { return direct_ >= 0; }
  uint64_t size() const;

  // Fills all of `out` from `offset`; DeviceError if the file ends before.
  void read(uint64_t offset, std::span<std::byte> out) const;
  // As read(), but the file may end inside the range: returns the bytes read. For aligned ranges that reach past the
  // end.
  uint64_t read_to_end(uint64_t offset, std::span<std::byte> out) const;
  // Writes all of `bytes` at `offset`; the file grows as needed.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  // Makes the file `bytes` long and reserves its blocks, so that a full disk shows now and not while writing.
  void allocate(uint64_t bytes, const Heartbeat& heartbeat = {});
  // Cuts or extends the file, without reserving.
  void resize(uint64_t bytes);
  // From here on writes go from the file's start to its end without a gap, and checksum() is of all that was written.
  void start_checksum();
  uint64_t checksum() const;
  // Returns when everything written is on disk.
  void sync();

 private:
  File(std::filesystem::path path, int flags, IoMode mode);
  void close();
  struct Checksum;
  size_t direct_bytes(uint64_t offset, const void* data, size_t bytes) const;
  void drop_pages(uint64_t offset, uint64_t bytes, bool written) const;

  std::filesystem::path path_;
  int cached_ = -1;  // descriptor through the page cache, always open
  int direct_ = -1;  // descriptor with O_DIRECT, or -1
  IoMode mode_ = IoMode::Buffered;
  std::unique_ptr<Checksum> checksum_;
};

// Whether the path names a regular file, through links. A path that cannot be looked at is not there.
bool is_file(const std::filesystem::path& path);
// The checksum (XXH3, 64 bits) of a whole file, as File::checksum() gives it. Buffered suits a file that is read again
// right after.
uint64_t file_checksum(const std::filesystem::path& path, const Heartbeat& heartbeat = {},
                       IoMode mode = IoMode::Direct);
// A whole small file. UserError if it holds more than `max_bytes`.
std::string read_text(const std::filesystem::path& path, uint64_t max_bytes);
// Replaces or makes a small file in one step: readers see the old text or the new, never a part.
void write_text(const std::filesystem::path& path, std::string_view text);

// Where a file lies that is written under a name: what a link names, else the name itself. UserError where a directory,
// a device, a pipe or a socket lies there.
std::filesystem::path place_of_file(const std::filesystem::path& path);

// A file that bears `<path>.partial` until publish() has synced it and renamed it; an existing file is replaced, also
// where a link names it. Unpublished, it is removed by the destructor. UserError as place_of_file() has it.
class PendingFile {
 public:
  PendingFile(const std::filesystem::path& path, IoMode mode);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  File& file() { return file_; }
  void publish();

 private:
  std::filesystem::path path_;
  File file_;
  bool published_ = false;
};

// What publish() does with a directory that already has the name.
enum class Existing { Refuse, Replace };

// The name that a file or directory bears until it is published: `<path>.partial`.
std::filesystem::path partial_name(const std::filesystem::path& path);

// A directory that bears `<path>.partial` until publish() has synced every file in it and renamed it. A `.partial` left
// by a killed process is emptied first; UserError where another process is still writing it, as its lock says. Refuse:
// UserError at construction if `path` exists and is not an empty directory. Replace: what has the name is removed after
// the new directory has taken its place in one step. Unpublished, it is removed by the destructor.
class PendingDirectory {
 public:
  PendingDirectory(const std::filesystem::path& path, Existing existing);
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  // Where to write until publish().
  const std::filesystem::path& path() const { return partial_; }
  void publish();

 private:
  void lock();

  std::filesystem::path path_, partial_;
  Existing existing_;
  // The directory, and what had its name before, locked by flock() where their file system can.
  int lock_ = -1, replaced_ = -1;
  bool published_ = false;
};

}  // namespace snug
