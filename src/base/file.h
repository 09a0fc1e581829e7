// Reads and writes ranges of files, past the page cache where the file system allows it, and publishes names only when
// what they name is complete and on disk.
//
// Throws UserError for a path that is missing, unreadable, too large or in the way, and DeviceError with path, offset
// and bytes if reading, writing or syncing failed (the message tells of a full disk).
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

// Says how ranges of a file are read and written. Direct: past the page cache (O_DIRECT), because control groups charge
// cached pages to the process; where that is refused, through the cache with pages dropped behind. Buffered: the
// ordinary way, for small files and headers.
enum class IoMode { Buffered, Direct };

// A range whose offset and memory are multiples of this goes direct as far as its length is one too; the rest, and
// other ranges, go through the page cache, with equal results.
constexpr uint64_t kDirectAlignment = 4096;

// Holds an open file. One thread may move or close it; any number may read and write ranges of it at once, except
// writes that are summed (start_checksum()). Direct ranges of several MiB are cut into requests that are in flight
// together (base/io_ring.h), on a ring that each thread makes at its first such range; beyond that, reading and writing
// allocates nothing.
class File {
 public:
  static File open_read(const std::filesystem::path& path, IoMode mode);
  // Opens a file that there is, for reading and writing.
  static File open_write(const std::filesystem::path& path, IoMode mode);
  // Makes a file without a name in a directory, for reading and writing; it is gone with its last descriptor.
  static File create_unnamed(const std::filesystem::path& directory, IoMode mode);
  // Makes an empty file for reading and writing; a file that had that name is cut to nothing.
  static File create(const std::filesystem::path& path, IoMode mode);

  File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  const std::filesystem::path& path() const { return path_; }
  // Returns whether aligned ranges bypass the page cache: that was asked for, and the file system grants it.
  bool direct() const { return direct_ >= 0; }
  uint64_t size() const;

  // Fills all of `out` from `offset`; throws DeviceError if the file ends before.
  void read(uint64_t offset, std::span<std::byte> out) const;
  // Has the system read all of the file into its page cache, without waiting for that.
  void read_ahead() const;
  // Reads as read() does, but the file may end inside the range, as with aligned ranges that reach past the end.
  // Returns the bytes read.
  uint64_t read_to_end(uint64_t offset, std::span<std::byte> out) const;
  // Writes all of `bytes` at `offset`; the file grows as needed.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  // Makes the file `bytes` long and reserves its blocks, so that a full disk shows now and not while writing.
  void allocate(uint64_t bytes, const Heartbeat& heartbeat = {});
  // Cuts or extends the file, without reserving.
  void resize(uint64_t bytes);
  // From here on writes must go from the file's start to its end without a gap, and checksum() covers all of them.
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

// Returns whether the path names a regular file, through links; false for a path that cannot be looked at.
bool is_file(const std::filesystem::path& path);
// Returns the checksum (XXH3, 64 bits) of a whole file, as File::checksum() does. Buffered suits a file that is read
// again right after.
uint64_t file_checksum(const std::filesystem::path& path, const Heartbeat& heartbeat = {},
                       IoMode mode = IoMode::Direct);
// Returns a whole small file. Throws UserError if it holds more than `max_bytes`.
std::string read_text(const std::filesystem::path& path, uint64_t max_bytes);
// Replaces or makes a small file in one step: readers see the old text or the new, never a part.
void write_text(const std::filesystem::path& path, std::string_view text);

// Returns where a file lies that is written under a name: what a link names, else the name itself. Throws UserError
// where a directory, a device, a pipe or a socket lies there.
std::filesystem::path place_of_file(const std::filesystem::path& path);

// Holds a file that has the name `<path>.partial` until publish() has synced and renamed it; an existing file is
// replaced, also where a link names it. If it is not published, the destructor removes it. Throws UserError as
// place_of_file() does.
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

// Says what publish() does with a directory that already has the name.
enum class Existing { Refuse, Replace };

// Returns the name of a file or directory until it is published: `<path>.partial`.
std::filesystem::path partial_name(const std::filesystem::path& path);

// Holds a directory that has the name `<path>.partial` until publish() has synced every file in it and renamed it. A
// `.partial` left by a killed process is emptied first; throws UserError if another process is still writing it, as its
// lock says. With Refuse the constructor throws UserError if `path` exists and is not an empty directory. With Replace
// what has the name is removed after the new directory has taken its place in one step. If it is not published, the
// destructor removes it.
class PendingDirectory {
 public:
  PendingDirectory(const std::filesystem::path& path, Existing existing);
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  // Returns where to write until publish().
  const std::filesystem::path& path() const { return partial_; }
  void publish();

 private:
  void lock();

  std::filesystem::path path_, partial_;
  Existing existing_;
  // Descriptors of the directory, and of what had its name before, locked by flock() where their file system can.
  int lock_ = -1, replaced_ = -1;
  bool published_ = false;
};

}  // namespace snug
