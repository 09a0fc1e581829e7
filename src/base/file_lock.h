// Locks files and directories by flock(), which the kernel drops with the process.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <utility>

#include "base/heartbeat.h"

namespace snug {

class FileLock {
 public:
  FileLock() = default;
  // Waits until no other process holds the file, which is made with its directory; its holder may remove it. If another
  // process holds it, `waits` is called once, and the heartbeat repeatedly. Throws UserError that ends with `advice`.
  static FileLock alone(const std::filesystem::path& file, std::string_view advice = "",
                        const Heartbeat& heartbeat = {}, const std::function<void()>& waits = {});
  // Hold a directory without waiting: to use it, or to remove it. holds() is false if another process holds it, or if
  // the file system has no locks.
  static FileLock in_use(const std::filesystem::path& directory);
  static FileLock unused(const std::filesystem::path& directory);
  // Returns whether some process uses a directory; false if the file system has no locks.
  static bool is_used(const std::filesystem::path& directory);

  ~FileLock();
  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  bool holds() const { return descriptor_ >= 0; }

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  bool is_removed() const;
  static FileLock of_directory(const std::filesystem::path& directory, int kind);

  int descriptor_ = -1;
};

}  // namespace snug
