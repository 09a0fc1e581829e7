#include "model/params.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace snug {
namespace {

// One linear of a checkpoint that is part of a fused product.
struct Part {
  std::string module;  // "self_attn.q_proj"
  int64_t rows;
};

class TableBuilder {
 public:
  TableBuilder(const HfConfig& config, const PeftConfig* adapter, bool trainable)
      : config_(config), adapter_(adapter), base_trainable_(trainable && !adapter), adapter_trainable_(trainable) {}

  ParamTable build() {
    const int64_t hidden = config_.hidden_size;
    table_.embedding = add("model.embed_tokens.weight", {config_.vocabulary, hidden}, true, false);
    for (int64_t layer = 0; layer < config_.layers; layer++) {
      group_++;
      table_.blocks.push_back(block(fmt::format("model.layers.{}.", layer)));
    }
    group_++;
    table_.final_norm = add("model.norm.weight", {hidden}, false, false);
    table_.head = config_.tie_word_embeddings ? table_.embedding
                                              : add("lm_head.weight", {config_.vocabulary, hidden}, true, false);
    table_.groups = group_ + 1;
    return std::move(table_);
  }

 private:
  ParamId add(std::string name, const Shape& shape, bool decay, bool joined) {
    table_.params.push_back({.name = std::move(name),
                             .shape = shape,
                             .group = group_,
                             .trainable = base_trainable_,
                             .decay = decay,
                             .joined = joined});
    return static_cast<ParamId>(table_.params.size() - 1);
  }

  BlockParams block(const std::string& prefix) {
    const int64_t hidden = config_.hidden_size, ffn = config_.intermediate_size;
    const int64_t queries = config_.heads * config_.head_dim, keys = config_.kv_heads * config_.head_dim;
    BlockParams block;
    block.attention_norm = add(prefix + "input_layernorm.weight", {hidden}, false, false);
    block.qkv = linear(prefix, "qkv", hidden,
                       {{"self_attn.q_proj", queries}, {"self_attn.k_proj", keys}, {"self_attn.v_proj", keys}},
                       config_.qkv_bias);
    block.o = linear(prefix, "o", queries, {{"self_attn.o_proj", hidden}}, false);
    block.mlp_norm = add(prefix + "post_attention_layernorm.weight", {hidden}, false, false);
    block.gate_up = linear(prefix, "gate_up", hidden, {{"mlp.gate_proj", ffn}, {"mlp.up_proj", ffn}}, false);
    block.down = linear(prefix, "down", ffn, {{"mlp.down_proj", hidden}}, false);
    block.window = config_.window(std::ssize(table_.blocks));
    return block;
  }

  Linear linear(const std::string& prefix, std::string site, int64_t in, const std::vector<Part>& parts, bool bias) {
    Linear linear{.site = std::move(site), .count = static_cast<int>(parts.size()), .in = in};
    for (const Part& part : parts) {
      const ParamId id = add(prefix + part.module + ".weight", {part.rows, in}, true, linear.weight != kNoParam);
      table_.params.back().linear = true;
      if (linear.weight == kNoParam) linear.weight = id;
      linear.out += part.rows;
    }
    if (bias)
      for (const Part& part : parts) {
        const ParamId id = add(prefix + part.module + ".bias", {part.rows}, false, linear.bias != kNoParam);
        if (linear.bias == kNoParam) linear.bias = id;
      }
    if (adapter_) linear.lora = lora(prefix, in, parts);
    return linear;
  }

  Lora lora(const std::string& prefix, int64_t in, const std::vector<Part>& parts) {
    const int64_t rank = adapter_->rank;
    Lora lora{.rank = rank, .scale = static_cast<float>(lora_scale(*adapter_)), .dropout = adapter_->dropout};
    auto targeted = [&](const Part& part) { return targets(*adapter_, prefix + part.module); };
    auto add_adapter = [&](const Part& part, LoraHalf half, const Shape& shape, bool joined) {
      const ParamId id = add(to_string({prefix + part.module, half}), shape, true, joined);
      ParamSpec& spec = table_.params.back();
      spec.adapter = true;
      spec.trainable = adapter_trainable_;
      return id;
    };
    for (const Part& part : parts) {
      if (!targeted(part)) continue;
      const ParamId id = add_adapter(part, LoraHalf::A, {rank, in}, lora.a != kNoParam);
      if (lora.a == kNoParam) lora.a = id;
    }
    int64_t row = 0;
    for (const Part& part : parts) {
      if (targeted(part))
        lora.parts.push_back(
            {row, row + part.rows, add_adapter(part, LoraHalf::B, {part.rows, rank}, !lora.parts.empty())});
      row += part.rows;
    }
    return lora;
  }

  const HfConfig& config_;
  const PeftConfig* adapter_;
  bool base_trainable_, adapter_trainable_;
  int group_ = 0;
  ParamTable table_;
};

}  // namespace

int64_t ParamTable::count(bool trainable_only) const {
  int64_t total = 0;
  for (const ParamSpec& param : params)
    if (param.trainable || !trainable_only) total += param.shape.count();
  return total;
}

const std::vector<std::string>& linear_names() {
  static const std::vector<std::string> names{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                              "gate_proj", "up_proj", "down_proj"};
  return names;
}

ParamTable full_parameters(const HfConfig& config, bool trainable) {
  return TableBuilder(config, nullptr, trainable).build();
}

ParamTable lora_parameters(const HfConfig& config, const PeftConfig& adapter, bool trainable) {
  ParamTable table = TableBuilder(config, &adapter, trainable).build();
  for (const std::string& target : adapter.target_modules) {
    const bool found = std::ranges::any_of(table.params, [&](const ParamSpec& param) {
      const std::string linear = param.name.substr(0, param.name.rfind('.'));
      return !param.adapter && param.shape.rank == 2 && targets({.target_modules = {target}}, linear) &&
             std::ranges::find(linear_names(), linear.substr(linear.rfind('.') + 1)) != linear_names().end();
    });
    if (!found)
      user_error("adapter's target '{}': found no such linear in the model, expected names among {}", target,
                 fmt::join(linear_names(), ", "));
  }
  if (adapter.target_modules.empty())
    user_error("adapter's targets: found none, expected names among {}", fmt::join(linear_names(), ", "));
  return table;
}

}  // namespace snug
