#include "base/disk.h"

#include <chrono>
#include <thread>

#include "base/error.h"

namespace snug {
namespace fs = std::filesystem;

uint64_t free_bytes(const fs::path& directory) {
  std::error_code error;
  const uint64_t bytes = fs::space(directory, error).available;
  if (error) device_error("{}: cannot find what is free there: {}", directory.string(), error.message());
  return bytes;
}

fs::path existing_part(const fs::path& path) {
  fs::path there = fs::absolute(path);
  while (!fs::exists(there)) there = there.parent_path();
  return there;
}

bool is_directory_within(double seconds, const fs::path& path, const Alive& alive) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  std::error_code error;
  while (!fs::is_directory(path, error)) {
    if (Clock::now() - begin > std::chrono::duration<double>(seconds)) return fs::is_directory(path);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    call(alive);
  }
  return true;
}

void remove_tree(const fs::path& path, const Alive& alive) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error)))
    for (const auto& entry : fs::directory_iterator(path, error)) remove_tree(entry.path(), alive);
  error.clear();
  fs::remove(path, error);
  if (error) device_error("{}: cannot remove it: {}", path.string(), error.message());
  call(alive);
}

}  // namespace snug
