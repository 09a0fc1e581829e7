#include "base/disk.h"

#include <fcntl.h>
#include <linux/quota.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/memory.h"

namespace snug {
namespace fs = std::filesystem;

namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// Returns what a quota leaves of the file system on which `descriptor` lies; kNoLimit if there is none, or the system
// does not tell (Linux before 5.14, NFS). See quotactl(2): limits are in units of QIF_DQBLKSIZE.
uint64_t told_quota(int descriptor, int kind, uint32_t id) {
  constexpr long kQuotactlFd = 443;  // on every architecture
  struct if_dqblk quota {};
  if (::syscall(kQuotactlFd, descriptor, QCMD(Q_GETQUOTA, kind), id, &quota) != 0) return kNoLimit;
  return left_of_quota(quota.dqb_bhardlimit * QIF_DQBLKSIZE, quota.dqb_bsoftlimit * QIF_DQBLKSIZE, quota.dqb_curspace);
}

uint64_t left_of_quotas(const fs::path& directory) {
  if (::geteuid() == 0) return kNoLimit;  // quotas do not bind root
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return kNoLimit;
  const uint64_t left =
      std::min(told_quota(descriptor, USRQUOTA, ::geteuid()), told_quota(descriptor, GRPQUOTA, ::getegid()));
  ::close(descriptor);
  return left;
}

}  // namespace

uint64_t left_of_quota(uint64_t hard, uint64_t soft, uint64_t used) {
  const uint64_t limit = hard != 0 ? hard : soft;
  return limit == 0 ? kNoLimit : limit - std::min(limit, used);
}

uint64_t free_bytes(const fs::path& directory) {
  std::error_code error;
  const uint64_t bytes = fs::space(directory, error).available;
  if (error) device_error("{}: cannot find what is free there: {}", directory.string(), error.message());
  return std::min(bytes, left_of_quotas(directory));
}

namespace {

// Magic numbers of linux/magic.h, which some systems have only in part.
constexpr uint32_t kTmpfs = 0x01021994, kRamfs = 0x858458f6, kOverlay = 0x794c7630;

uint32_t type_of(const fs::path& directory) {
  struct statfs system {};
  return ::statfs(directory.c_str(), &system) == 0 ? static_cast<uint32_t>(system.f_type) : 0;
}

// Returns the upper directory of the overlay that holds a directory; "" if its mount is not listed. It reads lines of
// /proc/self/mountinfo: "36 35 98:0 /root /mount options - overlay source upperdir=/a,workdir=/b".
fs::path upper_of_overlay(const fs::path& directory) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) return "";
  const std::string device = fmt::format(" {}:{} ", major(status.st_dev), minor(status.st_dev));
  constexpr std::string_view kKey = "upperdir=";
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const size_t upper = line.find(kKey);
    if (line.find(device) == line.npos || upper == line.npos) continue;
    const size_t begin = upper + kKey.size();
    return line.substr(begin, line.find(',', begin) - begin);
  }
  return "";
}

}  // namespace

bool is_in_memory(const fs::path& directory) {
  const uint32_t type = type_of(directory), held = type == kOverlay ? type_of(upper_of_overlay(directory)) : type;
  return held == kTmpfs || held == kRamfs;
}

uint64_t bytes_in(const fs::path& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(directory, error); !error && entry != fs::end(entry);
       entry.increment(error))
    if (const uint64_t size = entry->file_size(error); !error) bytes += size;
  return bytes;
}

fs::path existing_part(const fs::path& path) {
  fs::path there = fs::absolute(path);
  while (!fs::exists(there)) there = there.parent_path();
  return there;
}

bool is_directory_within(double seconds, const fs::path& path, const Heartbeat& heartbeat) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  std::error_code error;
  while (!fs::is_directory(path, error)) {
    if (Clock::now() - begin > std::chrono::duration<double>(seconds)) return fs::is_directory(path);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    call(heartbeat);
  }
  return true;
}

void remove_tree(const fs::path& path, const Heartbeat& heartbeat) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error)))
    for (const auto& entry : fs::directory_iterator(path, error)) remove_tree(entry.path(), heartbeat);
  error.clear();
  fs::remove(path, error);
  if (error) device_error("{}: cannot remove it: {}", path.string(), error.message());
  call(heartbeat);
}

void require_room_in_memory(const std::filesystem::path& directory, uint64_t bytes) {
  constexpr uint64_t kLeft = 16 << 20;  // for the process that writes
  if (!is_in_memory(existing_part(directory))) return;
  if (const uint64_t left = free_memory(); left < bytes + kLeft)
    throw CapacityError(
        fmt::format("{}: {} MiB are to be written there, into memory (tmpfs), of which {} MiB are left; a directory on "
                    "a disk takes none",
                    directory.string(), (bytes + kLeft) >> 20, left >> 20));
}

}  // namespace snug
