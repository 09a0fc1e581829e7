#include "base/control_groups.h"

#include <fmt/format.h>

#include <fstream>

namespace snug {

// Reads the lines of /proc/self/cgroup: "0::/a/b" (version 2) and "9:cpu,cpuacct:/a/b" (version 1).
void each_control_group(std::string_view controller, const std::function<void(const std::string& folder)>& look) {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version1 = ("," + controllers + ",").find(fmt::format(",{},", controller)) != std::string::npos;
    if (!version1 && !controllers.empty()) continue;
    const std::string root = version1 ? fmt::format("/sys/fs/cgroup/{}", controller) : "/sys/fs/cgroup";
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      look(root + (path == "/" ? "" : path));
      if (path.empty() || path == "/") break;
    }
  }
}

}  // namespace snug
