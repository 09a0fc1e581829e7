#include "base/memory.h"

#include <malloc.h>

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

// A file that holds one number; nothing if it is not there or says "max".
std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// The number behind a word at the start of a line: "MemAvailable: 123 kB".
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

struct GroupMemory {
  uint64_t limit = kUnlimited, left = kUnlimited;
};

// What one group allows, and what it leaves: its limit less what it and the groups within it use, dropping inactive
// page cache.
GroupMemory group_memory(const std::string& group, const std::string& limit_file, const std::string& usage_file,
                         const std::string& cache_field) {
  const auto limit = read_number(group + limit_file), usage = read_number(group + usage_file);
  if (!limit || !usage) return {};
  const uint64_t cache = read_field(group + "/memory.stat", cache_field).value_or(0);
  const uint64_t used = *usage - std::min(*usage, cache);
  return {*limit, *limit - std::min(*limit, used)};
}

// The least of this process's group and all groups around it, of either version.
GroupMemory groups_memory() {
  GroupMemory least;
  each_control_group("memory", [&](const std::string& group) {
    for (const GroupMemory& memory :
         {group_memory(group, "/memory.max", "/memory.current", "inactive_file"),
          group_memory(group, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file")})
      least = {std::min(least.limit, memory.limit), std::min(least.left, memory.left)};
  });
  return least;
}

}  // namespace

uint64_t free_memory() {
  const uint64_t machine = read_field("/proc/meminfo", "MemAvailable:").value_or(kUnlimited >> 10) << 10;
  return std::min(machine, groups_memory().left);
}

uint64_t total_memory() { return read_field("/proc/meminfo", "MemTotal:").value_or(0) << 10; }

std::optional<uint64_t> group_memory_limit() {
  // Version 1 writes the largest multiple of a page where there is no limit.
  const uint64_t limit = groups_memory().limit;
  if (limit >= kUnlimited / 4) return std::nullopt;
  return limit;
}

// The threshold grows with the blocks that are freed unless it is set.
void keep_little_freed_memory() { mallopt(M_TRIM_THRESHOLD, 1 << 20); }

void give_back_freed_memory() { malloc_trim(0); }

}  // namespace snug
