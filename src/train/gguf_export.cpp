#include "train/gguf_export.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "base/parallel.h"
#include "format/gguf_vocabulary.h"
#include "format/gguf_writer.h"
#include "format/safetensors.h"
#include "model/model_config.h"
#include "model/multimodal.h"
#include "plan/spec/adapter_files.h"
#include "train/gguf_sizes.h"
#include "train/tensor_rows.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kChunkValues = 1 << 22;  // of a tensor in memory at a time

void refuse_values(std::span<const float> values, GgufType type, const std::string& tensor) {
  const bool narrow = type != GgufType::F32 && type != GgufType::BF16;
  for (const float value : values) {
    if (!std::isfinite(value)) user_error("tensor '{}': found {}, expected finite values", tensor, value);
    if (narrow && std::abs(value) > kMaxGgufValue)
      user_error("tensor '{}': found {}, expected at most {}, as {} holds it; {} bf16 holds all", tensor, value,
                 kMaxGgufValue, name(type), option_name("format"));
  }
}

// Reads rows of one of the file's tensors where the model's files have them.
class ModelRows {
 public:
  ModelRows(const SafetensorsIndex& index, const GgufTensorName& name) : first_(name.first_row) {
    const int64_t columns = name.shape.cols();
    if (!name.in_vectors())
      tensors_.emplace_back(index, index.require(name.hugging_face, name.stored_shape(), "config.json"), columns);
    for (int64_t row = 0; name.in_vectors() && row < name.shape.rows(); ++row)
      vectors_.emplace_back(index, index.require(name.vector_name(row), {columns}, "config.json"), columns);
  }

  // Returns rows [first, first + count) in fp32.
  std::vector<float> read(int64_t first, int64_t count) const {
    if (vectors_.empty()) return tensors_[0].read(first_ + first, count);
    std::vector<float> rows;
    for (int64_t row = first; row < first + count; ++row) {
      const std::vector<float> values = vectors_[static_cast<size_t>(row)].read(0, 1);
      rows.insert(rows.end(), values.begin(), values.end());
    }
    return rows;
  }

 private:
  int64_t first_;
  std::vector<TensorRows> tensors_, vectors_;  // one tensor, or a vector a row
};

// Writes one tensor at `offset`. Rows of heads are interleaved within the head, so a chunk holds whole heads.
void write_tensor(const ModelRows& source, const GgufTensorName& tensor, GgufType type, File& out, uint64_t offset,
                  const Heartbeat& heartbeat) {
  const bool matrix = tensor.shape.rank > 1;
  const int64_t rows = tensor.shape.rows(), columns = tensor.shape.cols();
  const int64_t head = matrix ? std::max<int64_t>(1, tensor.interleaved_head_rows) : 1;
  const int64_t chunk = std::max<int64_t>(1, kChunkValues / columns / head) * head;
  const uint64_t bytes = row_bytes(type, static_cast<uint64_t>(columns));
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    std::vector<float> values = source.read(first, count);
    refuse_values(values, type, tensor.hugging_face);
    if (tensor.more != 0)
      for (float& value : values) value += tensor.more;
    if (!matrix && tensor.interleaved_head_rows != 0) {
      const std::vector<float> straight = values;
      for (int64_t i = 0; i < columns; ++i)
        values[static_cast<size_t>(gguf_row(tensor, i))] = straight[static_cast<size_t>(i)];
    }
    std::vector<std::byte> stored(static_cast<uint64_t>(count) * bytes);
    parallel_for(count, [&](int64_t i) {
      const int64_t to = matrix ? gguf_row(tensor, first + i) - first : i;
      const auto row =
          std::span<const float>(values).subspan(static_cast<size_t>(i * columns), static_cast<size_t>(columns));
      quantize(type, row, std::span(stored).subspan(static_cast<uint64_t>(to) * bytes, bytes));
    });
    out.write(offset + static_cast<uint64_t>(first) * bytes, stored);
    call(heartbeat);
  }
}

// Gives names, and that of the head, the spelling that the files of a model of texts and images have.
void spell_as_files_do(const SafetensorsIndex& index, std::vector<GgufTensorName>& names, std::string& head) {
  const std::string embedding = names[0].hugging_face;
  if (index.find(embedding)) return;
  for (const Spelling& spelt : spellings_of(embedding)) {
    if (!index.find(spelt(embedding))) continue;
    for (GgufTensorName& name : names) name.hugging_face = spelt(name.hugging_face);
    head = spelt(head);
    return;
  }
}

// Returns whether a tensor holds nothing of the model: what the model computes itself, or a copy of the embedding.
bool is_left_out(std::string_view tensor, bool tied, std::string_view head) {
  return tensor.ends_with("rotary_emb.inv_freq") || (tied && tensor == head);
}

// Refuses tensors that would change what the model computes. Returns a line about those that a model of texts and
// images has beside its text model; empty if there are none.
std::string refuse_other_tensors(const SafetensorsIndex& index, const std::vector<GgufTensorName>& names, bool tied,
                                 std::string_view head, bool multimodal) {
  std::set<std::string> known;
  for (const GgufTensorName& tensor : names) {
    if (!tensor.in_vectors()) known.insert(tensor.hugging_face);
    for (int64_t row = 0; tensor.in_vectors() && row < tensor.shape.rows(); ++row)
      known.insert(tensor.vector_name(row));
  }
  std::vector<std::string> others;
  for (const SafetensorsEntry& entry : index.entries()) {
    if (known.contains(entry.name) || is_left_out(entry.name, tied, head)) continue;
    if (!multimodal || is_of_text_model(entry.name))
      user_error("{}: found tensor '{}', which has no place in a GGUF file of this family",
                 index.files()[entry.file].string(), entry.name);
    others.push_back(entry.name);
  }
  if (others.empty()) return "";
  return fmt::format("the text model alone is written; left out, as llama.cpp has them in a file of their own: '{}'{}",
                     others[0], others.size() > 1 ? fmt::format(" and {} more", others.size() - 1) : "");
}

void add_metadata(GgufWriter& writer, const ModelSpec& spec, const GgufSizes& sizes, GgufFileType type,
                  const std::string& title) {
  const std::string_view kind = sizes.architecture->name;
  const auto key = [&](std::string_view suffix) { return fmt::format("{}.{}", kind, suffix); };
  writer.add("general.architecture", kind);
  writer.add("general.type", "model");
  writer.add("general.name", title);
  writer.add_u32("general.file_type", number_of(type));
  writer.add_u32("general.quantization_version", 2);
  writer.add_u32(key("block_count"), static_cast<uint64_t>(sizes.layers));
  writer.add_u32(key("context_length"), static_cast<uint64_t>(spec.positions));
  writer.add_u32(key("embedding_length"), static_cast<uint64_t>(sizes.hidden));
  writer.add_u32(key("feed_forward_length"), static_cast<uint64_t>(sizes.inner));
  writer.add_u32(key("attention.head_count"), static_cast<uint64_t>(sizes.heads));
  writer.add_u32(key("attention.head_count_kv"), static_cast<uint64_t>(sizes.kv_heads));
  writer.add_u32(key("attention.key_length"), static_cast<uint64_t>(sizes.head_dim));
  writer.add_u32(key("attention.value_length"), static_cast<uint64_t>(sizes.head_dim));
  writer.add_f32(
      key(sizes.architecture->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
      spec.final_norm.epsilon);
  writer.add_u32(key("rope.dimension_count"),
                 static_cast<uint64_t>(spec.rope.dim > 0 ? spec.rope.dim : sizes.head_dim));
  writer.add_f32(key("rope.freq_base"), spec.rope.theta);
  writer.add_u32(key("vocab_size"), static_cast<uint64_t>(sizes.vocabulary));
  if (spec.rope.type == RopeType::Linear || spec.rope.type == RopeType::Yarn) {
    writer.add(key("rope.scaling.type"), name(spec.rope.type));
    writer.add_f32(key("rope.scaling.factor"), spec.rope.factor);
  }
  if (spec.rope.type == RopeType::LongRope) writer.add_f32(key("rope.scaling.attn_factor"), spec.rope.attention_factor);
  if (spec.rope.type == RopeType::LongRope || spec.rope.type == RopeType::Yarn)
    writer.add_u32(key("rope.scaling.original_context_length"), static_cast<uint64_t>(spec.rope.original_max_position));
  if (spec.rope.type == RopeType::Yarn) {
    writer.add_f32(key("rope.scaling.yarn_beta_fast"), spec.rope.beta_fast);
    writer.add_f32(key("rope.scaling.yarn_beta_slow"), spec.rope.beta_slow);
  }
  // A Phi without a window says so, as llama.cpp's converter has it: older versions of llama.cpp expect the key.
  if (const int64_t window = spec.layers[0].window; window != 0 || kind == "phi3")
    writer.add_u32(key("attention.sliding_window"), static_cast<uint64_t>(window));
  if (spec.rope.query_growth != 0) writer.add_f32(key("attention.temperature_scale"), spec.rope.query_growth);
  if (const double weight = gguf_yarn_log_multiplier(spec.rope); weight != 0)
    writer.add_f32(key("rope.scaling.yarn_log_multiplier"), weight);
  if (kind == "gemma2") {
    writer.add_f32(key("attn_logit_softcapping"), spec.layers[0].attention_cap);
    writer.add_f32(key("final_logit_softcapping"), spec.logits_cap);
  }
  if (sizes.architecture->layer_norm && !sizes.architecture->norm_bias)
    writer.add_f32(key("logit_scale"), spec.logits_factor);
  if (kind != "granite") return;
  writer.add_f32(key("attention.scale"), spec.layers[0].attention_scale);
  writer.add_f32(key("embedding_scale"), spec.embedding_factor);
  writer.add_f32(key("residual_scale"), spec.layers[0].residual_multiplier);
  writer.add_f32(key("logit_scale"), 1 / spec.logits_factor);
}

std::string types_note(const std::vector<GgufType>& types) {
  std::map<std::string_view, int64_t> counts;
  for (const GgufType type : types) ++counts[name(type)];
  std::vector<std::string> parts;
  for (const auto& [type, count] : counts) parts.push_back(fmt::format("{} {}", count, type));
  return fmt::format("tensors: {}", fmt::join(parts, ", "));
}

// Holds the adapter of one linear.
struct LoraPair {
  GgufTensorName linear;
  LoraTarget target;
  const SafetensorsEntry *a, *b;
  Shape a_shape() const { return {target.rank, linear.shape.cols()}; }
  Shape b_shape() const { return {linear.shape.rows(), target.rank}; }
  Shape stored_b_shape() const { return {linear.stored_shape().rows(), target.rank}; }
};

// Returns the adapters in the order of the model's tensors.
std::vector<LoraPair> lora_pairs(const AdapterFiles& files, const GgufSizes& sizes) {
  const std::string reason = std::string(kPeftConfigFile);
  std::vector<LoraPair> pairs;
  std::set<std::string> used;
  for (const GgufTensorName& tensor : gguf_tensor_names(sizes)) {
    if (!tensor.gguf.starts_with("blk.") || tensor.shape.rank < 2) continue;
    constexpr std::string_view kWeight = ".weight";
    const std::string linear = tensor.hugging_face.substr(0, tensor.hugging_face.size() - kWeight.size());
    const auto target = target_of(files.config, linear);
    const auto a = files.tensors.find(to_string({linear, LoraHalf::A})),
               b = files.tensors.find(to_string({linear, LoraHalf::B}));
    if (a == files.tensors.end() && b == files.tensors.end()) continue;
    if (!target || a == files.tensors.end() || b == files.tensors.end())
      user_error("{}: found tensor '{}', expected both halves of the adapter of a linear that {} names",
                 files.index.files()[0].string(), (a == files.tensors.end() ? b : a)->second, kPeftConfigFile);
    LoraPair pair{.linear = tensor, .target = *target, .a = nullptr, .b = nullptr};
    pair.a = &files.index.require(a->second, pair.a_shape(), reason);
    pair.b = &files.index.require(b->second, pair.stored_b_shape(), reason);
    pairs.push_back(std::move(pair));
    used.insert({a->first, b->first});
  }
  for (const auto& [param, tensor] : files.tensors)
    if (!used.contains(param))
      user_error(
          "{}: has no form in a GGUF adapter, which holds those of the layers' linears; {} f16 and others export model "
          "and adapter as one",
          files.where(tensor), option_name("format"));
  if (!files.tokens.empty())
    user_error(
        "{}: rows of the vocabulary have no form in a GGUF adapter; {} f16 and others export model and adapter as one",
        files.where(files.tokens.begin()->second.tensor), option_name("format"));
  if (pairs.empty()) user_error("{}: found no adapter of a linear", files.index.files()[0].string());
  return pairs;
}

// Returns the alpha of all adapters of a file, that of the first: of one whose scale is not 0, as llama.cpp takes an
// alpha of 0 for a scale of 1.
double common_alpha(const std::vector<LoraPair>& pairs) {
  for (const LoraPair& pair : pairs)
    if (pair.target.scale != 0) return pair.target.scale * static_cast<double>(pair.target.rank);
  return 1;
}

// Returns B, scaled where alpha / rank is not this adapter's scale.
std::vector<float> scaled_rows(const TensorRows& b, const LoraPair& pair, double alpha) {
  const double factor = pair.target.scale * static_cast<double>(pair.target.rank) / alpha;
  const int64_t rows = pair.linear.shape.rows(), rank = pair.target.rank;
  const std::vector<float> values = b.read(pair.linear.first_row, rows);
  std::vector<float> stored(values.size());
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < rank; ++i)
      stored[static_cast<size_t>(gguf_row(pair.linear, row) * rank + i)] =
          static_cast<float>(values[static_cast<size_t>(row * rank + i)] * factor);
  return stored;
}

}  // namespace

std::vector<std::string> export_gguf_model(const ModelConfig& config, const fs::path& model, const fs::path& files,
                                           const fs::path& file, GgufFileType file_type, const std::string& title,
                                           const Heartbeat& heartbeat) {
  const GgufSizes sizes = gguf_sizes(config, files);
  std::vector<GgufTensorName> names = gguf_tensor_names(sizes);
  const auto index = SafetensorsIndex::open_model(model);
  std::string head = sizes.head;
  spell_as_files_do(index, names, head);
  const std::string left_out =
      refuse_other_tensors(index, names, config.spec.tied, head, is_multimodal(config.spec.embedding));
  GgufWriter writer;
  add_metadata(writer, config.spec, sizes, file_type, title);
  std::vector<std::string> notes = add_gguf_tokenizer(writer, files, sizes.vocabulary, config.end_tokens);
  const std::vector<GgufRopeFactors> rope_factors = gguf_rope_factors(config.spec);
  std::vector<GgufType> types;
  for (const GgufTensorName& tensor : names) {
    types.push_back(gguf_tensor_type(file_type, tensor, sizes));
    writer.add_tensor(tensor.gguf, tensor.shape, types.back());
  }
  for (const auto& [tensor, factors] : rope_factors) writer.add_tensor(tensor, {std::ssize(factors)}, GgufType::F32);
  const GgufLayout layout = writer.layout();
  File out = File::create(file, IoMode::Buffered);
  out.allocate(layout.file_bytes, heartbeat);
  out.write(0, std::as_bytes(std::span(layout.header)));
  for (size_t i = 0; i < names.size(); ++i) {
    write_tensor(ModelRows(index, names[i]), names[i], types[i], out, layout.offset[i], heartbeat);
  }
  for (size_t i = 0; i < rope_factors.size(); ++i)
    out.write(layout.offset[names.size() + i], std::as_bytes(std::span(rope_factors[i].factors)));
  out.sync();
  notes.insert(notes.begin(), types_note(types));
  if (!left_out.empty()) notes.push_back(left_out);
  const int64_t window = config.spec.layers[0].window;
  if (window != 0 && window < config.spec.positions && sizes.architecture->passes_over_windows)
    notes.push_back(
        fmt::format("llama.cpp attends to all tokens, the model to the last {}: longer texts differ", window));
  if (config.spec.rope.type == RopeType::LongRope)
    notes.push_back(
        fmt::format("llama.cpp takes the rotary embedding of long texts for all texts where its context (-c; num_ctx "
                    "in Ollama) has more than {} tokens, and that of short ones for all otherwise",
                    config.spec.rope.original_max_position));
  return notes;
}

std::vector<std::string> export_gguf_adapter(const ModelConfig& config, const fs::path& model, const fs::path& adapter,
                                             const fs::path& file, const Heartbeat& heartbeat) {
  const GgufSizes sizes = gguf_sizes(config, model);
  const AdapterFiles files = open_adapter(adapter, config.spec.embedding, config.spec.head);
  if (files.config.scores)
    user_error("{}: is of a model that gives scores, expected one that gives logits: GGUF has no form for its head",
               adapter.string());
  const std::vector<LoraPair> pairs = lora_pairs(files, sizes);
  const double alpha = common_alpha(pairs);
  GgufWriter writer;
  writer.add("general.architecture", sizes.architecture->name);
  writer.add("general.type", "adapter");
  writer.add("general.name", fs::weakly_canonical(adapter).filename().string());
  writer.add("adapter.type", "lora");
  writer.add_f32("adapter.lora.alpha", alpha);
  for (const LoraPair& pair : pairs) {
    writer.add_tensor(pair.linear.gguf + ".lora_a", pair.a_shape(), GgufType::F32);
    writer.add_tensor(pair.linear.gguf + ".lora_b", pair.b_shape(), GgufType::F32);
  }
  const GgufLayout layout = writer.layout();
  File out = File::create(file, IoMode::Buffered);
  out.allocate(layout.file_bytes, heartbeat);
  out.write(0, std::as_bytes(std::span(layout.header)));
  for (size_t i = 0; i < pairs.size(); ++i) {
    const LoraPair& pair = pairs[i];
    const std::vector<float> a = TensorRows(files.index, *pair.a, pair.a_shape().cols()).read(0, pair.target.rank);
    const TensorRows b(files.index, *pair.b, pair.target.rank);
    const std::vector<float> stored = scaled_rows(b, pair, alpha);
    refuse_values(a, GgufType::F32, pair.a->name);
    refuse_values(stored, GgufType::F32, pair.b->name);
    out.write(layout.offset[2 * i], std::as_bytes(std::span(a)));
    out.write(layout.offset[2 * i + 1], std::as_bytes(std::span(stored)));
    call(heartbeat);
  }
  out.sync();
  return {fmt::format("adapters of {} linears in F32", pairs.size())};
}

}  // namespace snug
