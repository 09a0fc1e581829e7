// Reads and writes the safetensors container by header alone: where each tensor's bytes lie. The bytes themselves are
// read and written by the code that planned the memory for them.
//
//   [0, 8)      header length n, little-endian
//   [8, 8 + n)  JSON: {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ...}, then spaces
//   [8 + n, )   tensors, offsets counted from here, in one run without holes
//
// Format: https://github.com/huggingface/safetensors. Everything read is checked; a file that breaks a rule is a
// UserError that names file, tensor, what was found and what was expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/view.h"

namespace snug {

// Describes a type of elements as a file spells it ("BF16").
struct StoredType {
  std::string_view name;
  uint64_t bits;
  std::optional<DType> dtype;  // F32, BF16 or F16; nothing for a type that snug does not read
};
// Returns the type of a name; null for other names.
const StoredType* find_stored_type(std::string_view name);

// Describes one tensor of a file.
struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as the file spells it
  std::optional<DType> dtype;  // F32, BF16 or F16; nothing for a type that snug does not read
  std::vector<int64_t> shape;  // any number of dimensions; none for a scalar
  uint32_t file = 0;           // index into SafetensorsIndex::files()
  uint64_t offset = 0;         // bytes from the start of the file
  uint64_t bytes = 0;
};

// Returns the tensors of a header's JSON, in order of name. `data_begin` and `file_bytes` are where the data starts and
// the file ends; `source` is the file's name for messages. SafetensorsEntry::file is left 0.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, uint64_t data_begin, uint64_t file_bytes,
                                                       std::string_view source);

// Returns the shards of model.safetensors.index.json and the tensors that lie in each, by file name. Throws UserError
// for the name of a file that is not in the directory of the index.
std::map<std::string, std::vector<std::string>> parse_safetensors_index(std::string_view json, std::string_view source);

// Says what helps where codes are found and nothing tells what they stand for.
inline constexpr std::string_view kCodesNeedConfig =
    "config.json needs the key 'quantization_config', which says how they are read (quant_method, bits, group_size); "
    "fetch config.json again, or write there what a quantize_config.json says";

// Says where every tensor of a model or an adapter lies, in safetensors or in files that torch.save wrote
// (format/torch_file.h); a file's first bytes tell which.
class SafetensorsIndex {
 public:
  // Opens `<directory>/model.safetensors`, or the shards that `<directory>/model.safetensors.index.json` names, or else
  // pytorch_model.bin or its shards. A shard's tensors that the index does not mention are left out; for tensors and
  // shards that it names and that do not exist, only require() throws. Throws UserError if none of these files exists.
  static SafetensorsIndex open_model(const std::filesystem::path& directory);
  // Returns the other files there with weights of a model, or the index of them, which open_model() does not read.
  static std::vector<std::string> passed_over(const std::filesystem::path& directory);
  // Returns whether open_model() finds something to read there.
  static bool is_in(const std::filesystem::path& directory);
  // Opens `<directory>/adapter_model.safetensors`, or else adapter_model.bin.
  static SafetensorsIndex open_adapter(const std::filesystem::path& directory);
  static SafetensorsIndex open_file(const std::filesystem::path& path);

  const std::vector<std::filesystem::path>& files() const { return files_; }
  // Returns the tensors in order of name.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // Returns null if there is none.
  const SafetensorsEntry* find(std::string_view name) const;
  // Returns the tensor, of a type that snug reads and of this shape; throws UserError otherwise. `reason` says where
  // the shape comes from ("config.json, 'intermediate_size'").
  const SafetensorsEntry& require(std::string_view name, const Shape& shape, std::string_view reason) const;
  // Returns the tensors beside a weight that hold its codes, or belong to them, as quantisers name them: "'x.qweight',
  // 'x.scales'"; empty where there are none.
  std::string codes_of(std::string_view name) const;
  // Returns, by tensor, the files that the index of the shards names and that do not exist.
  const std::map<std::string, std::string, std::less<>>& absent() const { return absent_; }

 private:
  void add_file(const std::filesystem::path& path);
  void add_shards(const std::filesystem::path& list);
  // Throws UserError if a tensor has the name behind something else, as wrappers of a model put it there.
  void refuse_wrapped(std::string_view name) const;
  // Throws UserError if there are codes of a tensor in its place.
  void refuse_codes(std::string_view name) const;
  void sort_entries();

  std::vector<std::filesystem::path> files_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::string, std::less<>> absent_;
};

// Describes a tensor to be written.
struct SafetensorsTensor {
  std::string name;
  DType dtype;
  Shape shape;
};

// Describes one file, known before any of its data is.
struct SafetensorsLayout {
  std::string header;            // the bytes before the data: length, JSON, spaces
  std::vector<uint64_t> offset;  // by tensor, in the order given: bytes from the start of the file
  uint64_t file_bytes = 0;
};

// Lays out a file. Wider types come first, otherwise tensors keep the order given, so that every tensor is aligned to
// its element. The data starts at a multiple of kDirectAlignment, so that tensors of whole pages stay on page
// boundaries. Throws InternalError if a name is empty or appears twice.
SafetensorsLayout layout_safetensors(std::span<const SafetensorsTensor> tensors);

// Describes a model cut into files.
struct ShardedLayout {
  struct Shard {
    std::string file_name;
    std::vector<size_t> tensors;  // indices into the tensors given, in the order of layout.offset
    SafetensorsLayout layout;
  };
  std::vector<Shard> shards;
  std::string index_json;  // for model.safetensors.index.json; empty if one file holds all
};

// Fills shards in the order given up to `max_shard_bytes` of data each; a larger tensor has a shard of its own. One
// shard is named model.safetensors, several model-00001-of-00003.safetensors and so on.
ShardedLayout shard_safetensors(std::span<const SafetensorsTensor> tensors, uint64_t max_shard_bytes);

}  // namespace snug
