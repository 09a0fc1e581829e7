#include "plan/spec/caps.h"

#include <fmt/format.h>

#include <algorithm>

namespace snug {

// A page table has eight bytes for a page of 4 KiB, as seen on H200s with 60 to 210 GiB of the host locked.
uint64_t Caps::overhead(const Footprint& rank, Space space) const {
  if (space != Space::Device) return space == Space::Host ? driver_host_bytes + rank.ops * op_host_bytes : 0;
  constexpr uint64_t kOfEntry = 4096 / 8;
  const uint64_t tables = static_cast<uint64_t>(tabled_ranks) * rank.arena_bytes[index(Space::Host)] / kOfEntry;
  return driver_bytes + link_bytes + tables;
}

std::vector<Need> needs(const Footprint& rank, int ranks, const Caps& caps) {
  const auto together = static_cast<uint64_t>(caps.ranks_of_node(ranks));
  const uint64_t device = caps.taken(rank, Space::Device), disk = together * caps.taken(rank, Space::Disk);
  const uint64_t files = caps.saved_host_bytes + (caps.disk_is_memory ? disk : 0);
  const uint64_t host = together * caps.taken(rank, Space::Host) + files;
  std::vector<Need> needs;
  if (!caps.shared || caps.device_bytes < caps.host_bytes)
    needs.push_back({ranks > 1 ? "the device of a rank" : "the device", device, caps.device_bytes});
  const std::string whose = fmt::format("{}{}", together > 1 ? " of a node" : "", files > 0 ? " with tmpfs" : "");
  if (caps.shared)
    needs.push_back({fmt::format("device and host{}{}", together > 1 ? "" : " together", whose),
                     host + together * device, caps.host_bytes, host > together * device ? Space::Host : Space::Device,
                     "host_memory", caps.host_limit});
  else
    needs.push_back(
        {fmt::format("the host{}", whose), host, caps.host_bytes, Space::Host, "host_memory", caps.host_limit});
  if (disk > 0)
    needs.push_back({fmt::format("the disk{}", together > 1 ? " of a node" : ""), disk, caps.disk_bytes, Space::Disk,
                     "disk_memory"});
  return needs;
}

Need tightest_need(const Footprint& rank, int ranks, const Caps& caps) {
  const std::vector<Need> all = needs(rank, ranks, caps);
  return *std::ranges::max_element(all, {}, &Need::excess);
}

bool fits(const Footprint& rank, int ranks, const Caps& caps) {
  return std::ranges::all_of(needs(rank, ranks, caps), [](const Need& n) { return n.bytes <= n.allowed; });
}

}  // namespace snug
