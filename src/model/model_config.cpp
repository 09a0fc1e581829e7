#include "model/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/fields.h"
#include "base/file.h"
#include "base/option_name.h"
#include "format/generation_config.h"
#include "format/side_files.h"
#include "model/families.h"
#include "model/multimodal.h"
#include "model/spec_fields.h"

namespace snug {
namespace {

constexpr std::string_view kType = "model_type", kNames = "architectures";

// Returns a configuration with the rotary embedding that its type's class has where the file says nothing of one.
Json with_rope(const JsonObject& object, std::span<const Family> families) {
  Json json = object.value();
  const std::string type = object.string(kType, "");
  for (const auto& [config, spec] : families)
    if (config.model_type == type && !config.rope.empty() && !object.has("rope_parameters") &&
        !object.has("rope_scaling"))
      json["rope_parameters"] = Json::parse(config.rope);
  return json;
}

ModelConfig config_of(const JsonObject& given, std::span<const Family> families) {
  const Json json = with_rope(given, families);
  const JsonObject object(json, given.source());
  std::vector<HfFamily> known;
  for (const Family& family : families) known.push_back(family.config);
  const HfConfig config = parse_hf_config(object, known, multimodal_types());
  ModelSpec spec = families[config.family].spec(config, object);
  if (config.scores) spec.become_scorer();
  return {.spec = std::move(spec),
          .end_tokens = config.eos,
          .dtype = config.dtype,
          .quantization = config.quantization,
          .prediction_layers = config.prediction_layers,
          .dropout = config.dropout,
          .notes = config.notes};
}

ModelConfig multimodal_config(const Multimodal& kind, const JsonObject& object, std::string_view source,
                              std::span<const Family> families) {
  const Json text = text_config(kind, object);
  ModelConfig config = config_of(JsonObject(text, fmt::format("{}, text_config", source)), families);
  place_in_multimodal(kind, config.spec);
  if (kind.add_tower)
    kind.add_tower(config.spec, object);
  else
    config.notes.push_back(
        fmt::format("config.json: a {}: its text model is used and trained, and nothing else of it", kind.model_type));
  return config;
}

// Returns all that a configuration decides.
std::string meaning_of(const Json& json, std::string_view source, std::span<const Family> families) {
  const ModelConfig config = config_of(JsonObject(json, std::string(source)), families);
  Fields fields;
  add_fields(fields, "model", config.spec);
  std::string text =
      fmt::format("{} {} {} {} {}", config.spec.positions, fmt::join(config.end_tokens, ","),
                  config.dtype ? name(*config.dtype) : "", config.prediction_layers, fmt::join(config.dropout, ","));
  for (const Field& field : fields) text += fmt::format("\n{} {}", field.name, field.value);
  return text;
}

// A key that is not read, with its value, and its path for messages ("rope_parameters.factor").
struct UnreadKey {
  std::string key, path;
  Json value;
};

// Returns the keys that are not read: another value of theirs is no error, and no other model.
std::vector<UnreadKey> unread_keys(const Json& json, std::string_view source, std::span<const Family> families) {
  // These decide nothing of what a model computes.
  constexpr std::array<std::string_view, 12> kIdle{"_name_or_path", "auto_map",          "bos_token_id",
                                                   "id2label",      "initializer_range", "label2id",
                                                   "pad_token_id",  "pretraining_tp",    "transformers_version",
                                                   "unk_token_id",  "use_cache",         "attn_implementation"};
  const std::string meaning = meaning_of(json, source, families);
  std::vector<UnreadKey> unread;
  const auto look_at = [&](const std::string& object, const std::string& key, const Json& value) {
    if (value.is_null() || std::ranges::find(kIdle, key) != kIdle.end()) return;
    Json other = json;
    (object.empty() ? other : other[object])[key] = value.is_object() ? Json("another") : Json{{"another", "value"}};
    try {
      if (meaning_of(other, source, families) != meaning) return;
    } catch (const UserError&) {
      return;
    }
    unread.push_back({key, object.empty() ? key : fmt::format("{}.{}", object, key), value});
  };
  for (const auto& [key, value] : json.items()) look_at("", key, value);
  for (const char* rope : {"rope_parameters", "rope_scaling"})
    if (json.contains(rope) && json[rope].is_object())
      for (const auto& [key, value] : json[rope].items()) look_at(rope, key, value);
  return unread;
}

// A model of an unknown type, as a family reads it.
struct ForeignModel {
  const Json& json;
  const ModelSpec& spec;
  const HfFamily& family;
};

bool is_none(const Json& value) { return value.is_null() || value == false || value == 0; }

bool is_near(const Json& value, double number) {
  return value.is_number() && std::abs(value.get<double>() - number) <= 1e-6 * number;
}

bool all_among(const Json& list, std::initializer_list<Json> values) {
  return list.is_array() &&
         std::ranges::all_of(list, [&](const Json& item) { return std::ranges::find(values, item) != values.end(); });
}

// Returns whether a configuration says that no layer has a window.
bool says_no_window(const ForeignModel& model) {
  const auto is_off = [&](const char* key) { return model.json.contains(key) && is_none(model.json[key]); };
  return is_off("sliding_window") || is_off("use_sliding_window");
}

bool is_off_without_windows(const Json& value, const ForeignModel& model) {
  return is_none(value) || says_no_window(model);
}

// Where layers have types, it is these that count.
bool is_idle_pattern(const Json& value, const ForeignModel& model) {
  return value == 1 || model.json.contains("layer_types") || is_off_without_windows(value, model);
}

// Where the family reads the share, it is the one within `rope_parameters` that counts.
bool is_idle_share(const Json& value, const ForeignModel& model) {
  const auto& own = model.family.own_keys;
  return value == 1 || std::ranges::find(own, "partial_rotary_factor") != own.end();
}

bool is_epsilon(const Json& value, const ForeignModel& model) { return is_near(value, model.spec.final_norm.epsilon); }

// A key by which some family's layers compute something else, with what it must be for them not to. Those whose effect
// shows in names or shapes of tensors, as of biases, are not among them, and neither are those that every family
// refuses (parse_hf_config()).
struct Switch {
  std::string_view key, plain;
  bool (*is_plain)(const Json& value, const ForeignModel& model);
};
constexpr std::array<Switch, 18> kSwitches{
    {{"sliding_window", "null", is_off_without_windows},
     {"use_sliding_window", "false", [](const Json& value, const ForeignModel&) { return is_none(value); }},
     {"sliding_window_pattern", "null", is_idle_pattern},
     {"_sliding_window_pattern", "null", is_idle_pattern},
     {"rope_local_base_freq", "null", is_off_without_windows},
     {"layer_types", "\"full_attention\" for every layer",
      [](const Json& value, const ForeignModel&) {
        return all_among(value, {"full_attention", "attention"});
      }},
     {"no_rope_layers", "1 for every layer",
      [](const Json& value, const ForeignModel&) { return is_none(value) || all_among(value, {1}); }},
     {"no_rope_layer_interval", "null",
      [](const Json& value, const ForeignModel& model) {
        return is_none(value) || model.json.contains("no_rope_layers");
      }},
     {"position_embedding_type", "\"rope\"", [](const Json& value, const ForeignModel&) { return value == "rope"; }},
     {"query_pre_attn_scalar", "the elements of a head",
      [](const Json& value, const ForeignModel& model) {
        return is_near(value, static_cast<double>(model.spec.layers[0].heads.dim));
      }},
     {"attention_multiplier", "1 / sqrt(elements of a head)",
      [](const Json& value, const ForeignModel& model) {
        return is_near(value, 1 / std::sqrt(static_cast<double>(model.spec.layers[0].heads.dim)));
      }},
     {"partial_rotary_factor", "1", is_idle_share},
     {"llama_4_scaling_beta", "0", [](const Json& value, const ForeignModel&) { return is_none(value); }},
     {"use_cla", "false", [](const Json& value, const ForeignModel&) { return is_none(value); }},
     {"hidden_activation", "hidden_act's",
      [](const Json& value, const ForeignModel& model) {
        return value == model.family.activation || (model.family.activation == "silu" && value == "swish");
      }},
     {"rms_norm_eps", "the epsilon that is read", is_epsilon},
     {"layer_norm_eps", "the epsilon that is read", is_epsilon},
     {"norm_eps", "the epsilon that is read", is_epsilon}}};

// Refuses keys that are not read and by which other families' layers compute something else.
void refuse_switches(const std::vector<UnreadKey>& unread, const ForeignModel& model, std::string_view source) {
  for (const UnreadKey& found : unread)
    for (const Switch& other : kSwitches)
      if (found.key == other.key && !other.is_plain(found.value, model))
        user_error("{}, key '{}': found {}, expected {} or nothing with {} {}, which does not read it", source,
                   found.path, found.value.dump(), other.plain, option_name("family"), model.family.model_type);
}

// Reads a model of an unknown type as one of this family.
ModelConfig foreign_config(Json json, std::string_view source, std::string_view family,
                           std::span<const Family> families) {
  const JsonObject object(json, std::string(source));
  const auto type_of = [](const Family& one) { return one.config.model_type; };
  const auto has_type = [&](std::string_view type) {
    return std::ranges::find(families, type, type_of) != families.end();
  };
  std::vector<std::string_view> types;
  for (const Family& one : families) types.push_back(one.config.model_type);
  if (!has_type(family))
    user_error("{}: found '{}', expected one of {}", option_name("family"), family, fmt::join(types, ", "));
  const std::string type = object.string(kType, "");
  if (type == family) return config_of(object, families);
  if (has_type(type) || find_multimodal(object))
    user_error("{}: found '{}', expected nothing: {} is of type '{}', which is read as what it is",
               option_name("family"), family, source, type);
  json[kType] = family;
  json.erase(kNames);
  ModelConfig config = config_of(JsonObject(json, std::string(source)), families);
  const std::vector<UnreadKey> unread = unread_keys(json, source, families);
  refuse_switches(unread, {json, config.spec, std::ranges::find(families, family, type_of)->config}, source);
  std::vector<std::string> paths;
  for (const UnreadKey& key : unread) paths.push_back(key.path);
  config.notes.push_back(fmt::format(
      "ASSUMED by {}: {} is of type '{}', which no family has; it is taken for a {}, of which only the "
      "names and shapes of tensors are compared; keys that are not read: {}",
      option_name("family"), source, type, family, paths.empty() ? "none" : fmt::format("{}", fmt::join(paths, ", "))));
  return config;
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, std::string_view source, std::string_view family) {
  const Json parsed = parse_json(json, source);
  const JsonObject object(parsed, std::string(source));
  const std::vector<Family> families = all_families();
  if (!family.empty()) return foreign_config(parsed, source, family, families);
  const Multimodal* const kind = find_multimodal(object);
  return kind ? multimodal_config(*kind, object, source, families) : config_of(object, families);
}

ModelConfig read_model_config(const std::filesystem::path& directory, std::string_view family) {
  const std::filesystem::path path = directory / "config.json", generation = directory / "generation_config.json";
  ModelConfig config = parse_model_config(read_text(path, kMaxConfigBytes), path.string(), family);
  if (is_file(generation)) {
    const std::string text = read_text(generation, kMaxConfigBytes);
    if (auto eos = parse_generation_config(text, generation.string(), config.spec.vocabulary, config.notes))
      config.end_tokens = *std::move(eos);
  }
  return config;
}

}  // namespace snug
