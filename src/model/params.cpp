#include "model/params.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/error.h"

namespace snug {
namespace {

class TableBuilder {
 public:
  TableBuilder(const ModelSpec& model, const PeftConfig* adapter, bool trainable)
      : model_(model), adapter_(adapter), base_trainable_(trainable && !adapter), adapter_trainable_(trainable) {}

  ParamTable build() {
    table_.head_tensor = model_.head;
    table_.layer_prefix = model_.layer_prefix;
    begin_group("embedding");
    table_.embedding = add(model_.embedding, {model_.vocabulary, model_.hidden}, true, false);
    for (size_t layer = 0; layer < model_.layers.size(); layer++) {
      begin_group(fmt::format("layers.{}", layer));
      table_.layers.push_back(layer_of(model_.layers[layer], model_.prefix_of(layer)));
    }
    begin_group("head");
    table_.final_norm = norm("", model_.final_norm, model_.hidden);
    table_.head = model_.tied ? table_.embedding : add(model_.head, {model_.vocabulary, model_.hidden}, true, false);
    return std::move(table_);
  }

 private:
  void begin_group(std::string name) { table_.groups.push_back(std::move(name)); }
  int group() const { return table_.group_count() - 1; }

  ParamId add(const std::string& name, const Shape& shape, bool decay, bool joined) {
    table_.params.push_back({.name = name,
                             .stored = {name, 0, shape.rank > 0 ? shape[0] : 0},
                             .shape = shape,
                             .group = group(),
                             .trainable = base_trainable_,
                             .decay = decay,
                             .joined = joined});
    return static_cast<ParamId>(table_.params.size() - 1);
  }

  // Adds the norm's parameter; a spec without a weight has no norm.
  Norm norm(const std::string& prefix, const NormSpec& spec, int64_t elements) {
    if (spec.weight.empty()) return {};
    const ParamId gain = add(prefix + spec.weight, {elements}, false, false);
    table_.params.back().initial = spec.plus_one ? 0.0f : 1.0f;
    check(spec.bias.empty() || spec.kind == NormKind::Layer, "'{}' is the bias of an RMSNorm", spec.bias);
    const ParamId bias = spec.bias.empty() ? kNoParam : add(prefix + spec.bias, {elements}, false, false);
    return {gain, spec.epsilon, spec.plus_one, spec.kind, bias};
  }

  LayerParams layer_of(const LayerSpec& spec, const std::string& prefix) {
    LayerParams layer;
    layer.group = group();
    layer.attention_norm = norm(prefix, spec.attention_norm, model_.hidden);
    layer.qkv = linear(prefix, "qkv", spec.qkv);
    const bool joint = spec.joint_head_norms;
    layer.query_norm = norm(prefix, spec.query_norm, joint ? spec.heads.query_columns() : spec.heads.dim);
    layer.key_norm = norm(prefix, spec.key_norm, joint ? spec.heads.key_columns() : spec.heads.dim);
    layer.o = linear(prefix, "o", spec.o);
    layer.attention_post_norm = norm(prefix, spec.attention_post_norm, model_.hidden);
    layer.mlp_norm = norm(prefix, spec.mlp_norm, model_.hidden);
    layer.gate_up = linear(prefix, spec.gated ? "gate_up" : "up", spec.gate_up);
    layer.down = linear(prefix, "down", spec.down);
    layer.mlp_post_norm = norm(prefix, spec.mlp_post_norm, model_.hidden);
    return layer;
  }

  Linear linear(const std::string& prefix, std::string site, const LinearSpec& spec) {
    Linear linear{.site = std::move(site), .count = static_cast<int>(spec.parts.size()), .in = spec.in};
    for (const LinearPart& part : spec.parts) {
      const ParamId id = add(prefix + part.module + ".weight", {part.rows, spec.in}, true, linear.weight != kNoParam);
      store_in(prefix, spec.parts, part, ".weight");
      table_.params.back().linear = true;
      if (linear.weight == kNoParam) linear.weight = id;
      linear.out += part.rows;
    }
    if (spec.bias)
      for (const LinearPart& part : spec.parts) {
        const ParamId id = add(prefix + part.module + ".bias", {part.rows}, false, linear.bias != kNoParam);
        store_in(prefix, spec.parts, part, ".bias");
        if (linear.bias == kNoParam) linear.bias = id;
      }
    if (adapter_) linear.lora = lora(prefix, spec.in, spec.parts);
    return linear;
  }

  // Says where files have the last parameter, of this part, if that is a tensor of several.
  void store_in(const std::string& prefix, const std::vector<LinearPart>& parts, const LinearPart& part,
                std::string_view kind) {
    if (part.stored_in.empty()) return;
    StoredRows stored{fmt::format("{}{}{}", prefix, part.stored_in, kind)};
    for (const LinearPart& other : parts) {
      if (other.stored_in != part.stored_in) continue;
      if (&other < &part) stored.first += other.rows;
      stored.rows += other.rows;
    }
    table_.params.back().stored = std::move(stored);
  }

  Lora lora(const std::string& prefix, int64_t in, const std::vector<LinearPart>& parts) {
    Lora lora{.dropout = adapter_->dropout};
    auto add_half = [&](const std::string& module, LoraHalf half, const Shape& shape, bool joined) {
      const ParamId id = add(to_string({prefix + module, half}), shape, true, joined);
      ParamSpec& spec = table_.params.back();
      spec.adapter = true;
      spec.trainable = adapter_trainable_;
      return id;
    };
    std::vector<std::string> modules;  // by part of the adapter
    int64_t row = 0;
    for (const LinearPart& part : parts) {
      const int64_t begin = row;
      row += part.rows;
      const std::optional<LoraTarget> target = target_of(*adapter_, prefix + part.module);
      if (!target) continue;
      const ParamId a = add_half(part.module, LoraHalf::A, {target->rank, in}, lora.a != kNoParam);
      if (lora.a == kNoParam) lora.a = a;
      lora.parts.push_back({begin, row, kNoParam, target->rank, static_cast<float>(target->scale)});
      modules.push_back(part.module);
    }
    for (size_t i = 0; i < modules.size(); i++) {
      LoraPart& part = lora.parts[i];
      part.b = add_half(modules[i], LoraHalf::B, {part.row_end - part.row_begin, part.rank}, i > 0);
    }
    return lora;
  }

  const ModelSpec& model_;
  const PeftConfig* adapter_;
  bool base_trainable_, adapter_trainable_;
  ParamTable table_;
};

}  // namespace

bool Lora::even() const {
  return std::ranges::all_of(
      parts, [&](const LoraPart& part) { return part.rank == parts[0].rank && part.scale == parts[0].scale; });
}

int64_t Lora::columns() const {
  int64_t sum = 0;
  for (const LoraPart& part : parts) sum += part.rank;
  return sum;
}

int64_t ParamTable::count(bool trainable_only) const {
  int64_t total = 0;
  for (const ParamSpec& param : params)
    if (param.trainable || !trainable_only) total += param.shape.count();
  return total;
}

std::vector<std::string> linear_names(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const LayerSpec& layer : model.layers)
    for (const LinearSpec* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down})
      for (const LinearPart& part : linear->parts)
        if (std::string name = part.module.substr(part.module.rfind('.') + 1); std::ranges::count(names, name) == 0)
          names.push_back(std::move(name));
  return names;
}

ParamTable full_parameters(const ModelSpec& model, bool trainable) {
  return TableBuilder(model, nullptr, trainable).build();
}

ParamTable lora_parameters(const ModelSpec& model, const PeftConfig& adapter, bool trainable) {
  ParamTable table = TableBuilder(model, &adapter, trainable).build();
  if (!std::ranges::any_of(table.params, &ParamSpec::adapter))
    user_error("adapter's targets: found none among the model's linears, whose names end with {}",
               fmt::join(linear_names(model), ", "));
  return table;
}

PeftConfig plain_adapter(const ModelSpec& model, const PeftConfig& adapter, std::string_view source) {
  const auto refuse = [&](std::string_view key, std::string_view what) {
    user_error("{}, key '{}': training {} is not supported yet; eval, generate, chat and merge read it", source, key,
               what);
  };
  if (!adapter.modules_to_save.empty()) refuse("modules_to_save", "modules that are saved whole");
  if (!adapter.trainable_token_indices.empty()) refuse("trainable_token_indices", "rows of an embedding");
  if (adapter.bias != "none") refuse("bias", "biases beside an adapter");
  std::map<std::string, std::vector<std::string>> linears, adapted;  // paths by their last part
  for (const ParamSpec& param : full_parameters(model, false).params) {
    if (!param.linear) continue;
    const std::string path = param.name.substr(0, param.name.rfind('.')), last = path.substr(path.rfind('.') + 1);
    linears[last].push_back(path);
    const std::optional<LoraTarget> target = target_of(adapter, path);
    if (!target) continue;
    adapted[last].push_back(path);
    if (*target != default_targets(adapter))
      refuse(target->rank == adapter.rank ? "alpha_pattern" : "rank_pattern", "adapters of several ranks or scales");
  }
  for (const std::string& name : adapter.target_modules)
    if (std::ranges::none_of(linears, [&](const auto& paths) {
          return std::ranges::any_of(paths.second, [&](const std::string& path) { return ends_path(path, name); });
        }))
      user_error("adapter's target '{}': found no such linear in the model, expected names among {}", name,
                 fmt::join(linear_names(model), ", "));
  PeftConfig plain{.base_model = adapter.base_model,
                   .rank = adapter.rank,
                   .alpha = adapter.alpha,
                   .dropout = adapter.dropout,
                   .rslora = adapter.rslora,
                   .target_modules = adapter.target_modules};
  if (!adapter.target_expression && adapter.exclude_modules.empty() && !adapter.layers_to_transform) return plain;
  plain.target_modules.clear();
  for (const auto& [last, paths] : adapted) {
    const std::vector<std::string> whole{last};
    const auto& names = paths == linears[last] ? whole : paths;
    plain.target_modules.insert(plain.target_modules.end(), names.begin(), names.end());
  }
  std::ranges::sort(plain.target_modules);
  return plain;
}

}  // namespace snug
