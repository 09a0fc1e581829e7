#include "format/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/rounding.h"
#include "format/json.h"
#include "format/load.h"
#include "format/torch_file.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as in the format's own library
constexpr uint64_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxDimensions = 16;
// Lists the names that a model's weights, or the index of their shards, may have, in order of preference.
constexpr std::array<std::string_view, 4> kModelFiles{"model.safetensors", "model.safetensors.index.json",
                                                      "pytorch_model.bin", "pytorch_model.bin.index.json"};

constexpr std::array<StoredType, 21> kDTypes{{
    {"F32", 32, DType::F32}, {"BF16", 16, DType::BF16}, {"F16", 16, DType::F16}, {"F64", 64, {}},
    {"C64", 64, {}},         {"I64", 64, {}},           {"U64", 64, {}},         {"I32", 32, {}},
    {"U32", 32, {}},         {"I16", 16, {}},           {"U16", 16, {}},         {"I8", 8, {}},
    {"U8", 8, {}},           {"BOOL", 8, {}},           {"F8_E4M3", 8, {}},      {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},      {"F6_E2M3", 6, {}},        {"F6_E3M2", 6, {}},      {"F4", 4, {}},
    {"F8_E4M3FNUZ", 8, {}},
}};

std::string_view file_spelling(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return "F32";
    case DType::BF16:
      return "BF16";
    case DType::F16:
      return "F16";
    case DType::I32:
      return "I32";
    case DType::I16:
      return "I16";
    case DType::U8:
      return "U8";
    case DType::I8:
      return "I8";
  }
  internal_error("dtype {} has no name in safetensors", name(dtype));
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// Returns elements times bits, or nothing if that overflows.
std::optional<uint64_t> data_bytes(std::span<const int64_t> shape, uint64_t bits) {
  uint64_t total = bits;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(total, static_cast<uint64_t>(size), &total)) return std::nullopt;
  }
  if (total % 8 != 0) return std::nullopt;
  return total / 8;
}

std::vector<int64_t> parse_shape(const JsonObject& tensor) {
  const Json& list = tensor.at("shape");
  if (!list.is_array() || list.size() > kMaxDimensions) {
    tensor.fail("shape", fmt::format("a list of at most {} sizes", kMaxDimensions));
  }
  std::vector<int64_t> shape;
  for (const Json& size : list) {
    const bool fits = size.is_number_unsigned() && size.get<uint64_t>() <= INT64_MAX;
    if (!fits) tensor.fail("shape", "sizes of 0 or more");
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

SafetensorsEntry parse_entry(const std::string& name, const JsonObject& tensor, uint64_t data_begin,
                             uint64_t data_end) {
  SafetensorsEntry entry{.name = name, .dtype_name = tensor.string("dtype"), .dtype = {}, .shape = parse_shape(tensor)};
  const Json& range = tensor.at("data_offsets");
  const bool is_range = range.is_array() && range.size() == 2 && range[0].is_number_unsigned() &&
                        range[1].is_number_unsigned() && range[0] <= range[1];
  if (!is_range || range[1].get<uint64_t>() > data_end - data_begin) {
    tensor.fail("data_offsets", fmt::format("[begin, end] within the file's {} bytes of data", data_end - data_begin));
  }
  entry.offset = data_begin + range[0].get<uint64_t>();
  entry.bytes = range[1].get<uint64_t>() - range[0].get<uint64_t>();
  if (const StoredType* row = find_stored_type(entry.dtype_name)) {
    entry.dtype = row->dtype;
    if (data_bytes(entry.shape, row->bits) != entry.bytes) {
      tensor.fail("data_offsets", fmt::format("the bytes of {} {}", entry.dtype_name, shape_text(entry.shape)));
    }
  }
  return entry;
}

// Reports a file that is shorter than its header says, before a tensor is blamed.
void refuse_cut(const Json& header, uint64_t data_begin, uint64_t file_bytes, std::string_view source) {
  uint64_t end = 0;
  for (const auto& [name, tensor] : header.items()) {
    const auto range = tensor.is_object() ? tensor.find("data_offsets") : tensor.end();
    if (name != "__metadata__" && range != tensor.end() && range->is_array() && range->size() == 2 &&
        (*range)[1].is_number_unsigned())
      end = std::max(end, (*range)[1].get<uint64_t>());
  }
  if (end > file_bytes - data_begin && end <= INT64_MAX)
    user_error("{}: found {} bytes, expected {}, as its header says: the file is cut short; fetch or copy it again",
               source, file_bytes, data_begin + end);
}

void check_one_run(std::span<const SafetensorsEntry> entries, uint64_t data_begin, uint64_t file_bytes,
                   std::string_view source) {
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& entry : entries) order.push_back(&entry);
  // An empty tensor may share its offset with the one that follows.
  std::ranges::sort(order, {}, [](const SafetensorsEntry* e) { return std::pair(e->offset, e->bytes); });
  uint64_t end = data_begin;
  for (const SafetensorsEntry* entry : order) {
    if (entry->offset != end) {
      user_error("{}, tensor '{}': found its data at byte {}, expected byte {}, where the tensor before it ends",
                 source, entry->name, entry->offset, end);
    }
    end += entry->bytes;
  }
  if (end != file_bytes) {
    user_error("{}: found {} bytes, expected {}, where the last tensor ends", source, file_bytes, end);
  }
}

std::string shard_name(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

// Returns the first of kModelFiles that exists.
std::optional<fs::path> find_model_file(const fs::path& directory) {
  for (const std::string_view name : kModelFiles)
    if (is_file(directory / name)) return directory / name;
  return {};
}

}  // namespace

const StoredType* find_stored_type(std::string_view name) {
  const auto row = std::ranges::find(kDTypes, name, &StoredType::name);
  return row == kDTypes.end() ? nullptr : &*row;
}

std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view json, uint64_t data_begin, uint64_t file_bytes,
                                                       std::string_view source) {
  check(data_begin <= file_bytes, "safetensors data begins at {} of {} bytes", data_begin, file_bytes);
  const Json parsed = parse_json(json, source);
  const JsonObject header(parsed, std::string(source));
  refuse_cut(parsed, data_begin, file_bytes, source);
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") continue;
    entries.push_back(parse_entry(name, header.object(name), data_begin, file_bytes));
  }
  check_one_run(entries, data_begin, file_bytes, source);
  return entries;
}

std::map<std::string, std::vector<std::string>> parse_safetensors_index(std::string_view json,
                                                                        std::string_view source) {
  const Json parsed = parse_json(json, source);
  const JsonObject map = JsonObject(parsed, std::string(source)).object("weight_map");
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, value] : map.value().items()) {
    const std::string file = map.string(tensor);
    // A shard lies beside its index; a path would let a model read other folders.
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos) {
      map.fail(tensor, "the name of a file in the same directory");
    }
    shards[file].push_back(tensor);
  }
  return shards;
}

SafetensorsIndex SafetensorsIndex::open_file(const fs::path& path) {
  SafetensorsIndex index;
  index.add_file(path);
  index.sort_entries();
  return index;
}

SafetensorsIndex SafetensorsIndex::open_model(const fs::path& directory) {
  const std::optional<fs::path> file = find_model_file(directory);
  if (!file) user_error("{}: found none of {}, expected one of them", directory.string(), fmt::join(kModelFiles, ", "));
  if (file->extension() != ".json") return open_file(*file);
  SafetensorsIndex index;
  index.add_shards(*file);
  index.sort_entries();
  return index;
}

std::vector<std::string> SafetensorsIndex::passed_over(const fs::path& directory) {
  std::vector<std::string> names;
  for (const std::string_view name : kModelFiles)
    if (is_file(directory / name)) names.emplace_back(name);
  if (!names.empty()) names.erase(names.begin());
  return names;
}

bool SafetensorsIndex::is_in(const fs::path& directory) { return find_model_file(directory).has_value(); }

namespace {

// Throws UserError that says what lies in an adapter's directory without weights under the names that are read.
[[noreturn]] void refuse_without_adapter(const fs::path& directory, const fs::path& plain) {
  if (std::error_code error; fs::is_symlink(plain, error))
    user_error("{}: is a link to '{}', where nothing is: fetch it again", plain.string(),
               fs::read_symlink(plain, error).string());
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (it->path().filename() != "adapter_config.json") names.push_back(it->path().filename().string());
  std::ranges::sort(names);
  constexpr size_t kShown = 8;
  const std::string more = names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "";
  names.resize(std::min(names.size(), kShown));
  user_error(
      "{}: found no weights of an adapter, expected adapter_model.safetensors or adapter_model.bin; beside "
      "adapter_config.json lies {}{}",
      directory.string(), names.empty() ? "nothing" : fmt::format("'{}'", fmt::join(names, "', '")), more);
}

}  // namespace

SafetensorsIndex SafetensorsIndex::open_adapter(const fs::path& directory) {
  const fs::path plain = directory / "adapter_model.safetensors", pickled = directory / "adapter_model.bin";
  if (!is_file(plain) && !is_file(pickled)) refuse_without_adapter(directory, plain);
  return open_file(!is_file(plain) && is_file(pickled) ? pickled : plain);
}

void SafetensorsIndex::add_shards(const fs::path& list) {
  for (const auto& [file, tensors] : parse_safetensors_index(read_text(list, kMaxIndexBytes), list.string())) {
    const fs::path path = list.parent_path() / file;
    std::optional<SafetensorsIndex> shard;
    if (is_file(path)) {
      shard = open_file(path);
      files_.push_back(path);
    }
    for (const std::string& tensor : tensors) {
      if (const SafetensorsEntry* entry = shard ? shard->find(tensor) : nullptr) {
        entries_.push_back(*entry);
        entries_.back().file = static_cast<uint32_t>(files_.size() - 1);
      } else {
        absent_[tensor] = fmt::format("{} names it in '{}', which {}", list.string(), file,
                                      shard                  ? "does not hold it"
                                      : fs::is_symlink(path) ? "is a link to nothing: fetch it again"
                                                             : "is missing");
      }
    }
  }
}

void SafetensorsIndex::add_file(const fs::path& path) {
  const File file = File::open_read(path, IoMode::Buffered);
  const uint64_t file_bytes = file.size();
  std::string head(std::min<uint64_t>(file_bytes, kTorchFileHead), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  if (is_torch_file(head)) {
    files_.push_back(path);
    const auto read = [&](uint64_t offset, std::span<std::byte> out) { file.read(offset, out); };
    entries_ = parse_torch_file(read, file_bytes, path.string());
    return;
  }
  if (file_bytes < 8)
    user_error("{}: found {} bytes, expected at least the 8 of a header's length", path.string(), file_bytes);
  std::array<std::byte, 8> raw;
  file.read(0, raw);
  const auto length = load<uint64_t>(raw.data());
  if (length <= kMaxHeaderBytes && length > file_bytes - 8)
    user_error(
        "{}: found {} bytes, expected at least {}, as its header is {} long: the file is cut short, or no "
        "safetensors file",
        path.string(), file_bytes, 8 + length, length);
  if (length > kMaxHeaderBytes) {
    user_error("{}: found a header length of {} bytes, expected at most {}: not a safetensors file, or one cut short",
               path.string(), length, kMaxHeaderBytes);
  }
  std::string json(length, '\0');
  file.read(8, std::as_writable_bytes(std::span(json)));
  files_.push_back(path);
  entries_ = parse_safetensors_header(json, 8 + length, file_bytes, path.string());
}

void SafetensorsIndex::sort_entries() { std::ranges::sort(entries_, {}, &SafetensorsEntry::name); }

const SafetensorsEntry* SafetensorsIndex::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(entries_, name, {}, &SafetensorsEntry::name);
  return found != entries_.end() && found->name == name ? &*found : nullptr;
}

void SafetensorsIndex::refuse_wrapped(std::string_view name) const {
  const std::string behind = fmt::format(".{}", name);
  const auto wrapped = std::ranges::find_if(entries_, [&](const auto& entry) { return entry.name.ends_with(behind); });
  if (wrapped == entries_.end()) return;
  const std::string before = wrapped->name.substr(0, wrapped->name.size() - name.size());
  const std::string_view whose = before == "_orig_mod." ? "torch.compile's wrapper of a model was saved, "
                                 : before == "module."  ? "a data-parallel wrapper of a model was saved, "
                                                        : "";
  user_error("{}: found tensor '{}', expected '{}': {}take '{}' off the names of its tensors",
             files_[wrapped->file].string(), wrapped->name, name, whose, before);
}

std::string SafetensorsIndex::codes_of(std::string_view name) const {
  constexpr std::string_view kWeight = "weight";
  if (!name.ends_with(kWeight)) return "";
  const std::string module(name.substr(0, name.size() - kWeight.size()));
  std::string found;
  for (const char* part : {"qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_scale_inv",
                           "weight_zero_point", "weight_shape", "SCB", "weight.absmax"})
    if (find(module + part)) found += fmt::format("{}'{}{}'", found.empty() ? "" : ", ", module, part);
  return found;
}

void SafetensorsIndex::refuse_codes(std::string_view name) const {
  const std::string codes = codes_of(name);
  if (codes.empty()) return;
  const SafetensorsEntry* entry = find(name);
  user_error("{}: found {}{}, codes of '{}', expected its numbers: {}", files_[0].string(),
             entry ? fmt::format("'{}' of {}, ", name, entry->dtype_name) : "", codes, name, kCodesNeedConfig);
}

const SafetensorsEntry& SafetensorsIndex::require(std::string_view name, const Shape& shape,
                                                  std::string_view reason) const {
  const SafetensorsEntry* entry = find(name);
  if (const auto absent = absent_.find(name); !entry && absent != absent_.end())
    user_error("tensor '{}' is missing: {}", name, absent->second);
  // Names of a model with its head begin with "model."; without it they are the base model's.
  if (!entry && name.starts_with("model.") && find(name.substr(std::string_view("model.").size())))
    user_error("{}: found tensor '{}', expected '{}': a base model whose language-model head is missing",
               files_[0].string(), name.substr(std::string_view("model.").size()), name);
  if (!entry || !entry->dtype) refuse_codes(name);
  if (!entry) refuse_wrapped(name);
  if (!entry) {
    if (files_.empty())
      user_error("tensor '{}' is missing, expected {} ({}): none of the files that the index names holds tensors", name,
                 to_string(shape), reason);
    const std::string there =
        entries_.empty() ? "found no tensor"
                         : fmt::format("found '{}'{}", entries_[0].name,
                                       entries_.size() > 1 ? fmt::format(" and {} more", entries_.size() - 1) : "");
    user_error("{}: tensor '{}' is missing{}, expected {} ({}); {}", files_[0].string(), name,
               files_.size() > 1 ? " from this and the other shards" : "", to_string(shape), reason, there);
  }
  const std::string file = files_[entry->file].string();
  if (!entry->dtype) {
    user_error("{}, tensor '{}': found dtype {}, expected BF16, F16 or F32", file, name, entry->dtype_name);
  }
  const std::span<const int64_t> expected(shape.dims.data(), static_cast<size_t>(shape.rank));
  if (!std::ranges::equal(entry->shape, expected)) {
    user_error("{}, tensor '{}': found {} {}, expected {} ({})", file, name, entry->dtype_name,
               shape_text(entry->shape), to_string(shape), reason);
  }
  return *entry;
}

SafetensorsLayout layout_safetensors(std::span<const SafetensorsTensor> tensors) {
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return element_bytes(tensors[i].dtype); });
  SafetensorsLayout layout;
  layout.offset.resize(tensors.size());
  nlohmann::ordered_json header;
  header["__metadata__"]["format"] = "pt";
  uint64_t end = 0;
  for (const size_t i : order) {
    const auto& [name, dtype, shape] = tensors[i];
    const std::span<const int64_t> sizes(shape.dims.data(), static_cast<size_t>(shape.rank));
    const uint64_t begin = end;
    end += static_cast<uint64_t>(shape.count()) * element_bytes(dtype);
    layout.offset[i] = begin;
    nlohmann::ordered_json& entry = header[name];
    check(!name.empty() && entry.is_null(), "tensor '{}' is written twice or has no name", name);
    entry = {{"dtype", file_spelling(dtype)}, {"shape", sizes}, {"data_offsets", {begin, end}}};
  }
  std::string json = header.dump();
  const uint64_t data_begin = round_up(8 + json.size(), kDirectAlignment);
  json.resize(data_begin - 8, ' ');
  for (uint64_t length = json.size(), i = 0; i < 8; ++i) layout.header += static_cast<char>(length >> (8 * i) & 0xff);
  layout.header += json;
  for (uint64_t& offset : layout.offset) offset += data_begin;
  layout.file_bytes = data_begin + end;
  return layout;
}

ShardedLayout shard_safetensors(std::span<const SafetensorsTensor> tensors, uint64_t max_shard_bytes) {
  std::vector<std::vector<size_t>> groups(1);
  uint64_t group_bytes = 0, total_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = static_cast<uint64_t>(tensors[i].shape.count()) * element_bytes(tensors[i].dtype);
    if (!groups.back().empty() && (group_bytes >= max_shard_bytes || bytes > max_shard_bytes - group_bytes)) {
      groups.emplace_back();
      group_bytes = 0;
    }
    groups.back().push_back(i);
    group_bytes += bytes;
    total_bytes += bytes;
  }
  ShardedLayout sharded;
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total_bytes;
  for (size_t s = 0; s < groups.size(); ++s) {
    std::vector<SafetensorsTensor> members;
    const std::string file_name = shard_name(s, groups.size());
    for (const size_t i : groups[s]) {
      members.push_back(tensors[i]);
      index["weight_map"][tensors[i].name] = file_name;
    }
    sharded.shards.push_back({file_name, groups[s], layout_safetensors(members)});
  }
  if (groups.size() > 1) sharded.index_json = index.dump(2) + "\n";
  return sharded;
}

}  // namespace snug
