#include "base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>

#include "base/control_groups.h"

namespace snug {
namespace {

// Returns the cores that a group gives time for: microseconds of all cores together over those of a period. Version 2
// has both in one file, and says "max" where there is no limit; version 1 says -1.
double cores_of_group(const std::string& group) {
  double time = 0, period = 0;
  std::ifstream both(group + "/cpu.max"), quota(group + "/cpu.cfs_quota_us"), length(group + "/cpu.cfs_period_us");
  if (!(both >> time >> period) && !(quota >> time && length >> period)) return std::numeric_limits<double>::infinity();
  return time > 0 && period > 0 ? time / period : std::numeric_limits<double>::infinity();
}

}  // namespace

int usable_cores() {
  cpu_set_t bound;
  double cores =
      sched_getaffinity(0, sizeof bound, &bound) == 0 ? CPU_COUNT(&bound) : std::thread::hardware_concurrency();
  each_control_group("cpu", [&](const std::string& group) { cores = std::min(cores, cores_of_group(group)); });
  return std::max(1, static_cast<int>(std::ceil(cores)));
}

}  // namespace snug
