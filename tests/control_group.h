// A control group that a test makes.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>

namespace snug {

// Inside this process's own, or, as a group of the second version that has processes has no groups with limits, beside
// it: of the first version whose groups for this controller have one of the files. Needs rights that containers often
// withhold.
class ControlGroup {
 public:
  ControlGroup(const std::string& controller, std::initializer_list<const char*> files) {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
      const size_t first = line.find(':'), second = line.find(':', first + 1);
      const std::string controllers = line.substr(first + 1, second - first - 1), own = line.substr(second + 2);
      if (controllers != controller && !controllers.empty()) continue;
      const std::filesystem::path root = std::filesystem::path("/sys/fs/cgroup") / controllers;
      if (!std::filesystem::exists(root / "cgroup.procs")) continue;
      if (make(root / own, files)) return;
      if (controllers.empty() && !own.empty() && make((root / own).parent_path(), files)) return;
    }
  }
  ~ControlGroup() { leave(); }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  bool made() const { return !file_.empty(); }
  // The calling process and its children count from here on.
  bool enter() const {
    std::ofstream processes(path_ / "cgroup.procs");
    return !!(processes << getpid() << std::flush);
  }
  // The file that was asked for.
  const std::filesystem::path& file() const { return file_; }

 private:
  bool make(const std::filesystem::path& parent, std::initializer_list<const char*> files) {
    const std::filesystem::path path = parent / ("snug-test-" + std::to_string(getpid()));
    std::error_code error;
    if (!std::filesystem::create_directory(path, error) || error) return false;
    path_ = path;
    for (const char* name : files)
      if (std::filesystem::exists(path_ / name)) file_ = path_ / name;
    if (file_.empty()) leave();
    return made();
  }
  void leave() {
    for (int i = 0; i < 100 && !path_.empty() && rmdir(path_.c_str()) != 0; i++)
      usleep(50'000);  // the last may be ending
    path_.clear();
  }
  std::filesystem::path path_, file_;
};

}  // namespace snug
