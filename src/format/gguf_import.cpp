#include "format/gguf_import.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "format/hf_config.h"
#include "format/json.h"
#include "format/safetensors.h"

namespace snug {
namespace fs = std::filesystem;
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr uint64_t kChunkValues = 1 << 20;  // converted at a time
constexpr std::string_view kRopeFactors = "rope_freqs.weight";

// A tensor of the model and the one it is made from.
struct Source {
  std::string gguf_name, name;
  Shape shape;
  // llama.cpp turns rotary pairs (i, i + head_dim / 2) of Llama's q and k into neighbours (2 i, 2 i + 1). Rows a head
  // then; 0 where rows keep their order.
  int64_t interleaved_head_rows = 0;
};

std::vector<Source> list_sources(const HfConfig& config, bool llama) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t q_rows = config.heads * config.head_dim, kv_rows = config.kv_heads * config.head_dim;
  const int64_t head_rows = llama ? config.head_dim : 0;
  std::vector<Source> sources{
      {"token_embd.weight", "model.embed_tokens.weight", {config.vocabulary, hidden}},
      {"output_norm.weight", "model.norm.weight", {hidden}},
  };
  if (!config.tie_word_embeddings) {
    sources.push_back({"output.weight", "lm_head.weight", {config.vocabulary, hidden}});
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const auto add = [&](const char* gguf_name, const char* name, Shape shape, int64_t interleaved_head_rows = 0) {
      sources.push_back({fmt::format("blk.{}.{}", layer, gguf_name), fmt::format("model.layers.{}.{}", layer, name),
                         shape, interleaved_head_rows});
    };
    add("attn_norm.weight", "input_layernorm.weight", {hidden});
    add("attn_q.weight", "self_attn.q_proj.weight", {q_rows, hidden}, head_rows);
    add("attn_k.weight", "self_attn.k_proj.weight", {kv_rows, hidden}, head_rows);
    add("attn_v.weight", "self_attn.v_proj.weight", {kv_rows, hidden});
    if (!llama) {
      add("attn_q.bias", "self_attn.q_proj.bias", {q_rows});
      add("attn_k.bias", "self_attn.k_proj.bias", {kv_rows});
      add("attn_v.bias", "self_attn.v_proj.bias", {kv_rows});
    }
    add("attn_output.weight", "self_attn.o_proj.weight", {hidden, q_rows});
    add("ffn_norm.weight", "post_attention_layernorm.weight", {hidden});
    add("ffn_gate.weight", "mlp.gate_proj.weight", {inner, hidden});
    add("ffn_up.weight", "mlp.up_proj.weight", {inner, hidden});
    add("ffn_down.weight", "mlp.down_proj.weight", {hidden, inner});
  }
  return sources;
}

// Every source is in the file with its shape, and the file holds nothing else.
void check_sources(const GgufHeader& header, const std::vector<Source>& sources) {
  std::set<std::string_view> used{kRopeFactors};
  for (const Source& source : sources) {
    const GgufTensor* tensor = header.find(source.gguf_name);
    if (!tensor) {
      user_error("{}: tensor '{}' is missing, expected {}", header.source(), source.gguf_name, to_string(source.shape));
    }
    const std::span<const int64_t> expected(source.shape.dims.data(), static_cast<size_t>(source.shape.rank));
    if (!std::ranges::equal(tensor->shape, expected)) {
      user_error("{}, tensor '{}': found [{}], expected {}", header.source(), source.gguf_name,
                 fmt::join(tensor->shape, ", "), to_string(source.shape));
    }
    used.insert(source.gguf_name);
  }
  for (const GgufTensor& tensor : header.tensors()) {
    if (!used.contains(tensor.name)) {
      user_error("{}: found tensor '{}', which no {} model has", header.source(), tensor.name,
                 header.string("general.architecture"));
    }
  }
}

// Where row `row` of a tensor lies in the file's order.
int64_t stored_row(const Source& source, int64_t row) {
  const int64_t head_rows = source.interleaved_head_rows;
  if (head_rows == 0) return row;
  const int64_t in_head = row % head_rows, half = head_rows / 2;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

// Converts one tensor to bf16 at `offset` of `out`, a chunk of rows at a time.
void convert_tensor(const File& in, const GgufTensor& tensor, const Source& source, File& out, uint64_t offset) {
  const auto columns = static_cast<uint64_t>(source.shape.cols());
  const int64_t rows = source.shape.rows();
  const uint64_t stored_bytes = row_bytes(tensor.type, columns);
  const auto chunk_rows = static_cast<int64_t>(std::max<uint64_t>(1, kChunkValues / columns));
  std::vector<std::byte> stored(static_cast<uint64_t>(std::min(chunk_rows, rows)) * stored_bytes);
  std::vector<float> row_values(columns);
  std::vector<BFloat16> values(static_cast<uint64_t>(std::min(chunk_rows, rows)) * columns);
  for (int64_t first = 0; first < rows; first += chunk_rows) {
    const auto count = static_cast<uint64_t>(std::min(chunk_rows, rows - first));
    const bool in_order = source.interleaved_head_rows == 0;
    if (in_order) {
      in.read(tensor.offset + static_cast<uint64_t>(first) * stored_bytes,
              std::span(stored).first(count * stored_bytes));
    }
    for (uint64_t i = 0; i < count; ++i) {
      const auto row = std::span(stored).subspan(i * stored_bytes, stored_bytes);
      if (!in_order) {
        const auto from = static_cast<uint64_t>(stored_row(source, first + static_cast<int64_t>(i)));
        in.read(tensor.offset + from * stored_bytes, row);
      }
      dequantize(tensor.type, row, row_values);
      for (uint64_t c = 0; c < columns; ++c) values[i * columns + c] = BFloat16(row_values[c]);
    }
    out.write(offset + static_cast<uint64_t>(first) * columns * sizeof(BFloat16),
              std::as_bytes(std::span(values).first(count * columns)));
  }
}

// The llama3 frequency factors of dimension pair i, under the constants of every Llama 3.1 to 3.3 release.
double llama3_factor(const RopeParameters& scaling, int64_t head_dim, int64_t i) {
  const double wavelength =
      2 * std::numbers::pi * std::pow(scaling.theta, 2 * static_cast<double>(i) / static_cast<double>(head_dim));
  const double turns = scaling.original_max_position / wavelength;
  const double blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  const double clamped = std::clamp(blend, 0.0, 1.0);
  return 1 / ((1 - clamped) / scaling.factor + clamped);
}

// GGUF has no key for llama3 scaling: it stores what each frequency is divided by. The factor is the largest of these;
// with the releases' other constants it must give all of them back.
std::optional<RopeParameters> infer_rope_scaling(const GgufHeader& header, const File& in, const HfConfig& config) {
  const GgufTensor* tensor = header.find(kRopeFactors);
  if (!tensor) return std::nullopt;
  const int64_t pairs = config.head_dim / 2;
  if (tensor->shape != std::vector<int64_t>{pairs} || tensor->type != GgufType::F32) {
    user_error("{}, tensor '{}': found [{}] of type {}, expected [{}] of type F32", header.source(), kRopeFactors,
               fmt::join(tensor->shape, ", "), name(tensor->type), pairs);
  }
  std::vector<float> factors(static_cast<size_t>(pairs));
  in.read(tensor->offset, std::as_writable_bytes(std::span(factors)));
  RopeParameters scaling{.theta = config.rope.theta, .type = RopeType::Llama3};
  scaling.factor = std::ranges::max(factors);
  scaling.original_max_position = 8192;
  for (int64_t i = 0; i < pairs; ++i) {
    const double expected = llama3_factor(scaling, config.head_dim, i);
    const double found = factors[static_cast<size_t>(i)];
    if (!(std::abs(found - expected) <= 1e-4 * expected)) {
      user_error("{}, tensor '{}': found {} for pair {}, expected {} as in Llama 3.1", header.source(), kRopeFactors,
                 found, i, expected);
    }
  }
  return scaling;
}

// Refuses what changes the mathematics of a dense llama or qwen2.
void refuse_unsupported(const GgufHeader& header, const std::string& architecture) {
  if (header.integer("split.count", 0, INT64_MAX, 0) > 1) header.fail("split.count", "a model in one file");
  for (const char* suffix : {"expert_count", "attention.sliding_window"}) {
    const std::string key = fmt::format("{}.{}", architecture, suffix);
    if (header.integer(key, 0, INT64_MAX, 0) != 0) header.fail(key, "0 or nothing");
  }
  const std::string scaling = architecture + ".rope.scaling.type";
  if (header.string(scaling, "none") != "none") header.fail(scaling, "\"none\"");
}

int64_t find_head_dim(const GgufHeader& header, const std::string& architecture, int64_t hidden, int64_t heads) {
  const std::string key_length = architecture + ".attention.key_length";
  const int64_t head_dim = header.integer(key_length, 1, 1 << 20, std::max<int64_t>(1, hidden / heads));
  for (const char* suffix : {"attention.value_length", "rope.dimension_count"}) {
    const std::string key = fmt::format("{}.{}", architecture, suffix);
    if (header.integer(key, 1, 1 << 20, head_dim) != head_dim) {
      header.fail(key, fmt::format("{}, the size of a head", head_dim));
    }
  }
  return head_dim;
}

// Rows of the embedding.
int64_t find_vocabulary(const GgufHeader& header) {
  const GgufTensor* embedding = header.find("token_embd.weight");
  if (!embedding) user_error("{}: tensor 'token_embd.weight' is missing, expected a matrix", header.source());
  if (embedding->shape.size() != 2) {
    user_error("{}, tensor 'token_embd.weight': found [{}], expected a matrix", header.source(),
               fmt::join(embedding->shape, ", "));
  }
  return embedding->shape[0];
}

OrderedJson model_config(const GgufHeader& header) {
  const std::string architecture = header.string("general.architecture");
  const bool llama = architecture == "llama";
  if (!llama && architecture != "qwen2") header.fail("general.architecture", "\"llama\" or \"qwen2\"");
  refuse_unsupported(header, architecture);
  const auto size = [&](const char* key, std::optional<int64_t> fallback = {}) {
    return header.integer(fmt::format("{}.{}", architecture, key), 1, INT64_C(1) << 32, fallback);
  };
  const int64_t vocabulary = find_vocabulary(header);
  const int64_t hidden = size("embedding_length"), heads = size("attention.head_count");
  OrderedJson config;
  config["architectures"] = {llama ? "LlamaForCausalLM" : "Qwen2ForCausalLM"};
  config["model_type"] = architecture;
  config["hidden_size"] = hidden;
  config["intermediate_size"] = size("feed_forward_length");
  config["num_hidden_layers"] = size("block_count");
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = size("attention.head_count_kv", heads);
  config["head_dim"] = find_head_dim(header, architecture, hidden, heads);
  config["vocab_size"] = vocabulary;
  config["max_position_embeddings"] = size("context_length");
  config["rms_norm_eps"] = header.number(architecture + ".attention.layer_norm_rms_epsilon");
  config["rope_theta"] = header.number(architecture + ".rope.freq_base", 10000.0);
  config["hidden_act"] = "silu";
  if (llama) config["attention_bias"] = config["mlp_bias"] = false;
  if (!llama) config["use_sliding_window"] = false;
  config["attention_dropout"] = 0.0;
  config["tie_word_embeddings"] = header.find("output.weight") == nullptr;
  config["torch_dtype"] = "bfloat16";
  for (const auto& [key, gguf_key] :
       {std::pair("bos_token_id", "bos"), {"eos_token_id", "eos"}, {"pad_token_id", "padding"}}) {
    const std::string name = fmt::format("tokenizer.ggml.{}_token_id", gguf_key);
    config[key] = header.has(name) ? OrderedJson(header.integer(name, 0, vocabulary - 1)) : OrderedJson();
  }
  return config;
}

std::string text_of(const OrderedJson& json) { return json.dump(2) + "\n"; }

}  // namespace

std::string gguf_model_config(const GgufHeader& header) { return text_of(model_config(header)); }

std::string gguf_generation_config(const GgufHeader& header) {
  constexpr const char* kEos = "tokenizer.ggml.eos_token_id";
  constexpr const char* kEndOfTurn = "tokenizer.ggml.eot_token_id";
  const int64_t last = find_vocabulary(header) - 1;
  OrderedJson config, ends = OrderedJson::array();
  config["_from_model_config"] = true;
  for (const auto& [key, gguf_key] : {std::pair("bos_token_id", "bos"), {"pad_token_id", "padding"}}) {
    const std::string name = fmt::format("tokenizer.ggml.{}_token_id", gguf_key);
    if (header.has(name)) config[key] = header.integer(name, 0, last);
  }
  if (header.has(kEos)) ends.push_back(header.integer(kEos, 0, last));
  if (header.has(kEndOfTurn)) ends.push_back(header.integer(kEndOfTurn, 0, last));
  if (ends.size() == 2 && ends[0] == ends[1]) ends.erase(1);
  if (!ends.empty()) config["eos_token_id"] = ends.size() == 1 ? ends[0] : ends;
  return text_of(config);
}

void import_gguf(const fs::path& file, const fs::path& out, Existing existing) {
  const GgufHeader header = read_gguf(file);
  const File in = File::open_read(file, IoMode::Buffered);
  OrderedJson json = model_config(header);
  // Read back as any config is: sizes out of range are refused here, before anything is computed from them.
  const Json parsed = parse_json(json.dump(), file.string());
  const std::string type = parsed["model_type"], architecture = parsed["architectures"][0];
  const HfFamily family{.model_type = type, .architecture = architecture};
  const HfConfig config =
      parse_hf_config(JsonObject(parsed, file.string() + ", read as config.json"), std::span(&family, 1));
  if (const auto scaling = infer_rope_scaling(header, in, config)) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", scaling->factor},
                            {"low_freq_factor", scaling->low_freq_factor},
                            {"high_freq_factor", scaling->high_freq_factor},
                            {"original_max_position_embeddings", scaling->original_max_position}};
  }
  const std::vector<Source> sources = list_sources(config, type == "llama");
  check_sources(header, sources);
  std::vector<SafetensorsTensor> tensors;
  for (const Source& source : sources) tensors.push_back({source.name, DType::BF16, source.shape});
  const SafetensorsLayout layout = layout_safetensors(tensors);

  PendingDirectory pending(out, existing);
  write_text(pending.path() / "config.json", text_of(json));
  write_text(pending.path() / "generation_config.json", gguf_generation_config(header));
  write_text(pending.path() / "tokenizer.json", gguf_tokenizer(header));
  write_text(pending.path() / "tokenizer_config.json", gguf_tokenizer_config(header));
  File weights = File::create(pending.path() / "model.safetensors", IoMode::Direct);
  weights.allocate(layout.file_bytes);
  weights.write(0, std::as_bytes(std::span(layout.header)));
  for (size_t i = 0; i < sources.size(); ++i) {
    convert_tensor(in, *header.find(sources[i].gguf_name), sources[i], weights, layout.offset[i]);
  }
  weights.sync();
  pending.publish();
}

}  // namespace snug
