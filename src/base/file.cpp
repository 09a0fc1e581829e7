#include "base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/io_ring.h"
#include "base/looked_at.h"
#include "base/option_name.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

// A single pread or pwrite moves at most this many bytes, whatever the kernel's own limit.
constexpr size_t kMaxCallBytes = size_t{1} << 30;
// Written ranges at least this long are flushed and dropped at once, shorter ones by sync().
constexpr uint64_t kDropBytes = uint64_t{1} << 20;

std::string error_text(int error) {
  if (error == ENOSPC) return "the disk is full; free some of it or choose a directory on another one";
  if (error == EDQUOT) return "the disk quota is used up; free some of it or choose a directory on another disk";
  if (error == EMFILE) return "too many open files for this process (ulimit -n says how many it may have)";
  if (error == EFBIG) return "File too large, for its file system or a limit of the process (ulimit -f)";
  return std::error_code(error, std::generic_category()).message();
}

bool is_users_error(int error) {
  return error == ENOENT || error == ENOTDIR || error == EISDIR || error == EACCES || error == EPERM ||
         error == EEXIST || error == EROFS || error == ELOOP || error == ENAMETOOLONG || error == ENOTEMPTY;
}

// Throws the error of an operation on a name: the user's if the name is at fault, else the machine's.
[[noreturn]] void name_error(std::string_view action, const fs::path& path, int error) {
  std::error_code ignored;
  if (error == ENOENT && fs::is_symlink(path, ignored))
    user_error("{}: cannot {}: it is a link to '{}', where nothing is", path.string(), action,
               fs::read_symlink(path, ignored).string());
  if (is_users_error(error))
    user_error("{}: cannot {}: {}{}", path.string(), action, error_text(error), error == ENOENT ? looked_at(path) : "");
  device_error("{}: cannot {}: {}", path.string(), action, error_text(error));
}

int open_descriptor(const fs::path& path, int flags) {
  int descriptor;
  do descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

// Returns whether direct reads work. Some file systems accept O_DIRECT when opening and refuse it when reading, so one
// block is read to find out.
bool reads_directly(int descriptor) {
  const std::unique_ptr<void, decltype(&::free)> block(::aligned_alloc(kDirectAlignment, kDirectAlignment), &::free);
  return block && ::pread(descriptor, block.get(), kDirectAlignment, 0) >= 0;
}

// Moves a range of several pieces through the thread's ring. Returns the bytes moved; the rest is for single calls.
size_t in_pieces(Transfer transfer, int descriptor, uint64_t offset, std::byte* data, size_t bytes) {
  if (bytes <= IoRing::kPiece) return 0;
  return IoRing::of_this_thread().move(transfer, descriptor, offset, data, bytes);
}

// Returns how many bytes of a range's whole blocks may go direct, after `done` bytes: a transfer that stopped between
// blocks has met the end of the file, and what is left, if anything, goes through the cache.
size_t within_blocks(size_t done, size_t whole) {
  const size_t into_block = done % kDirectAlignment;
  return into_block == 0 ? whole : std::min(whole, done - into_block);
}

// Refuses what Git LFS leaves in place of a file that was not fetched: a few lines of text. Format:
// https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
void refuse_lfs_pointer(const File& file) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/", kSize = "\nsize ";
  constexpr uint64_t kMaxPointerBytes = 1024;
  const uint64_t bytes = file.size();
  if (bytes < kBegin.size() || bytes >= kMaxPointerBytes) return;
  std::string text(bytes, '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  if (!text.starts_with(kBegin)) return;
  const size_t at = text.find(kSize);
  const std::string_view rest = at == text.npos ? "" : std::string_view(text).substr(at + kSize.size());
  const std::string_view size = rest.substr(0, std::min(rest.find_first_not_of("0123456789"), rest.size()));
  user_error(
      "{}: is a Git LFS pointer, the file itself ({} bytes) was not fetched; 'git lfs pull' or a download gets it",
      file.path().string(), size.empty() ? "an unknown number of" : size);
}

void sync_path(const fs::path& path) {
  const int descriptor = open_descriptor(path, O_RDONLY);
  if (descriptor < 0) name_error("open to sync", path, errno);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  if (result != 0) device_error("{}: cannot sync: {}", path.string(), error_text(error));
}

void sync_parent(const fs::path& path) {
  const fs::path parent = path.parent_path();
  sync_path(parent.empty() ? fs::path(".") : parent);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) name_error("rename to " + to.string(), from, errno);
}

// Swaps two names in one step. On file systems that cannot, `to` is removed first: a kill between leaves it missing.
void exchange_paths(const fs::path& from, const fs::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) name_error("exchange with " + to.string(), from, errno);
  std::error_code error;
  fs::remove_all(to, error);
  rename_path(from, to);
}

fs::path with_suffix(const fs::path& path, const char* suffix) {
  fs::path name = path.has_filename() ? path : path.parent_path();  // "out/" names the directory "out"
  name += suffix;
  return name;
}

void check_range(const fs::path& path, uint64_t offset, uint64_t bytes) {
  const auto limit = static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  check(offset <= limit && bytes <= limit - offset, "{}: {} bytes at offset {} lie beyond any file", path.string(),
        bytes, offset);
}

}  // namespace

File::File(fs::path path, int flags, IoMode mode) : path_(std::move(path)), mode_(mode) {
  cached_ = open_descriptor(path_, flags | O_NONBLOCK);  // a pipe would wait for its other end; a file does not
  if (cached_ < 0) name_error(flags & O_CREAT ? "create" : "open", path_, errno);
  struct stat status;
  if (::fstat(cached_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close();
    user_error("{}: found something that is not a file, expected a file", path_.string());
  }
  if (mode == IoMode::Buffered) return;
  // Ranges come in any order and are dropped behind, so reading ahead would only add charged pages.
  ::posix_fadvise(cached_, 0, 0, POSIX_FADV_RANDOM);
  direct_ = open_descriptor(path_, (flags & ~(O_CREAT | O_TRUNC)) | O_DIRECT);
  if (direct_ >= 0 && !reads_directly(direct_)) {
    ::close(direct_);
    direct_ = -1;
  }
}

File File::open_read(const fs::path& path, IoMode mode) {
  File file(path, O_RDONLY, mode);
  refuse_lfs_pointer(file);
  return file;
}

File File::open_write(const fs::path& path, IoMode mode) { return File(path, O_RDWR, mode); }

File File::create_unnamed(const fs::path& directory, IoMode mode) {
  std::string name = directory / ".snug-XXXXXX";
  const int descriptor = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor < 0) name_error("make a file in it", directory, errno);
  ::close(descriptor);
  File file(name, O_RDWR, mode);
  ::unlink(name.c_str());
  return file;
}

File File::create(const fs::path& path, IoMode mode) { return File(path, O_RDWR | O_CREAT | O_TRUNC, mode); }

struct File::Checksum {
  Checksum() : state(XXH3_createState()) { XXH3_64bits_reset(state); }
  ~Checksum() { XXH3_freeState(state); }
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  XXH3_state_t* state;
  uint64_t next = 0;  // offset
};

File::File() = default;
File::File(File&& other) noexcept { *this = std::move(other); }

File& File::operator=(File&& other) noexcept {
  if (this == &other) return *this;
  close();
  path_ = std::move(other.path_);
  cached_ = std::exchange(other.cached_, -1);
  direct_ = std::exchange(other.direct_, -1);
  mode_ = other.mode_;
  checksum_ = std::move(other.checksum_);
  return *this;
}

void File::start_checksum() { checksum_ = std::make_unique<Checksum>(); }
uint64_t File::checksum() const { return XXH3_64bits_digest(checksum_->state); }

File::~File() { close(); }

void File::close() {
  if (cached_ >= 0) ::close(cached_);
  if (direct_ >= 0) ::close(direct_);
  cached_ = direct_ = -1;
}

uint64_t File::size() const {
  struct stat status;
  if (::fstat(cached_, &status) != 0) device_error("{}: cannot find its size: {}", path_.string(), error_text(errno));
  return static_cast<uint64_t>(status.st_size);
}

size_t File::direct_bytes(uint64_t offset, const void* data, size_t bytes) const {
  const bool aligned =
      offset % kDirectAlignment == 0 && reinterpret_cast<uintptr_t>(data) % kDirectAlignment == 0 && direct();
  return aligned ? bytes - bytes % kDirectAlignment : 0;
}

void File::drop_pages(uint64_t offset, uint64_t bytes, bool written) const {
  if (written) {
    if (bytes < kDropBytes) return;
    ::sync_file_range(cached_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  }
  ::posix_fadvise(cached_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

uint64_t File::read_to_end(uint64_t offset, std::span<std::byte> out) const {
  check_range(path_, offset, out.size());
  size_t whole = direct_bytes(offset, out.data(), out.size());
  size_t done = in_pieces(Transfer::Read, direct_, offset, out.data(), whole);
  while (done < out.size()) {
    whole = within_blocks(done, whole);
    const bool directly = done < whole;
    const size_t bytes = (directly ? whole : out.size()) - done;
    const ssize_t count = ::pread(directly ? direct_ : cached_, out.data() + done, std::min(bytes, kMaxCallBytes),
                                  static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      device_error("{}: cannot read {} bytes at offset {}: {}", path_.string(), out.size() - done, offset + done,
                   error_text(errno));
    }
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  if (mode_ == IoMode::Direct && whole < out.size()) drop_pages(offset + whole, out.size() - whole, /*written=*/false);
  return done;
}

void File::read(uint64_t offset, std::span<std::byte> out) const {
  const uint64_t found = read_to_end(offset, out);
  if (found != out.size()) {
    device_error("{}: found {} bytes at offset {}, expected {}: the file ends there", path_.string(), found, offset,
                 out.size());
  }
}

void File::write(uint64_t offset, std::span<const std::byte> bytes) {
  check_range(path_, offset, bytes.size());
  if (checksum_) {
    check(offset == checksum_->next, "{}: written at {}, expected {}", path_.string(), offset, checksum_->next);
    XXH3_64bits_update(checksum_->state, bytes.data(), bytes.size());
    checksum_->next = offset + bytes.size();
  }
  size_t whole = direct_bytes(offset, bytes.data(), bytes.size());
  // The ring's requests take memory that is not const, for reading and writing.
  size_t done = in_pieces(Transfer::Write, direct_, offset, const_cast<std::byte*>(bytes.data()), whole);
  while (done < bytes.size()) {
    whole = within_blocks(done, whole);
    const bool directly = done < whole;
    const size_t part = (directly ? whole : bytes.size()) - done;
    const ssize_t count = ::pwrite(directly ? direct_ : cached_, bytes.data() + done, std::min(part, kMaxCallBytes),
                                   static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      device_error("{}: cannot write {} bytes at offset {}: {}", path_.string(), bytes.size() - done, offset + done,
                   error_text(errno));
    }
    done += static_cast<size_t>(count);
  }
  if (mode_ == IoMode::Direct && whole < bytes.size())
    drop_pages(offset + whole, bytes.size() - whole, /*written=*/true);
}

void File::allocate(uint64_t bytes, const Heartbeat& heartbeat) {
  check_range(path_, 0, bytes);
  resize(bytes);
  // Where the file system cannot reserve, the library writes to every block.
  for (uint64_t at = 0; at < bytes; at += kMaxCallBytes) {
    const uint64_t part = std::min<uint64_t>(kMaxCallBytes, bytes - at);
    int error;
    do error = ::posix_fallocate(cached_, static_cast<off_t>(at), static_cast<off_t>(part));
    while (error == EINTR);
    if (error != 0 && error != EOPNOTSUPP && error != EINVAL)
      device_error("{}: cannot reserve {} bytes: {}", path_.string(), bytes, error_text(error));
    call(heartbeat);
  }
}

void File::resize(uint64_t bytes) {
  check_range(path_, 0, bytes);
  if (::ftruncate(cached_, static_cast<off_t>(bytes)) != 0) {
    device_error("{}: cannot make it {} bytes long: {}", path_.string(), bytes, error_text(errno));
  }
}

void File::sync() {
  if (::fsync(cached_) != 0) device_error("{}: cannot sync: {}", path_.string(), error_text(errno));
  if (mode_ == IoMode::Direct) ::posix_fadvise(cached_, 0, 0, POSIX_FADV_DONTNEED);
}

void File::read_ahead() const { ::posix_fadvise(cached_, 0, 0, POSIX_FADV_WILLNEED); }

fs::path partial_name(const fs::path& path) { return with_suffix(path, ".partial"); }

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

uint64_t file_checksum(const fs::path& path, const Heartbeat& heartbeat, IoMode mode) {
  constexpr size_t kBlock = size_t{8} << 20;
  const File file = File::open_read(path, mode);
  const std::unique_ptr<std::byte, decltype(&::free)> block(
      static_cast<std::byte*>(::aligned_alloc(kDirectAlignment, kBlock)), &::free);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  const uint64_t bytes = file.size();
  for (uint64_t at = 0; at < bytes; at += kBlock) {
    const std::span<std::byte> part(block.get(), std::min<uint64_t>(kBlock, bytes - at));
    file.read(at, part);
    XXH3_64bits_update(state.get(), part.data(), part.size());
    call(heartbeat);
  }
  return XXH3_64bits_digest(state.get());
}

std::string read_text(const fs::path& path, uint64_t max_bytes) {
  const File file = File::open_read(path, IoMode::Buffered);
  const uint64_t bytes = file.size();
  if (bytes > max_bytes) {
    user_error("{}: found {} bytes, expected at most {} in a file of this kind", path.string(), bytes, max_bytes);
  }
  std::string text(bytes, '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text(const fs::path& path, std::string_view text) {
  PendingFile pending(path, IoMode::Buffered);
  pending.file().write(0, std::as_bytes(std::span(text)));
  pending.publish();
}

fs::path place_of_file(const fs::path& path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  fs::path place = path;
  for (int i = 0; i < kMostLinks && fs::is_symlink(place, error); i++)
    place = place.parent_path() / fs::read_symlink(place, error);
  const fs::file_status there = fs::status(place, error);
  if (!fs::exists(there) || fs::is_regular_file(there)) return place;
  user_error("{}: found {}, expected a file or nothing: it would be replaced", path.string(),
             fs::is_directory(there) ? "a directory" : "a device, pipe or socket");
}

PendingFile::PendingFile(const fs::path& path, IoMode mode)
    : path_(place_of_file(path)), file_(File::create(partial_name(path_), mode)) {}

PendingFile::~PendingFile() {
  if (!published_) ::unlink(file_.path().c_str());
}

void PendingFile::publish() {
  file_.sync();
  rename_path(file_.path(), path_);
  published_ = true;
  sync_parent(path_);
}

PendingDirectory::PendingDirectory(const fs::path& path, Existing existing)
    : path_(with_suffix(fs::absolute(path).lexically_normal(), "")),
      partial_(partial_name(path_)),
      existing_(existing) {
  std::error_code error;
  if (existing == Existing::Refuse && fs::exists(path_, error) && !fs::is_empty(path_, error)) {
    user_error("{}: exists already, expected a new name or an empty directory", path_.string());
  }
  lock();
  for (auto entry = fs::directory_iterator(partial_, error); !error && entry != fs::end(entry);) {
    fs::remove_all(entry->path(), error);
    if (!error) entry.increment(error);
  }
  if (!error) return;
  if (lock_ >= 0) ::close(lock_);
  name_error("empty the directory", partial_, error.value());
}

// Makes the directory and locks it, and repeats that if its holder has renamed it meanwhile.
void PendingDirectory::lock() {
  while (true) {
    std::error_code error;
    fs::create_directories(partial_, error);
    if (error) name_error("make the directory", partial_, error.value());
    lock_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock_ < 0) return;
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(lock_);
      user_error("{}: another process is writing it, expected a name that nobody else writes to; {} names another",
                 path_.string(), option_name("out"));
    }
    struct stat opened {
    }, there{};
    if (::fstat(lock_, &opened) == 0 && ::stat(partial_.c_str(), &there) == 0 && opened.st_ino == there.st_ino) return;
    ::close(lock_);
  }
}

PendingDirectory::~PendingDirectory() {
  std::error_code ignored;
  if (!published_) fs::remove_all(partial_, ignored);
  for (const int locked : {lock_, replaced_})
    if (locked >= 0) ::close(locked);
}

void PendingDirectory::publish() {
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(partial_, error); !error && entry != fs::end(entry);
       entry.increment(error)) {
    if (entry->is_regular_file() || entry->is_directory()) sync_path(entry->path());
  }
  if (error) name_error("list", partial_, error.value());
  sync_path(partial_);
  if (existing_ == Existing::Replace && fs::exists(path_, error)) {
    // The old directory has the partial name now, and is removed with it. It is locked, as other processes would take
    // that name for theirs.
    replaced_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (replaced_ >= 0) ::flock(replaced_, LOCK_EX | LOCK_NB);
    exchange_paths(partial_, path_);
    sync_parent(path_);
    return;
  }
  rename_path(partial_, path_);
  published_ = true;
  sync_parent(path_);
}

}  // namespace snug
