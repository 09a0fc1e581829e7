// Images in tests/fixtures/image, and the checksums by which pixels and rows are compared with Pillow's.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "base/file.h"
#include "image/decode.h"

namespace snug {

inline std::filesystem::path image_path(const std::string& name) {
  return std::filesystem::path(SNUG_FIXTURES) / "image" / name;
}

// Past File, which refuses some files by what they hold.
inline std::string image_text(const std::string& name) {
  std::ifstream file(image_path(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json stored_json(const std::string& name) {
  return nlohmann::json::parse(read_text(std::filesystem::path(SNUG_FIXTURES) / name, 1 << 20));
}

// CRC-32, as Python's zlib computes it.
inline uint64_t checksum(std::span<const std::byte> bytes) {
  return crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size()));
}

inline uint64_t checksum(const Image& image) { return checksum(std::as_bytes(std::span(image.rgb))); }

inline Image stored_image(const std::string& name) { return decode_image(image_path(name), name).image; }

}  // namespace snug
