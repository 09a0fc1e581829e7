#include "train/appended_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"

namespace snug {

AppendedFile::AppendedFile(const std::filesystem::path& path, std::string_view bytes) : path_(path) {
  write_text(path, bytes);
  file_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0) device_error("{}: cannot be written: {}", path.string(), std::strerror(errno));
}

AppendedFile::~AppendedFile() { ::close(file_); }

void AppendedFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) device_error("{}: writing a line failed: {}", path_.string(), std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace snug
