// Event files, which TensorBoard shows: scalars of steps, as messages of its Event protocol buffer in TFRecord framing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "train/appended_file.h"

namespace snug {

// The checksum of RFC 3720 (Castagnoli's polynomial).
uint32_t crc32c(std::string_view bytes);
// A record: its length in 8 bytes, a checksum of these, the bytes, a checksum of them; all little-endian.
std::string tfrecord(std::string_view bytes);

class EventFile {
 public:
  // Makes the directory, and a file of a new name in it. Where earlier starts of the run left files, this one says that
  // what they have of `first_step` and later counts no more.
  EventFile(const std::filesystem::path& directory, int64_t first_step);

  // Whether there was no other file.
  bool is_first() const { return first_; }
  // Every number of an object but its "step", under its key.
  void append(int64_t step, const nlohmann::ordered_json& values);

 private:
  std::optional<AppendedFile> file_;
  bool first_ = true;
};

}  // namespace snug
