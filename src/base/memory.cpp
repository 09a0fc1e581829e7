#include "base/memory.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "base/control_groups.h"

namespace snug {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Returns the number in a file; nothing if the file does not exist or says "max".
std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// Returns the number behind a word at the start of a line: "MemAvailable: 123 kB".
std::optional<uint64_t> read_field(const std::string& path, const std::string& word) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string name;
    uint64_t value = 0;
    if (fields >> name >> value && name == word) return value;
  }
  return std::nullopt;
}

// Names the files of a control group that hold a limit and what counts against it.
struct GroupFiles {
  const char *limit, *usage;
  const char *dropped_first, *dropped_next;  // fields of memory.stat: page cache
};
constexpr GroupFiles kGroupFiles[] = {
    {"memory.max", "memory.current", "inactive_file", "active_file"},
    {"memory.high", "memory.current", "inactive_file", "active_file"},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"},
    {"memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", "total_inactive_file", "total_active_file"}};

// Adds the limits of a group. What the group and those within it use counts, except page cache that can be dropped; of
// active page cache half counts, as it holds running programs.
void add_group_limits(const std::string& group, std::vector<MemoryLimit>& limits) {
  for (const GroupFiles& files : kGroupFiles) {
    const std::string name = group + "/" + files.limit;
    const auto limit = read_number(name), usage = read_number(group + "/" + files.usage);
    // Version 1 writes the largest multiple of a page where there is no limit.
    if (!limit || !usage || *limit >= kUnlimited / 4) continue;
    const std::string stat = group + "/memory.stat";
    const uint64_t cache =
        read_field(stat, files.dropped_first).value_or(0) + read_field(stat, files.dropped_next).value_or(0) / 2;
    const uint64_t used = *usage - std::min(*usage, cache);
    limits.push_back({MemoryLimit::Of::Group, name, *limit, *limit - std::min(*limit, used)});
  }
}

// Adds a limit of this process. `field` of /proc/self/status is what the kernel compares with it.
void add_process_limit(int resource, const std::string& name, const std::string& field,
                       std::vector<MemoryLimit>& limits) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const uint64_t used = read_field("/proc/self/status", field).value_or(0) << 10;
  limits.push_back({MemoryLimit::Of::Process, name, limit.rlim_cur, limit.rlim_cur - std::min(limit.rlim_cur, used)});
}

bool address_space_is_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

void add_process_limits(std::vector<MemoryLimit>& limits) {
  add_process_limit(RLIMIT_AS, "ulimit -v", "VmSize:", limits);
  add_process_limit(RLIMIT_DATA, "ulimit -d", "VmData:", limits);
}

}  // namespace

std::vector<MemoryLimit> memory_limits() {
  const uint64_t machine = read_field("/proc/meminfo", "MemAvailable:").value_or(kUnlimited >> 10) << 10;
  std::vector<MemoryLimit> limits{{MemoryLimit::Of::Machine, "the machine", total_memory(), machine}};
  each_control_group("memory", [&](const std::string& group) { add_group_limits(group, limits); });
  add_process_limits(limits);
  return limits;
}

bool process_limits_leave(uint64_t bytes) {
  std::vector<MemoryLimit> limits;
  add_process_limits(limits);
  return std::ranges::all_of(limits, [&](const MemoryLimit& limit) { return limit.left >= bytes; });
}

uint64_t free_memory() { return std::ranges::min(memory_limits(), {}, &MemoryLimit::left).left; }

uint64_t total_memory() { return read_field("/proc/meminfo", "MemTotal:").value_or(0) << 10; }

uint64_t resident_memory() {
  std::ifstream in("/proc/self/statm");
  uint64_t all = 0, resident = 0;  // pages
  return in >> all >> resident ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

std::optional<uint64_t> group_memory_limit() {
  std::optional<uint64_t> least;
  for (const MemoryLimit& limit : memory_limits())
    if (limit.of == MemoryLimit::Of::Group) least = std::min(least.value_or(kUnlimited), limit.limit);
  return least;
}

// Sets the threshold, which would otherwise grow with the blocks that are freed.
void keep_little_freed_memory() {
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
  if (address_space_is_limited()) mallopt(M_ARENA_MAX, 1);
}

void give_back_freed_memory() { malloc_trim(0); }

}  // namespace snug
