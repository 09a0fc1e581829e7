// GGUF, the single-file model format of llama.cpp, versions 2 and 3, little-endian:
//
//   "GGUF" | version u32 | tensors u64 | pairs u64 | pairs | tensor infos | padding | data
//   pair:         key string, type u32, value            string: length u64, bytes
//   array value:  type u32, count u64, values
//   tensor info:  name string, dimensions u32, sizes u64 (fastest first), type u32, offset u64 in the data
//
// The data starts, and every offset in it is, at a multiple of "general.alignment" (32 unless given).
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "format/load.h"

namespace snug {

// How a tensor's values are stored; the numbers are the file's. A block is 32 values: Q8_0 has an fp16 scale d and 32
// signed bytes q, x = d q; Q4_1 has fp16 d and m and 32 half bytes q (low halves first), x = d q + m.
enum class GgufType : uint32_t { F32 = 0, F16 = 1, Q4_1 = 3, Q8_0 = 8, BF16 = 30 };

// "Q4_1"
std::string_view name(GgufType type);
// How many values are stored together: 32 or 1. Rows are whole blocks.
uint64_t block_values(GgufType type);
// Bytes of `values` values in a row; `values` must be a multiple of the type's block.
uint64_t row_bytes(GgufType type, uint64_t values);
// Turns stored bytes into fp32, exactly as their definition says. `bytes` holds row_bytes(type, out.size()).
void dequantize(GgufType type, std::span<const std::byte> bytes, std::span<float> out);

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // rows first, as Hugging Face has it; the file has the reverse
  GgufType type = GgufType::F32;
  uint64_t offset = 0;  // bytes from the start of the file
  uint64_t bytes = 0;
};

// Every integer is read as int64_t and every float as double, alone or in a list.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;

// The metadata and the tensor table of one file. Every getter's UserError names file, key, found and expected.
class GgufHeader {
 public:
  const std::string& source() const { return source_; }
  // In order of name.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;  // null if there is none

  bool has(std::string_view key) const { return values_.contains(key); }
  // Without a fallback the key is required.
  int64_t integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> fallback = {}) const;
  double number(std::string_view key, std::optional<double> fallback = {}) const;
  bool boolean(std::string_view key, std::optional<bool> fallback = {}) const;
  std::string string(std::string_view key, std::optional<std::string> fallback = {}) const;
  // Lists are required.
  const std::vector<std::string>& strings(std::string_view key) const;
  const std::vector<int64_t>& integers(std::string_view key) const;
  const std::vector<double>& numbers(std::string_view key) const;

  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

 private:
  friend class GgufParser;
  template <class T>
  const T& get(std::string_view key, std::string_view expected) const;

  std::string source_;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
};

// Reads the header of a file of `file_bytes` bytes; `source` is its name for messages. UserError for whatever breaks
// the format, and for tensor types other than GgufType's.
GgufHeader parse_gguf(const ReadAt& read, uint64_t file_bytes, std::string_view source);
GgufHeader read_gguf(const std::filesystem::path& path);

}  // namespace snug
