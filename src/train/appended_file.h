// A file that grows while others may read it.
#pragma once

#include <filesystem>
#include <string_view>

namespace snug {

// DeviceError where the file cannot be written.
class AppendedFile {
 public:
  // Begins with these bytes, in place of what has the name.
  AppendedFile(const std::filesystem::path& path, std::string_view bytes);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  // In one write, as long as the system takes it whole: a reader sees all of it or nothing.
  void append(std::string_view bytes);

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace snug
