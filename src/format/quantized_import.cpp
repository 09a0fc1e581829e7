#include "format/quantized_import.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/disk.h"
#include "base/error.h"
#include "base/option_name.h"
#include "format/quantized_weights.h"
#include "format/side_files.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kCopyBytes = 4 << 20;  // at a time

Json read_config(const fs::path& directory) {
  const fs::path path = directory / "config.json";
  return parse_json(read_text(path, kMaxConfigBytes), path.string());
}

// Refuses a model whose files hold codes, of which config.json says nothing.
void refuse_codes_alone(const fs::path& directory, const std::string& source) {
  const SafetensorsIndex index = SafetensorsIndex::open_model(directory);
  for (const SafetensorsEntry& entry : index.entries()) {
    const size_t dot = entry.name.rfind('.');
    const std::string weight = entry.name.substr(0, dot == entry.name.npos ? 0 : dot + 1) + "weight";
    const SafetensorsEntry* plain = index.find(weight);
    if (const std::string codes = index.codes_of(weight); !codes.empty() && !(plain && plain->dtype))
      user_error("{}: found no '{}', and {} in {}, codes of '{}': {}", source, kQuantizationKeys[0], codes,
                 index.files()[entry.file].string(), weight, kCodesNeedConfig);
  }
}

QuantizationScheme read_quantization(const fs::path& directory) {
  const std::string source = (directory / "config.json").string();
  const Json config = read_config(directory);
  const auto quantization = find_quantization(JsonObject(config, source));
  if (!quantization) refuse_codes_alone(directory, source);
  if (!quantization)
    user_error("{}: found no '{}', expected a model in fewer bits: others are read as they are, by {} {}", source,
               kQuantizationKeys[0], option_name("model"), directory.string());
  return parse_quantization_config(*quantization);
}

// What the files say, before any values are read.
struct QuantizedModel {
  explicit QuantizedModel(const fs::path& directory)
      : scheme(read_quantization(directory)),
        index(SafetensorsIndex::open_model(directory)),
        tensors(find_quantized(index, scheme)) {}

  QuantizationScheme scheme;
  SafetensorsIndex index;
  QuantizedTensors tensors;
};

Shape shape_of(const SafetensorsEntry& entry) {
  Shape shape;
  shape.rank = static_cast<int>(entry.shape.size());
  std::ranges::copy(entry.shape, shape.dims.begin());
  return shape;
}

void copy_bytes(const File& from, const SafetensorsEntry& entry, File& to, uint64_t offset) {
  std::vector<std::byte> bytes;
  for (uint64_t done = 0; done < entry.bytes; done += bytes.size()) {
    bytes.resize(std::min(kCopyBytes, entry.bytes - done));
    from.read(entry.offset + done, bytes);
    to.write(offset + done, bytes);
  }
}

void write_values(QuantizedReader reader, const QuantizedWeight& weight, File& to, uint64_t offset) {
  std::vector<BFloat16> values;
  for (int64_t first = 0; first < weight.rows; first += QuantizedReader::kRows) {
    values.resize(static_cast<size_t>(std::min(QuantizedReader::kRows, weight.rows - first) * weight.cols));
    reader.read(first, values);
    to.write(offset + static_cast<uint64_t>(first * weight.cols) * sizeof(BFloat16), std::as_bytes(std::span(values)));
  }
}

// ", 2 of them gptq, 8 bits, groups of 16", of weights that the config says something else of.
std::string others_of(const QuantizationConfig& config, const QuantizedTensors& tensors) {
  std::map<std::string, int> others;
  for (const QuantizedWeight& weight : tensors.weights)
    if (weight.config.bits != config.bits || weight.config.group_size != config.group_size)
      others[describe(weight.config)]++;
  std::string text;
  for (const auto& [words, count] : others) text += fmt::format(", {} of them {}", count, words);
  return text;
}

std::vector<std::string> notes_on(const QuantizationConfig& config, const QuantizedTensors& tensors) {
  std::vector<std::string> notes{
      fmt::format(
          "{}: {} weights{} are written in bf16, each value what its code stands for but for rounding, by 1 in 512 "
          "at most; {} tensors are copied",
          describe(config), tensors.weights.size(), others_of(config, tensors), tensors.plain.size()),
      "the model is plain from here on: " + option_name("method") + " full trains all of it, and " +
          option_name("base_format") + " int8, nf4 or fp8 rounds its linears anew"};
  if (!tensors.not_used.empty())
    notes.push_back(
        fmt::format("not used: {} scales of activations and caches ({} is one), which are in no fewer bits here",
                    tensors.not_used.size(), tensors.not_used[0]->name));
  return notes;
}

}  // namespace

std::optional<QuantizationMethod> quantized_by(const fs::path& directory) {
  const Json config = read_config(directory);
  const auto quantization = find_quantization(JsonObject(config, (directory / "config.json").string()));
  return quantization ? quantization_method(*quantization) : std::nullopt;
}

std::string quantized_form(const fs::path& directory) { return describe(read_quantization(directory).config); }

std::string plain_config(const fs::path& directory) {
  read_config(directory);  // strictly
  auto json = nlohmann::ordered_json::parse(read_text(directory / "config.json", kMaxConfigBytes));
  for (const char* key : kQuantizationKeys) json.erase(key);
  return json.dump(2) + "\n";
}

void check_quantized(const fs::path& directory) { QuantizedModel{directory}; }

std::vector<std::string> import_quantized(const fs::path& directory, const fs::path& out, Existing existing) {
  const QuantizedModel model(directory);
  const QuantizedTensors& tensors = model.tensors;
  std::vector<SafetensorsTensor> written;
  for (const QuantizedWeight& weight : tensors.weights)
    written.push_back({weight.name, DType::BF16, {weight.rows, weight.cols}});
  for (const SafetensorsEntry* entry : tensors.plain) written.push_back({entry->name, *entry->dtype, shape_of(*entry)});
  const SafetensorsLayout layout = layout_safetensors(written);

  require_room_in_memory(out, layout.file_bytes);
  PendingDirectory pending(out, existing);
  for (const std::string& name : side_files(directory)) {
    fs::create_directories((pending.path() / name).parent_path());
    fs::copy_file(directory / name, pending.path() / name);
  }
  write_text(pending.path() / "config.json", plain_config(directory));
  File weights = File::create(pending.path() / "model.safetensors", IoMode::Direct);
  weights.allocate(layout.file_bytes);
  weights.write(0, std::as_bytes(std::span(layout.header)));
  for (size_t i = 0; i < written.size(); ++i) {
    if (i < tensors.weights.size()) {
      const QuantizedWeight& weight = tensors.weights[i];
      write_values(QuantizedReader(model.index, weight), weight, weights, layout.offset[i]);
      continue;
    }
    const SafetensorsEntry& entry = *tensors.plain[i - tensors.weights.size()];
    copy_bytes(File::open_read(model.index.files()[entry.file], IoMode::Direct), entry, weights, layout.offset[i]);
  }
  weights.sync();
  pending.publish();
  std::vector<std::string> notes = notes_on(model.scheme.config, tensors);
  if (std::string missing = missing_code(directory); !missing.empty()) notes.push_back(std::move(missing));
  return notes;
}

}  // namespace snug
