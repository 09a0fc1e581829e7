#include "model/model_config.h"

#include <algorithm>
#include <array>

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

// Returns the keys that are not read: another value of theirs is no error, and no other model.
std::vector<std::string> unread_keys(const Json& json, std::string_view source, std::span<const Family> families) {
  // These decide nothing of what a model computes.
  constexpr std::array<std::string_view, 12> kIdle{"_name_or_path", "auto_map",          "bos_token_id",
                                                   "id2label",      "initializer_range", "label2id",
                                                   "pad_token_id",  "pretraining_tp",    "transformers_version",
                                                   "unk_token_id",  "use_cache",         "attn_implementation"};
  const std::string meaning = meaning_of(json, source, families);
  std::vector<std::string> unread;
  for (const auto& [key, value] : json.items()) {
    if (value.is_null() || std::ranges::find(kIdle, key) != kIdle.end()) continue;
    Json other = json;
    other[key] = value.is_object() ? Json("another") : Json{{"another", "value"}};
    try {
      if (meaning_of(other, source, families) == meaning) unread.push_back(key);
    } catch (const UserError&) {
      continue;
    }
  }
  return unread;
}

// Reads a model of an unknown type as one of this family.
ModelConfig foreign_config(Json json, std::string_view source, std::string_view family,
                           std::span<const Family> families) {
  const JsonObject object(json, std::string(source));
  const auto has_type = [&](std::string_view type) {
    return std::ranges::any_of(families, [&](const Family& one) { return one.config.model_type == type; });
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
  const std::vector<std::string> unread = unread_keys(json, source, families);
  config.notes.push_back(
      fmt::format("ASSUMED by {}: {} is of type '{}', which no family has; it is taken for a {}, of which only the "
                  "names and shapes of tensors are compared; keys that are not read: {}",
                  option_name("family"), source, type, family,
                  unread.empty() ? "none" : fmt::format("{}", fmt::join(unread, ", "))));
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
