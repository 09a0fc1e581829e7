// GGUF, the single-file model format of llama.cpp, versions 2 and 3, little-endian:
//
//   "GGUF" | version u32 | tensors u64 | pairs u64 | pairs | tensor infos | padding | data
//   pair:         key string, type u32, value            string: length u64, bytes
//   array value:  type u32, count u64, values
//   tensor info:  name string, dimensions u32, sizes u64 (fastest first), type u32, offset u64 in the data
//
// The data starts, and every offset in it is, at a multiple of "general.alignment" (32 unless given). A model may be
// split into files NAME-00001-of-00003.gguf and so on, each of them whole by itself: "split.no" counts them from 0,
// "split.count" says how many there are and "split.tensors.count" how many tensors they hold together; the first has
// the model's metadata.
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

// Says how a tensor's values are stored; the numbers are the file's. gguf_dequantize.cpp and gguf_dequantize_grids.cpp
// say what their blocks hold.
enum class GgufType : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ2_XXS = 16,
  IQ2_XS = 17,
  IQ3_XXS = 18,
  IQ1_S = 19,
  IQ4_NL = 20,
  IQ3_S = 21,
  IQ2_S = 22,
  IQ4_XS = 23,
  I8 = 24,
  I16 = 25,
  I32 = 26,
  I64 = 27,
  F64 = 28,
  IQ1_M = 29,
  BF16 = 30,
  TQ1_0 = 34,
  TQ2_0 = 35,
  MXFP4 = 39,
  NVFP4 = 40,
  Q1_0 = 41,
  Q2_0 = 42
};

// Returns the type of a number in a file; nothing for types that are not read.
std::optional<GgufType> gguf_type(uint32_t number);
// Returns "Q4_1", also for types that are not read, or "number 99".
std::string gguf_type_name(uint32_t number);
// Returns the names of all types that are read, for messages.
std::string gguf_type_names();
// Returns "Q4_1".
std::string_view name(GgufType type);
// Returns how many values are stored together. Rows are whole blocks.
uint64_t block_values(GgufType type);
// Returns the bytes of `values` values in a row; `values` must be a multiple of the type's block.
uint64_t row_bytes(GgufType type, uint64_t values);
// Turns stored bytes into fp32, to the bit as the gguf package and llama.cpp do. `bytes` holds row_bytes(type,
// out.size()).
void dequantize(GgufType type, std::span<const std::byte> bytes, std::span<float> out);

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // rows first, as in Hugging Face's files; GGUF has the reverse
  GgufType type = GgufType::F32;
  size_t file = 0;      // index of the file, of those into which the model is split
  uint64_t offset = 0;  // bytes from the start of the file
  uint64_t bytes = 0;
};

// Every integer is read as int64_t and every float as double, alone or in a list.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                               std::vector<std::string>>;

// Holds the metadata and the tensor table of one file, or of all parts of a model. Every getter's UserError names file,
// key, found and expected.
class GgufHeader {
 public:
  const std::string& source() const { return source_; }
  // Returns the tensors in order of name.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;  // null if there is none

  bool has(std::string_view key) const { return values_.contains(key); }
  // Returns the keys in order of name.
  std::vector<std::string_view> keys() const;
  // Return a value; without a fallback the key is required.
  int64_t integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> fallback = {}) const;
  double number(std::string_view key, std::optional<double> fallback = {}) const;
  bool boolean(std::string_view key, std::optional<bool> fallback = {}) const;
  std::string string(std::string_view key, std::optional<std::string> fallback = {}) const;
  bool has_integers(std::string_view key) const;  // whether the key is there with a list of integers or of truths
  // Return a list, which is required.
  const std::vector<std::string>& strings(std::string_view key) const;
  const std::vector<int64_t>& integers(std::string_view key) const;
  const std::vector<double>& numbers(std::string_view key) const;

  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

 private:
  friend class GgufParser;
  friend GgufHeader join_gguf_parts(std::vector<GgufHeader> parts);
  template <class T>
  const T& get(std::string_view key, std::string_view expected) const;

  std::string source_;
  std::map<std::string, GgufValue, std::less<>> values_;
  std::vector<GgufTensor> tensors_;
};

// Reads the header of a file of `file_bytes` bytes; `source` is its name for messages. Throws UserError for whatever
// breaks the format, and for tensor types other than GgufType's.
GgufHeader parse_gguf(const ReadAt& read, uint64_t file_bytes, std::string_view source);
// Returns the header of a model from those of its parts, in their order; a single file is a part by itself. Throws
// UserError if they are not the parts of one model.
GgufHeader join_gguf_parts(std::vector<GgufHeader> parts);

// Returns the files of the model to which one of its files belongs, by its name: all parts in their order, or the file
// itself. Throws UserError if one is missing.
std::vector<std::filesystem::path> gguf_files(const std::filesystem::path& file);
// Returns the header of the model in these files.
GgufHeader read_gguf(const std::vector<std::filesystem::path>& files);

}  // namespace snug
