// Says where a path that was not found was looked for.
#pragma once

#include <filesystem>
#include <string>

#include <fmt/format.h>

namespace snug {

// Returns the end of a message: " (looked for at /home/me/d.jsonl: a relative path begins in the working folder)", also
// where a job file names it; "" for an absolute path, which says so itself.
inline std::string looked_at(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (path.empty() || path.is_absolute() || error) return "";
  return fmt::format(" (looked for at {}: a relative path begins in the working folder)", whole.string());
}

}  // namespace snug
