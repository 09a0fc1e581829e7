// Writes the header of a GGUF file: metadata and tensors (gguf.h says what it looks like).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/gguf.h"
#include "tensor/view.h"

namespace snug {

// Holds everything of a file but its tensors' bytes.
struct GgufLayout {
  std::string header;            // the bytes before the data
  std::vector<uint64_t> offset;  // by tensor, in the order given: bytes from the start of the file
  uint64_t file_bytes = 0;
};

class GgufWriter {
 public:
  // Add pairs, which stand in the order of these calls. Types are those of llama.cpp's converter.
  void add(std::string_view key, std::string_view value);
  void add_u32(std::string_view key, uint64_t value);  // InternalError beyond 32 bits
  void add_f32(std::string_view key, double value);
  void add_bool(std::string_view key, bool value);
  void add(std::string_view key, std::span<const std::string> values);
  void add(std::string_view key, std::span<const int32_t> values);
  void add(std::string_view key, std::span<const float> values);

  void add_tensor(std::string_view name, const Shape& shape, GgufType type);

  GgufLayout layout() const;

 private:
  void add_key(std::string_view key, uint32_t type);

  std::string pairs_, tensors_;
  uint64_t pair_count_ = 0;
  std::vector<uint64_t> offsets_;  // within the data
  uint64_t data_bytes_ = 0;
};

}  // namespace snug
