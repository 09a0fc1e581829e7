#include "format/gguf_import.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "base/disk.h"
#include "base/error.h"
#include "format/gguf_architecture.h"
#include "format/hf_config.h"
#include "format/json.h"
#include "format/safetensors.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr uint64_t kChunkValues = 1 << 20;  // values converted at a time

// Checks that every tensor of the model is in the file with its shape, and that the file holds nothing else.
void check_tensors(const GgufHeader& header, const GgufArchitecture& kind, const std::vector<GgufTensorName>& names) {
  std::set<std::string_view> used;
  if (kind.has_rope_factors) used.insert(kGgufRopeFactors);
  if (kind.has_long_rope) used.insert({kGgufLongRopeFactors, kGgufShortRopeFactors});
  for (const GgufTensorName& name : names) {
    const GgufTensor* tensor = header.find(name.gguf);
    if (!tensor)
      user_error("{}: tensor '{}' is missing, expected {}", header.source(), name.gguf, to_string(name.shape));
    const std::span<const int64_t> expected(name.shape.dims.data(), static_cast<size_t>(name.shape.rank));
    if (!std::ranges::equal(tensor->shape, expected))
      user_error("{}, tensor '{}': found [{}], expected {}", header.source(), name.gguf, fmt::join(tensor->shape, ", "),
                 to_string(name.shape));
    used.insert(name.gguf);
  }
  for (const GgufTensor& tensor : header.tensors()) {
    if (!used.contains(tensor.name))
      user_error("{}: found tensor '{}', which no {} model has", header.source(), tensor.name, kind.name);
  }
}

// Converts one tensor to bf16 at `offset` of `out`, a chunk of rows at a time. The rows of a vector are its values,
// which are stored as one.
class Converter {
 public:
  Converter(const File& in, const GgufTensor& tensor, const GgufTensorName& name)
      : in_(in),
        tensor_(tensor),
        name_(name),
        rows_(name.shape.rows()),
        columns_(static_cast<uint64_t>(name.shape.cols())),
        stored_bytes_(row_bytes(tensor.type, columns_)),
        row_(columns_) {}

  void convert(File& out, uint64_t offset) {
    const auto chunk_rows = static_cast<int64_t>(std::max<uint64_t>(1, kChunkValues / columns_));
    for (int64_t first = 0; first < rows_; first += chunk_rows) {
      const int64_t count = std::min(chunk_rows, rows_ - first);
      read(first, count);
      std::vector<BFloat16> values(static_cast<uint64_t>(count) * columns_);
      for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
        dequantize(tensor_.type, std::span(stored_).subspan(i * stored_bytes_, stored_bytes_), row_);
        for (uint64_t c = 0; c < columns_; ++c) values[i * columns_ + c] = BFloat16(row_[column(c)] - name_.more);
      }
      out.write(offset + static_cast<uint64_t>(first) * columns_ * sizeof(BFloat16), std::as_bytes(std::span(values)));
    }
  }

 private:
  bool matrix_is_interleaved() const { return name_.interleaved_head_rows != 0 && name_.shape.rank > 1; }

  uint64_t column(uint64_t c) const {
    return name_.shape.rank > 1 ? c : static_cast<uint64_t>(gguf_row(name_, static_cast<int64_t>(c)));
  }

  // Reads rows [first, first + count) of the model, as they are stored.
  void read(int64_t first, int64_t count) {
    stored_.resize(static_cast<uint64_t>(count) * stored_bytes_);
    if (!matrix_is_interleaved())
      return in_.read(tensor_.offset + static_cast<uint64_t>(first) * stored_bytes_, stored_);
    for (int64_t i = 0; i < count; ++i) {
      const auto from = static_cast<uint64_t>(gguf_row(name_, first + i));
      in_.read(tensor_.offset + from * stored_bytes_,
               std::span(stored_).subspan(static_cast<uint64_t>(i) * stored_bytes_, stored_bytes_));
    }
  }

  const File& in_;
  const GgufTensor& tensor_;
  const GgufTensorName& name_;
  int64_t rows_;
  uint64_t columns_, stored_bytes_;
  std::vector<std::byte> stored_;
  std::vector<float> row_;
};

// Returns a tensor of what each rotary frequency is divided by.
std::vector<float> read_rope_factors(const GgufHeader& header, const std::vector<File>& in, const GgufTensor& tensor,
                                     int64_t pairs) {
  if (tensor.shape != std::vector<int64_t>{pairs} || tensor.type != GgufType::F32) {
    user_error("{}, tensor '{}': found [{}] of type {}, expected [{}] of type F32", header.source(), tensor.name,
               fmt::join(tensor.shape, ", "), name(tensor.type), pairs);
  }
  std::vector<float> factors(static_cast<size_t>(pairs));
  in[tensor.file].read(tensor.offset, std::as_writable_bytes(std::span(factors)));
  return factors;
}

// Refuses a scaling that keys say, where a tensor says another.
void refuse_scaling_keys(const OrderedJson& json, const GgufHeader& header, const GgufArchitecture& kind,
                         std::string_view tensor) {
  if (json.contains("rope_scaling"))
    header.fail(fmt::format("{}.rope.scaling.type", kind.name), fmt::format("\"none\" beside tensor '{}'", tensor));
}

// Adds llama3 scaling, for which GGUF has no key: it stores the divisor of each frequency.
void add_llama3_scaling(OrderedJson& json, const GgufHeader& header, const std::vector<File>& in,
                        const GgufArchitecture& kind, const HfConfig& config) {
  const GgufTensor* tensor = kind.has_rope_factors ? header.find(kGgufRopeFactors) : nullptr;
  if (!tensor) return;
  const std::vector<float> factors = read_rope_factors(header, in, *tensor, config.head_dim / 2);
  const auto scaling = llama3_scaling_of(factors, config.rope.theta);
  if (!scaling)
    user_error(
        "{}, tensor '{}': found divisors from {} to {} that no scaling of Llama 3.1's kind has, expected such a one",
        header.source(), kGgufRopeFactors, std::ranges::min(factors), std::ranges::max(factors));
  refuse_scaling_keys(json, header, kind, kGgufRopeFactors);
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", scaling->factor},
                          {"low_freq_factor", scaling->low_freq_factor},
                          {"high_freq_factor", scaling->high_freq_factor},
                          {"original_max_position_embeddings", static_cast<int64_t>(scaling->original_max_position)}};
}

// Returns the divisors of a model with LongRope.
std::vector<float> read_long_rope_factors(const GgufHeader& header, const std::vector<File>& in,
                                          std::string_view tensor, int64_t pairs) {
  const GgufTensor* found = header.find(tensor);
  if (!found)
    user_error("{}: tensor '{}' is missing, expected it and '{}' or neither", header.source(), tensor,
               tensor == kGgufLongRopeFactors ? kGgufShortRopeFactors : kGgufLongRopeFactors);
  std::vector<float> factors = read_rope_factors(header, in, *found, pairs);
  for (const float factor : factors)
    if (!(factor > 0 && factor < kMaxRopeFactor))
      user_error("{}, tensor '{}': found {}, expected divisors above 0 and below {}", header.source(), tensor, factor,
                 kMaxRopeFactor);
  return factors;
}

// Adds LongRope, of which GGUF has the divisors as tensors and the rest as keys. It is spelt as in Phi-3's own files,
// which transformers 4 reads as well.
void add_long_rope(OrderedJson& json, const GgufHeader& header, const std::vector<File>& in,
                   const GgufArchitecture& kind, const HfConfig& config) {
  if (!kind.has_long_rope || (!header.find(kGgufLongRopeFactors) && !header.find(kGgufShortRopeFactors))) return;
  refuse_scaling_keys(json, header, kind, kGgufLongRopeFactors);
  const auto key = [&](std::string_view suffix) { return fmt::format("{}.rope.scaling.{}", kind.name, suffix); };
  const int64_t pairs = (config.rope.dim > 0 ? config.rope.dim : config.head_dim) / 2;
  const int64_t longest = json["max_position_embeddings"];
  const int64_t original = header.integer(key("original_context_length"), 2, kMaxPosition, longest);
  json["original_max_position_embeddings"] = original;
  json["rope_scaling"] = {{"type", "longrope"},
                          {"short_factor", read_long_rope_factors(header, in, kGgufShortRopeFactors, pairs)},
                          {"long_factor", read_long_rope_factors(header, in, kGgufLongRopeFactors, pairs)}};
  const double attention = header.number(key("attn_factor"), 1.0);
  if (!(attention >= 0 && attention <= kMaxRopeFactor))
    header.fail(key("attn_factor"), fmt::format("a number from 0 to {}", kMaxRopeFactor));
  const double usual = longrope_attention_factor(static_cast<double>(longest) / static_cast<double>(original),
                                                 static_cast<double>(original));
  if (std::abs(attention - usual) > 1e-6 * usual) json["rope_scaling"]["attention_factor"] = attention;
}

// Returns how the values of the tensors are stored: "61 F32, 210 Q4_1".
std::string types_text(const GgufHeader& header) {
  std::map<GgufType, int64_t> counts;
  for (const GgufTensor& tensor : header.tensors()) ++counts[tensor.type];
  std::string text;
  for (const auto& [type, count] : counts) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name(type));
  return text;
}

std::vector<std::string> notes_on(const GgufHeader& header) {
  std::vector<std::string> notes{fmt::format("tensors of {}: written in bf16", types_text(header))};
  if (const auto unused = gguf_unused_keys(header); !unused.empty())
    notes.push_back(fmt::format("not used: {}", fmt::join(unused, ", ")));
  const std::string window = "llama.attention.sliding_window";
  if (header.integer(window, 0, INT64_MAX, 0) != 0)
    notes.push_back(fmt::format("a mistral: '{}' is {}", window, header.integer(window, 0, INT64_MAX)));
  return notes;
}

// Holds what a file's header says of the model that is made of it.
struct ReadableGguf {
  GgufHeader header;
  std::vector<File> in;
  OrderedJson config;
  std::vector<GgufTensorName> names;
};

ReadableGguf open_gguf(const fs::path& file) {
  const std::vector<fs::path> files = gguf_files(file);
  GgufHeader header = read_gguf(files);
  std::vector<File> in;
  for (const fs::path& path : files) in.push_back(File::open_read(path, IoMode::Buffered));
  auto json = OrderedJson::parse(gguf_model_config(header));
  const GgufArchitecture& kind = *find_gguf_architecture(header.string("general.architecture"));
  // The text is read back as any config is: sizes out of range are refused here, before anything is computed from them.
  const Json parsed = parse_json(json.dump(), file.string());
  const std::string type = parsed["model_type"], class_name = parsed["architectures"][0];
  const HfFamily family{
      .model_type = type,
      .architecture = class_name,
      .activation = kind.activation,
      .epsilon_key = kind.epsilon_key,
      .own_keys = {"attention_bias", "mlp_bias", "sliding_window", "use_sliding_window", "embedding_multiplier",
                   "residual_multiplier", "logits_scaling", "attn_logit_softcapping", "final_logit_softcapping",
                   "logit_scale", "rope_parameters", "use_qkv_bias", "use_bias", "attention_out_bias", "use_qk_norm",
                   "qk_layernorm", "use_parallel_residual", "partial_rotary_factor"}};
  const HfConfig config =
      parse_hf_config(JsonObject(parsed, file.string() + ", read as config.json"), std::span(&family, 1));
  add_llama3_scaling(json, header, in, kind, config);
  add_long_rope(json, header, in, kind, config);
  std::vector<GgufTensorName> names = gguf_tensor_names(
      {.architecture = &kind,
       .hidden = config.hidden_size,
       .inner = config.intermediate_size,
       .layers = config.layers,
       .heads = config.heads,
       .kv_heads = config.kv_heads,
       .head_dim = config.head_dim,
       .vocabulary = config.vocabulary,
       .own_head = !config.tie_word_embeddings,
       .qkv_biases = kind.has_biases || parsed.value("attention_bias", false) || parsed.value("use_qkv_bias", false),
       .o_bias = kind.has_biases || (kind.may_have_biases && parsed.value("attention_bias", false)),
       .mlp_biases = kind.has_biases || (kind.may_have_biases && parsed.value("mlp_bias", false)),
       .head_gains = parsed.value("use_qk_norm", false) || parsed.value("qk_layernorm", false),
       .parallel = parsed.value("use_parallel_residual", false)});
  check_tensors(header, kind, names);
  return {std::move(header), std::move(in), std::move(json), std::move(names)};
}

}  // namespace

void check_gguf(const fs::path& file) { gguf_tokenizer(open_gguf(file).header); }

std::vector<std::string> import_gguf(const fs::path& file, const fs::path& out, Existing existing) {
  const auto [header, in, json, names] = open_gguf(file);
  std::vector<SafetensorsTensor> tensors;
  std::vector<size_t> first;  // of each name's tensors, which lie one after the other
  for (const GgufTensorName& name : names) {
    first.push_back(tensors.size());
    if (!name.in_vectors()) tensors.push_back({name.hugging_face, DType::BF16, name.shape});
    for (int64_t row = 0; name.in_vectors() && row < name.shape.rows(); ++row)
      tensors.push_back({name.vector_name(row), DType::BF16, {name.shape.cols()}});
  }
  const SafetensorsLayout layout = layout_safetensors(tensors);

  require_room_in_memory(out, layout.file_bytes);
  PendingDirectory pending(out, existing);
  write_text(pending.path() / "config.json", json.dump(2) + "\n");
  write_text(pending.path() / "generation_config.json", gguf_generation_config(header));
  write_text(pending.path() / "tokenizer.json", gguf_tokenizer(header));
  write_text(pending.path() / "tokenizer_config.json", gguf_tokenizer_config(header));
  File weights = File::create(pending.path() / "model.safetensors", IoMode::Direct);
  weights.allocate(layout.file_bytes);
  weights.write(0, std::as_bytes(std::span(layout.header)));
  for (size_t i = 0; i < names.size(); ++i) {
    const GgufTensor& tensor = *header.find(names[i].gguf);
    Converter(in[tensor.file], tensor, names[i]).convert(weights, layout.offset[first[i]]);
  }
  weights.sync();
  pending.publish();
  return notes_on(header);
}

}  // namespace snug
