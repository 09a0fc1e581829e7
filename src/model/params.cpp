#include "model/params.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/option_name.h"
#include "format/peft_tensors.h"

namespace snug {
namespace {

constexpr int64_t kMostLayers = 1 << 16;  // of a range
constexpr std::string_view kLoraB = ".lora_B.weight";

class TableBuilder {
 public:
  TableBuilder(const ModelSpec& model, const PeftConfig* adapter, bool trainable)
      : model_(model),
        adapter_(adapter),
        base_trainable_(trainable && !adapter),
        adapter_trainable_(trainable),
        initial_(adapter && adapter->init != LoraInit::Default) {}

  ParamTable build() {
    table_.head_tensor = model_.head;
    table_.layer_prefix = model_.layer_prefix;
    if (model_.tower) add_tower();
    begin_group("embedding");
    table_.embedding = add(model_.embedding, {model_.vocabulary, model_.hidden}, true, false);
    for (size_t layer = model_.tower_layers(); layer < model_.layers.size(); layer++) {
      begin_group(fmt::format("layers.{}", layer - model_.tower_layers()));
      table_.layers.push_back(layer_of(layer));
    }
    begin_group("head");
    table_.final_norm = norm("", model_.final_norm, model_.hidden);
    const int64_t rows = model_.scores ? 1 : model_.vocabulary;
    table_.head = model_.tied ? table_.embedding : add(model_.head, {rows, model_.hidden}, true, false);
    return std::move(table_);
  }

 private:
  void add_tower() {
    const TowerSpec& tower = model_.tower;
    begin_group("tower.patches");
    // Like an embedding it has no adapter.
    const PeftConfig* const adapter = std::exchange(adapter_, nullptr);
    table_.patches =
        linear(tower.prefix, "patches", {{{tower.patches, tower.width}}, tower.patch_numbers(), tower.patch_bias});
    adapter_ = adapter;
    ParamSpec& weight = table_.params[static_cast<size_t>(table_.patches.weight)];
    weight.stored.row_shape = tower.patch_shape;
    weight.linear = false;
    const auto add_rows = [&](const std::string& tensor, int64_t rows) {
      const ParamId id = add(tensor, {rows, tower.width}, true, false);
      // Files have tables that are for images of one size with a batch around them.
      if (tower.image_side > 0) table_.params.back().stored = {tensor, 0, 1, {rows, tower.width}};
      return id;
    };
    if (!tower.class_row.empty()) table_.class_row = add_rows(tower.class_row, 1);
    if (!tower.position_rows.empty()) table_.position_rows = add_rows(tower.position_rows, tower.position_count);
    for (size_t layer = 0; layer < model_.tower_layers(); layer++) {
      begin_group(layer + 1 == model_.tower_layers() ? "projector" : fmt::format("tower.{}", layer));
      table_.layers.push_back(layer_of(layer));
    }
    for (ParamSpec& param : table_.params) param.tower = true;
  }

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
    const ParamId gain = add_gain(prefix + spec.weight, {elements}, spec, false);
    check(spec.bias.empty() || spec.kind == NormKind::Layer, "'{}' is the bias of an RMSNorm", spec.bias);
    const ParamId bias = spec.bias.empty() ? kNoParam : add(prefix + spec.bias, {elements}, false, false);
    return {gain, spec.epsilon, spec.plus_one, spec.kind, bias};
  }

  ParamId add_gain(const std::string& name, const Shape& shape, const NormSpec& spec, bool joined) {
    const ParamId gain = add(name, shape, false, joined);
    table_.params.back().initial = spec.plus_one ? 0.0f : 1.0f;
    return gain;
  }

  // Adds the parameters of a norm of so many heads: one gain, or a row of it for each head, all in one tensor or each
  // in one of its own.
  Norm head_norm(const std::string& prefix, const NormSpec& spec, const LayerSpec& layer, int64_t heads) {
    const int64_t dim = layer.heads.dim;
    if (spec.weight.empty() || !layer.own_head_gains)
      return norm(prefix, spec, layer.joint_head_norms ? heads * dim : dim);
    check(spec.kind == NormKind::Layer && spec.bias.empty() && !layer.joint_head_norms,
          "'{}' has a gain for each head, expected a LayerNorm of heads without a bias", spec.weight);
    Norm norm{.epsilon = spec.epsilon, .plus_one = spec.plus_one, .kind = spec.kind, .gains = heads};
    if (spec.weight.find("{}") == std::string::npos) {
      norm.gain = add_gain(prefix + spec.weight, {heads, dim}, spec, false);
      return norm;
    }
    norm.count = static_cast<int>(heads);
    for (int64_t head = 0; head < heads; head++) {
      const ParamId gain = add_gain(prefix + fmt::format(fmt::runtime(spec.weight), head), {dim}, spec, head > 0);
      if (head == 0) norm.gain = gain;
    }
    return norm;
  }

  LayerParams layer_of(size_t number) {
    const LayerSpec& spec = model_.layers[number];
    if (spec.queries > 0) return resampler(number);
    const std::string prefix = model_.prefix_of(number);
    const int64_t width = model_.width_of(number);
    LayerParams layer;
    layer.group = group();
    layer.attention_norm = norm(prefix, spec.attention_norm, width);
    layer.qkv = linear(prefix, "qkv", spec.qkv);
    layer.query_norm = head_norm(prefix, spec.query_norm, spec, spec.heads.heads);
    layer.key_norm = head_norm(prefix, spec.key_norm, spec, spec.heads.kv_heads);
    layer.o = linear(prefix, "o", spec.o);
    layer.attention_post_norm = norm(prefix, spec.attention_post_norm, width);
    layer.mlp_norm = norm(prefix, spec.mlp_norm, width);
    layer.gate_up = linear(prefix, spec.gated ? "gate_up" : "up", spec.gate_up);
    layer.down = linear(prefix, "down", spec.down);
    layer.mlp_post_norm = norm(prefix, spec.mlp_post_norm, width);
    return layer;
  }

  // Like an embedding it has no adapters: PEFT gives none that would be used to what is no linear by itself.
  LayerParams resampler(size_t number) {
    const LayerSpec& spec = model_.layers[number];
    const std::string prefix = model_.prefix_of(number);
    const int64_t width = spec.heads.query_columns();
    const PeftConfig* const adapter = std::exchange(adapter_, nullptr);
    LayerParams layer;
    layer.group = group();
    layer.attention_norm = norm("", model_.tower.final_norm, model_.tower.width);
    layer.query = add(prefix + spec.query, {spec.queries, width}, true, false);
    if (!spec.query_places.empty()) {
      layer.query_places = add(prefix + spec.query_places, {spec.queries, width}, true, false);
      table_.params.back().fixed = true;
      table_.params.back().trainable = false;
    }
    layer.query_norm = norm(prefix, spec.query_norm, width);
    layer.gate_up = linear(prefix, "kv", spec.gate_up);
    layer.key_norm = norm(prefix, spec.key_norm, width);
    layer.qkv = linear(prefix, "qkv", spec.qkv);
    const std::array<std::pair<Linear*, const char*>, 3> parts{{{&layer.q, "q"}, {&layer.k, "k"}, {&layer.v, "v"}}};
    for (size_t i = 0; i < parts.size(); i++) {
      const auto& [part, site] = parts[i];
      *part = layer.qkv;
      part->site = site;
      part->out = width;
      part->first_row = static_cast<int64_t>(i) * width;
    }
    layer.o = linear(prefix, "o", spec.o);
    layer.attention_post_norm = norm(prefix, spec.attention_post_norm, width);
    layer.down = linear(prefix, "down", spec.down);
    adapter_ = adapter;
    for (size_t id = static_cast<size_t>(layer.query); id < table_.params.size(); id++)
      table_.params[id].linear = false;
    return layer;
  }

  static std::string tensor_of(const LinearPart& part, std::string_view kind) {
    if (part.tensors.empty()) return fmt::format("{}.{}", part.module, kind);
    return fmt::format(fmt::runtime(part.tensors), kind);
  }

  Linear linear(const std::string& prefix, std::string site, const LinearSpec& spec) {
    Linear linear{.site = std::move(site), .count = static_cast<int>(spec.parts.size()), .in = spec.in};
    linear.transposed = spec.transposed;
    for (const LinearPart& part : spec.parts) {
      const Shape shape = spec.transposed ? Shape{spec.in, part.rows} : Shape{part.rows, spec.in};
      const ParamId id = add(prefix + tensor_of(part, "weight"), shape, true, linear.weight != kNoParam);
      store_in(prefix, spec.parts, part, ".weight");
      table_.params.back().linear = true;
      if (linear.weight == kNoParam) linear.weight = id;
      linear.out += part.rows;
    }
    if (!spec.biases.empty())
      add_biases(linear, prefix, spec.biases);
    else if (spec.bias)
      for (const LinearPart& part : spec.parts) {
        const ParamId id = add(prefix + tensor_of(part, "bias"), {part.rows}, false, linear.bias != kNoParam);
        store_in(prefix, spec.parts, part, ".bias");
        if (linear.bias == kNoParam) linear.bias = id;
      }
    if (adapter_) linear.lora = lora(prefix, spec.in, spec.parts);
    return linear;
  }

  // Adds biases that only some rows have.
  void add_biases(Linear& linear, const std::string& prefix, const std::vector<LinearPart>& biases) {
    int64_t row = 0;
    for (const LinearPart& part : biases) {
      const int64_t begin = std::exchange(row, row + part.rows);
      if (part.module.empty()) continue;
      linear.biases.push_back({add(prefix + part.module, {part.rows}, false, !linear.biases.empty()), begin, row});
    }
    check(row == linear.out && !linear.biases.empty(), "biases of {} rows, expected {}", row, linear.out);
    linear.bias = linear.biases[0].id;
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
    const auto add_initial = [&](const std::string& module, LoraHalf half, const Shape& shape, bool joined) {
      const ParamId id = add_half(module, half, shape, joined);
      ParamSpec& spec = table_.params.back();
      spec.name.replace(spec.name.rfind('.'), std::string::npos, ".initial");
      spec.trainable = false;
      spec.taken_off = true;
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
      if (initial_) add_initial(part.module, LoraHalf::A, {target->rank, in}, true);
      lora.parts.push_back({begin, row, kNoParam, target->rank, static_cast<float>(target->scale)});
      modules.push_back(part.module);
    }
    for (size_t i = 0; i < modules.size(); i++) {
      LoraPart& part = lora.parts[i];
      part.b = add_half(modules[i], LoraHalf::B, {part.row_end - part.row_begin, part.rank}, i > 0);
    }
    for (size_t i = 0; initial_ && i < modules.size(); i++) {
      const LoraPart& part = lora.parts[i];
      const int64_t rows = part.row_end - part.row_begin;
      if (part.rank > std::min(in, rows))
        user_error("lora_init: '{}{}' is {} x {}, which has no {} halves, expected a rank of at most {}", prefix,
                   modules[i], rows, in, part.rank, std::min(in, rows));
      const ParamId id = add_initial(modules[i], LoraHalf::B, {rows, part.rank}, i > 0);
      if (i == 0) lora.initial_b = id;
    }
    if (adapter_->dora) add_magnitudes(lora, prefix, modules);
    return lora;
  }

  // Adds what trains the norms of an adapter's rows; `modules` are those of its parts.
  void add_magnitudes(Lora& lora, const std::string& prefix, const std::vector<std::string>& modules) {
    const auto add_all = [&](ParamId& first, std::string_view ending, bool constant) {
      for (size_t i = 0; i < modules.size(); i++) {
        const LoraPart& part = lora.parts[i];
        const ParamId id = add(fmt::format("{}{}{}{}{}", kPeftPrefix, prefix, modules[i], kMagnitude, ending),
                               {part.row_end - part.row_begin}, false, !constant && i > 0);
        ParamSpec& spec = table_.params.back();
        spec.adapter = true;
        spec.constant = constant;
        spec.trainable = adapter_trainable_ && !constant;
        if (i == 0) first = id;
      }
    };
    add_all(lora.change, "", false);
    add_all(lora.initial_magnitude, kInitial, true);
    add_all(lora.row_norms, kRowNorms, true);
  }

  const ModelSpec& model_;
  const PeftConfig* adapter_;
  bool base_trainable_, adapter_trainable_, initial_;
  ParamTable table_;
};

}  // namespace

bool Lora::even() const {
  return std::ranges::all_of(
      parts, [&](const LoraPart& part) { return part.rank == parts[0].rank && part.scale == parts[0].scale; });
}

Shape stored_shape(const ParamSpec& param) {
  Shape shape = param.shape;
  if (shape.rank == 0) return shape;
  shape.dims[0] = param.stored.rows;
  const std::vector<int64_t>& row = param.stored.row_shape;
  std::ranges::copy(row, shape.dims.begin() + 1);
  if (!row.empty()) shape.rank = static_cast<int>(row.size()) + 1;
  return shape;
}

Shape shape_in_adapter(const ParamSpec& param) {
  const Shape stored = stored_shape(param);
  return stored.count() == param.shape.count() ? stored : param.shape;
}

bool ParamTable::has_row_per_token(ParamId id) const {
  return id == embedding || (id == head && head_tensor != ModelSpec::kScoreHead);
}

int ParamTable::first_trained_group() const {
  int first = group_count();
  for (const ParamSpec& param : params)
    if (param.trainable) first = std::min(first, param.group);
  return first;
}

int ParamTable::first_layer_of_backward() const {
  const int first = first_trained_group();
  const auto reached = std::ranges::find_if(layers, [&](const LayerParams& layer) { return layer.group >= first; });
  return static_cast<int>(reached - layers.begin());
}

int64_t ParamTable::count(bool trainable_only) const {
  int64_t total = 0;
  for (const ParamSpec& param : params)
    if (param.trainable || (!trainable_only && !param.constant)) total += param.shape.count();
  return total;
}

std::vector<std::string> names_in_adapter(const ParamTable& table, ParamId param) {
  if (table[param].adapter) return {table[param].name};
  std::vector<std::string> names{fmt::format("{}{}", kPeftPrefix, table[param].name)};
  if (param == table.embedding && table.tied()) names.push_back(fmt::format("{}{}", kPeftPrefix, table.head_tensor));
  return names;
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

bool adapts(const PeftConfig& adapter, const ModelSpec& model) {
  return std::ranges::any_of(TableBuilder(model, &adapter, false).build().params, &ParamSpec::adapter);
}

ParamTable lora_parameters(const ModelSpec& model, const PeftConfig& adapter, bool trainable) {
  ParamTable table = TableBuilder(model, &adapter, trainable).build();
  if (!std::ranges::any_of(table.params, &ParamSpec::adapter))
    user_error("adapter's targets: found none among the model's linears, whose names end with {}",
               fmt::join(linear_names(model), ", "));
  return table;
}

namespace {

bool in_module(std::string_view param, std::string_view name) {
  for (size_t end = param.rfind('.'); end != std::string_view::npos; end = param.rfind('.', end - 1))
    if (ends_path(param.substr(0, end), name)) return true;
  return false;
}

// Returns the names that one with a range means: "layers.4.mlp" to "layers.7.mlp" for "layers.4-7.mlp".
std::vector<std::string> without_range(const std::string& name) {
  for (size_t begin = 0; begin < name.size(); begin = name.find('.', begin) + 1) {
    const size_t stop = std::min(name.find('.', begin), name.size());
    int64_t first = 0, last = 0;
    const char *const text = name.data() + begin, *const end = name.data() + stop;
    const auto [dash, error] = std::from_chars(text, end, first);
    if (error == std::errc() && dash != end && *dash == '-' && std::from_chars(dash + 1, end, last).ptr == end &&
        first >= 0 && last >= first && last - first <= kMostLayers) {
      std::vector<std::string> names;
      for (int64_t i = first; i <= last; i++)
        names.push_back(fmt::format("{}{}{}", name.substr(0, begin), i, name.substr(stop)));
      return names;
    }
    if (stop == name.size()) break;
  }
  return {name};
}

// Says what is to become of one parameter.
struct ParamRule {
  bool trained = false;
  double rate = 1;
};

// Answers for each parameter of a model by its rules.
class RuleBook {
 public:
  RuleBook(const ModelSpec& model, const ParamRules& rules) : model_(model), rules_(rules) {
    if (rules.adapter) return;
    for (const std::string& name : rules.train) add(train_, name, "train_modules");
    for (const std::string& name : rules.freeze) add(freeze_, name, "freeze");
  }

  ParamRule rule_of(const ParamSpec& param) const {
    if (param.fixed) return {};
    ParamRule rule = rule_within_part(param);
    if (param.tower)
      rule.rate *= param.name.find(model_.tower.projector_prefix) != std::string::npos ? rules_.projector_rate
                                                                                       : rules_.tower_rate;
    return rule;
  }

 private:
  ParamRule rule_within_part(const ParamSpec& param) const {
    if (param.adapter) {
      const bool fast = param.name.ends_with(kLoraB) || param.name.ends_with(kMagnitude);  // as PEFT has it
      return {!param.taken_off && !param.constant, fast ? rules_.lora_plus_ratio : 1};
    }
    if (!rules_.adapter)
      return {(rules_.train.empty() || train_.contains(param.name)) && !freeze_.contains(param.name)};
    // A head that is the embedding has no parameter of its own.
    return {saves_whole(*rules_.adapter, param.name) ||
            (model_.tied && param.name == model_.embedding && saves_whole(*rules_.adapter, model_.head))};
  }

  void add(std::set<std::string>& all, const std::string& name, std::string_view option) const {
    const std::vector<std::string> found = parameters_named(model_, name, option);
    all.insert(found.begin(), found.end());
  }

  const ModelSpec& model_;
  const ParamRules& rules_;
  std::set<std::string> train_, freeze_;  // names of parameters
};

}  // namespace

std::vector<std::string> parameters_named(const ModelSpec& model, const std::string& name, std::string_view option) {
  std::vector<std::string> found;
  const ParamTable table = full_parameters(model, false);
  for (const std::string& one : without_range(name)) {
    const size_t before = found.size();
    for (const ParamSpec& param : table.params)
      if (in_module(param.name, one)) found.push_back(param.name);
    if (found.size() > before) continue;
    if (model.tied && in_module(model.head, one))
      user_error("{}: '{}' is no module of its own: the model's head is its embedding, '{}'", option, one,
                 model.embedding.substr(0, model.embedding.rfind('.')));
    user_error("{}: '{}' names none of the model's modules, expected names or ends of names such as '{}'", option, one,
               table.params[0].name.substr(0, table.params[0].name.rfind('.')));
  }
  return found;
}

ParamTable trained_parameters(const ModelSpec& model, const ParamRules& rules) {
  ParamTable table = rules.adapter ? lora_parameters(model, *rules.adapter, true) : full_parameters(model, true);
  const RuleBook book(model, rules);
  for (ParamSpec& param : table.params) {
    const ParamRule rule = book.rule_of(param);
    param.trainable = rule.trained;
    param.rate = rule.rate;
    param.saved = param.fixed && rules.adapter && saves_whole(*rules.adapter, param.name);
  }
  for (const LayerParams& layer : table.layers)
    for (const Linear* linear : layer.linears())
      for (ParamId id = linear->weight; linear->lora.scales_rows() && id < linear->weight + linear->count; id++)
        if (table[id].trainable)
          user_error(
              "lora_dora: modules_to_save names '{}', expected no linear that shares a product with one whose "
              "norms are trained (q, k and v; gate and up): name all of them, or none, among lora_targets",
              table[id].name);
  if (std::ranges::none_of(table.params, &ParamSpec::trainable))
    user_error("train_modules and freeze: found nothing left to train, expected at least one module of the model{}",
               !model.tower ? ""
                            : fmt::format("; {} false and {} false train the parts that images go through",
                                          option_name("freeze_vision_tower"), option_name("freeze_projector")));
  return table;
}

namespace {

// Returns whether a name is that of the model's head or embedding.
bool is_of_vocabulary(const ModelSpec& model, std::string_view name) {
  return std::ranges::any_of(std::array{model.embedding, model.head}, [&](std::string_view param) {
    return ends_path(param.substr(0, param.rfind('.')), name);
  });
}

// Returns patterns that fit our paths of linears as these fit theirs.
template <class T>
std::vector<std::pair<Pattern, T>> respelt(const std::vector<std::pair<Pattern, T>>& patterns,
                                           const std::vector<std::string>& linears, const Spelling& spelling) {
  std::vector<std::pair<Pattern, T>> ours;
  for (const auto& [pattern, value] : patterns) {
    const auto fits = [&, &theirs = pattern](const std::string& path) { return theirs.matches(spelling(path)); };
    const auto fits_ours = [&theirs = pattern](const std::string& path) { return theirs.matches(path); };
    if (std::ranges::all_of(linears, [&](const std::string& path) { return fits(path) == fits_ours(path); })) {
      ours.emplace_back(pattern, value);
      continue;
    }
    for (const std::string& path : linears)
      if (fits(path)) ours.emplace_back(pattern_of_ends(path, path), value);
  }
  return ours;
}

}  // namespace

PeftConfig plain_adapter(const ModelSpec& model, const PeftConfig& adapter, std::string_view source) {
  const auto refuse = [&](std::string_view key, std::string_view what) {
    user_error("{}, key '{}': training {} is not supported yet; eval, generate, chat and merge read it", source, key,
               what);
  };
  if (!adapter.trainable_token_indices.empty()) refuse("trainable_token_indices", "rows of an embedding");
  if (adapter.bias != "none") refuse("bias", "biases beside an adapter");
  std::map<std::string, std::vector<std::string>> linears, adapted;  // paths by their last part
  for (const ParamSpec& param : full_parameters(model, false).params) {
    if (!param.linear) continue;
    const std::string path = param.name.substr(0, param.name.rfind('.')), last = path.substr(path.rfind('.') + 1);
    linears[last].push_back(path);
    if (target_of(adapter, path)) adapted[last].push_back(path);
  }
  for (const std::string& name : adapter.target_modules)
    if (std::ranges::none_of(linears, [&](const auto& paths) {
          return std::ranges::any_of(paths.second,
                                     [&](const std::string& path) { return ends_path(adapter.spelling(path), name); });
        }))
      user_error("adapter's target '{}': found {}, expected names among {}", name,
                 is_of_vocabulary(model, name) ? fmt::format("the head or the embedding, adapters of which are not "
                                                             "supported yet ({} {} trains it whole)",
                                                             option_name("modules_to_save"), name)
                                               : "no such linear in the model",
                 fmt::join(linear_names(model), ", "));
  PeftConfig plain = adapter;
  plain.layers_pattern.clear();  // what is adapted has been found: no other number stands in a path
  if (!adapter.spelling.prefixes.empty()) {
    std::vector<std::string> all;
    for (const auto& [last, paths] : adapted) all.insert(all.end(), paths.begin(), paths.end());
    plain.rank_pattern = respelt(adapter.rank_pattern, all, adapter.spelling);
    plain.alpha_pattern = respelt(adapter.alpha_pattern, all, adapter.spelling);
    plain.spelling = {};
  } else if (!adapter.target_expression && adapter.exclude_modules.empty()) {
    return plain;
  }
  plain.target_expression.reset();
  plain.exclude_modules = {};
  plain.layers_to_transform.reset();
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
