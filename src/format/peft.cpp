#include "format/peft.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <numbers>

#include "base/ascii.h"
#include "base/error.h"
#include "base/file.h"
#include "base/option_name.h"
#include "format/json.h"
#include "format/peft_tensors.h"

namespace snug {
namespace {

constexpr uint64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kMaxRank = 1 << 16, kMaxLayer = 1 << 16, kMaxToken = 1 << 28;
constexpr double kMaxAlpha = 1e6;
constexpr std::string_view kEndOfPath = "(.*\\.)?(";  // before a key of rank_pattern and alpha_pattern, and ")" behind
constexpr std::string_view kSuffixA = ".lora_A.weight", kSuffixB = ".lora_B.weight";

// These keys say nothing about what an adapter computes: how it was begun and trained, and from what.
constexpr auto kHarmlessKeys = std::to_array<std::string_view>(
    {"task_type", "base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version",
     "megatron_core", "qalora_group_size", "runtime_config", "eva_config", "lora_dropout", "init_lora_weights",
     "merge_weights", "lora_dtype", "lorap_lr_ratio", "lorap_emb_lr",
     "fan_in_fan_out"});  // PEFT switches it off for linears, and all targets are linears

// These keys are read below.
constexpr auto kReadKeys = std::to_array<std::string_view>(
    {"peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "bias", "target_modules", "exclude_modules",
     "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "modules_to_save",
     "trainable_token_indices", "ensure_weight_tying"});

// These keys ask for what is not computed, with what it would be.
constexpr auto kRefusedKeys = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"use_qalora", "QALoRA pools what comes in"},
     {"use_bdlora", "its halves are block-diagonal"},
     {"lora_bias", "its second half has a bias"},
     {"target_parameters", "it adapts parameters that are no linears, such as those of experts"},
     {"layer_replication", "it repeats layers of the base"},
     {"alora_invocation_tokens", "it acts behind certain tokens alone"},
     {"arrow_config", "it chooses among several adapters token by token"},
     {"enable_lora", "it adapts some rows of a linear"},
     {"loftq_config", "it belongs to a base that LoftQ has changed"},
     {"corda_config", "it belongs to a base that CorDA has changed"},
     {"lora_ga_config", "it belongs to a base that LoRA-GA has changed"},
     {"kasa_config", "it belongs to a base that KaSA has changed"}});

// Returns whether a key is off: null, false, or an empty text, list or object.
bool is_off(const Json& value) {
  return value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty()) || value == "";
}

// What a model is for; PEFT saves both names of such a head, of which a model has one.
constexpr const char *kTextTask = "CAUSAL_LM", *kScoreTask = "SEQ_CLS", *kScoreHead = "score",
                     *kOtherHead = "classifier";

bool knows(const auto& keys, std::string_view key) { return std::ranges::find(keys, key) != keys.end(); }

constexpr std::string_view kInit = "init_lora_weights";

// Refuses ways to begin an adapter that change the base in ways that its weights do not tell.
LoraInit parse_init(const JsonObject& config) {
  if (!config.has(kInit)) return LoraInit::Default;
  const Json& init = config.at(kInit);
  if (init == "pissa") return LoraInit::Pissa;
  if (init == "olora") return LoraInit::Olora;
  if (!init.is_boolean() && init != "gaussian" && init != "eva" && init != "orthogonal")
    config.fail(
        kInit,
        "true, false, \"gaussian\", \"eva\", \"orthogonal\", \"pissa\" or \"olora\": others take off of the base "
        "what is drawn, or what data says, and is not here; PEFT writes such an adapter as a plain one with "
        "path_initial_model_for_weight_conversion");
  return LoraInit::Default;
}

void refuse_other_features(const JsonObject& config) {
  if (config.string("peft_type") != "LORA") config.fail("peft_type", "\"LORA\"");
  const std::string task = config.string("task_type", kTextTask);
  if (task != kTextTask && task != kScoreTask) config.fail("task_type", "\"CAUSAL_LM\" or \"SEQ_CLS\"");
  for (const auto& [key, value] : config.value().items()) {
    if (is_off(value) || knows(kHarmlessKeys, key) || knows(kReadKeys, key)) continue;
    for (const auto& [refused, meaning] : kRefusedKeys)
      if (key == refused) config.fail(key, fmt::format("it off, as snug reads plain LoRA: {}", meaning));
    config.fail(key, "it off: snug reads plain LoRA");
  }
}

// Returns the names in a list, sorted.
std::vector<std::string> parse_names(const JsonObject& config, std::string_view key, std::string_view expected) {
  const Json& list = config.at(key);
  if (!list.is_array() || list.empty()) config.fail(key, expected);
  std::vector<std::string> names;
  for (const Json& name : list) {
    if (!name.is_string() || name == "") config.fail(key, expected);
    names.push_back(name.get<std::string>());
  }
  std::ranges::sort(names);
  return names;
}

PeftModules parse_modules(const JsonObject& config, std::string_view key, std::string_view source) {
  if (!config.at(key).is_string())
    return {parse_names(config, key, "a list of module names, or a regular expression as text"), {}};
  std::string text = config.string(key);
  if (lower_case(text) == "all-linear") text = ".*";  // only linears are asked for
  return {{}, Pattern(text, fmt::format("{}, key '{}'", source, key))};
}

std::vector<int64_t> parse_integers(const Json& value, int64_t most, const std::function<void()>& fail) {
  const auto is_one = [&](const Json& number) { return number.is_number_integer() && number >= 0 && number <= most; };
  std::vector<int64_t> numbers;
  if (value.is_array()) {
    for (const Json& number : value) {
      if (!is_one(number)) fail();
      numbers.push_back(number.get<int64_t>());
    }
  } else {
    if (!is_one(value)) fail();
    numbers.push_back(value.get<int64_t>());
  }
  return numbers;
}

void parse_layers(PeftConfig& config, const JsonObject& object) {
  constexpr std::string_view kLayers = "layers_to_transform", kPattern = "layers_pattern";
  if (object.has(kLayers) && !is_off(object.at(kLayers))) {
    if (config.target_expression) object.fail(kLayers, "none beside target_modules that are a regular expression");
    config.layers_to_transform = parse_integers(object.at(kLayers), kMaxLayer,
                                                [&] { object.fail(kLayers, "a layer's number, or a list of them"); });
  }
  if (!object.has(kPattern) || is_off(object.at(kPattern))) return;
  config.layers_pattern = object.at(kPattern).is_string() ? std::vector{object.string(kPattern)}
                                                          : parse_names(object, kPattern, "a name, or a list of names");
  for (const std::string& name : config.layers_pattern)
    if (name.find_first_of("[](){}*+?|^$\\") != std::string::npos) object.fail(kPattern, "names, no expressions");
}

// Returns a map from expressions that fit the ends of paths, in the order of the file.
template <class T>
std::vector<std::pair<Pattern, T>> parse_patterns(const JsonObject& object, const nlohmann::ordered_json& ordered,
                                                  std::string_view key, std::string_view source,
                                                  T (*read)(const JsonObject&, std::string_view)) {
  std::vector<std::pair<Pattern, T>> patterns;
  if (!object.has(key) || is_off(object.at(key))) return patterns;
  const JsonObject map = object.object(key);
  for (const auto& [path, value] : ordered.at(key).items())
    patterns.emplace_back(pattern_of_ends(path, fmt::format("{}, key '{}'", source, key)), read(map, path));
  return patterns;
}

void parse_tokens(PeftConfig& config, const JsonObject& object) {
  constexpr std::string_view kKey = "trainable_token_indices";
  if (!object.has(kKey) || is_off(object.at(kKey))) return;
  const auto fail = [&] { object.fail(kKey, "a list of token ids, or such lists by the module they are for"); };
  const auto tokens = [&](const Json& list) {
    if (!list.is_array() || list.empty()) fail();
    std::vector<int64_t> ids = parse_integers(list, kMaxToken, fail);
    std::vector<int64_t> sorted = ids;
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) fail();
    return ids;
  };
  if (object.at(kKey).is_array()) {
    config.trainable_token_indices["embed_tokens"] = tokens(object.at(kKey));
    return;
  }
  const JsonObject lists = object.object(kKey);
  for (const auto& [module, list] : lists.value().items()) config.trainable_token_indices[module] = tokens(list);
}

int64_t read_rank(const JsonObject& object, std::string_view key) { return object.integer(key, 1, kMaxRank); }
double read_alpha(const JsonObject& object, std::string_view key) { return object.number(key, 0, kMaxAlpha); }

// Returns the number that stands in a path as a part by itself behind the name of the layers; nothing if there is none.
std::optional<int64_t> layer_of(const PeftConfig& config, std::string_view path) {
  const auto number_at = [&](size_t begin) -> std::optional<int64_t> {
    int64_t number = 0;
    const char* const last = path.data() + path.size();
    const auto [end, error] = std::from_chars(path.data() + begin, last, number);
    if (error != std::errc() || end == last || *end != '.' || path[begin] == '-') return std::nullopt;
    return number;
  };
  for (size_t dot = path.find('.'); dot != std::string_view::npos; dot = path.find('.', dot + 1)) {
    const std::string_view before = path.substr(0, dot);
    const bool named = config.layers_pattern.empty()
                           ? before.find('.') != std::string_view::npos
                           : std::ranges::any_of(config.layers_pattern,
                                                 [&](const std::string& name) { return ends_path(before, name); });
    if (!named) continue;
    if (const std::optional<int64_t> number = number_at(dot + 1)) return number;
  }
  return std::nullopt;
}

// Returns whether a path is that of a module that is saved whole, or of one within.
bool within(std::string_view path, std::string_view module) {
  for (size_t end = path.size(); end != std::string_view::npos && end > 0; end = path.rfind('.', end - 1))
    if (ends_path(path.substr(0, end), module)) return true;
  return false;
}

bool is_target(const PeftConfig& config, std::string_view linear) {
  const auto ends = [&](const std::string& name) { return ends_path(linear, name); };
  const PeftModules& excluded = config.exclude_modules;
  if (excluded.expression ? excluded.expression->matches(linear) : std::ranges::any_of(excluded.names, ends))
    return false;
  if (std::ranges::any_of(config.modules_to_save, [&](const std::string& name) { return within(linear, name); }))
    return false;
  if (config.target_expression) return config.target_expression->matches(linear);
  if (std::ranges::find(config.target_modules, linear) != config.target_modules.end()) return true;
  if (!std::ranges::any_of(config.target_modules, ends)) return false;
  if (!config.layers_to_transform) return true;
  const std::optional<int64_t> layer = layer_of(config, linear);
  return layer && std::ranges::find(*config.layers_to_transform, *layer) != config.layers_to_transform->end();
}

template <class T>
T first_fit(const std::vector<std::pair<Pattern, T>>& patterns, std::string_view path, T otherwise) {
  for (const auto& [pattern, value] : patterns)
    if (pattern.matches(path)) return value;
  return otherwise;
}

LoraTarget scaled(const PeftConfig& config, int64_t rank, double alpha) {
  const auto r = static_cast<double>(rank);
  return {rank, alpha / (config.rslora ? std::sqrt(r) : r)};
}

// Returns directories directly below that hold an adapter.
std::vector<std::string> adapters_below(const std::filesystem::path& directory) {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error))
    if (is_file(entry.path() / kPeftConfigFile)) found.push_back(entry.path().string());
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::string_view name(LoraInit init) {
  constexpr std::array<std::string_view, 3> kNames{"default", "pissa", "olora"};
  return kNames[static_cast<size_t>(init)];
}

bool ends_path(std::string_view path, std::string_view name) {
  if (!path.ends_with(name)) return false;
  return path.size() == name.size() || path[path.size() - name.size() - 1] == '.';
}

bool saves_whole(const PeftConfig& config, std::string_view param) {
  const std::string spelt = config.spelling(param);
  for (size_t end = spelt.rfind('.'); end != std::string::npos; end = spelt.rfind('.', end - 1))
    for (const std::string& name : config.modules_to_save)
      if (std::string_view(spelt).substr(0, end).ends_with(name)) return true;
  return false;
}

bool parts_head(const PeftConfig& config, std::string_view embedding, std::string_view head) {
  return !config.ensure_weight_tying && (saves_whole(config, embedding) || saves_whole(config, head));
}

Pattern pattern_of_ends(std::string_view key, std::string place) {
  return {fmt::format("{}{})", kEndOfPath, key), std::move(place)};
}

std::string written_pattern(const Pattern& pattern) {
  const std::string& all = pattern.expression();
  return all.substr(kEndOfPath.size(), all.size() - kEndOfPath.size() - 1);
}

std::optional<LoraTarget> target_of(const PeftConfig& config, std::string_view linear) {
  const std::string path = config.spelling(linear);
  if (!is_target(config, path)) return std::nullopt;
  return scaled(config, first_fit(config.rank_pattern, path, config.rank),
                first_fit(config.alpha_pattern, path, config.alpha));
}

PeftConfig parse_peft_config(std::string_view json, std::string_view source) {
  const Json parsed = parse_json(json, source);
  const JsonObject object(parsed, std::string(source));
  refuse_other_features(object);
  PeftConfig config;
  config.base_model = object.string("base_model_name_or_path", "");
  config.rank = object.integer("r", 1, kMaxRank);
  config.alpha = read_alpha(object, "lora_alpha");
  config.dropout = object.number("lora_dropout", 0, 1, 0.0);
  config.rslora = object.boolean("use_rslora", false);
  config.dora = object.boolean("use_dora", false);
  config.init = parse_init(object);
  if (config.dora && config.init != LoraInit::Default)
    object.fail("use_dora", fmt::format("false beside {} \"{}\"", kInit, name(config.init)));
  PeftModules targets = parse_modules(object, "target_modules", source);
  config.target_modules = std::move(targets.names);
  config.target_expression = std::move(targets.expression);
  if (object.has("exclude_modules") && !is_off(object.at("exclude_modules")))
    config.exclude_modules = parse_modules(object, "exclude_modules", source);
  parse_layers(config, object);
  const auto ordered = nlohmann::ordered_json::parse(json);
  config.rank_pattern = parse_patterns<int64_t>(object, ordered, "rank_pattern", source, read_rank);
  config.alpha_pattern = parse_patterns<double>(object, ordered, "alpha_pattern", source, read_alpha);
  config.bias = object.string("bias", "none");
  if (config.bias != "none" && config.bias != "all" && config.bias != "lora_only")
    object.fail("bias", "\"none\", \"all\" or \"lora_only\"");
  if (object.has("modules_to_save") && !is_off(object.at("modules_to_save")))
    config.modules_to_save = parse_names(object, "modules_to_save", "a list of module names");
  config.scores = object.string("task_type", kTextTask) == kScoreTask;
  if (config.scores) {
    std::erase(config.modules_to_save, kOtherHead);
    if (!knows(config.modules_to_save, kScoreHead))
      object.fail("modules_to_save", "\"score\" among them: the head of a model that gives scores");
  }
  parse_tokens(config, object);
  config.ensure_weight_tying = object.boolean("ensure_weight_tying", false);
  return config;
}

PeftConfig with_first_halves(PeftConfig config) {
  const double factor = config.rslora ? std::numbers::sqrt2 : 2;
  config.rank *= 2;
  config.alpha *= factor;
  for (auto& [pattern, rank] : config.rank_pattern) rank *= 2;
  for (auto& [pattern, alpha] : config.alpha_pattern) alpha *= factor;
  return config;
}

PeftConfig read_peft_config(const std::filesystem::path& directory) {
  const auto path = directory / kPeftConfigFile;
  if (const auto below = adapters_below(directory); !is_file(path) && !below.empty())
    user_error("{}: found no {}, but adapters below, expected one of them as {}: {}", directory.string(),
               kPeftConfigFile, option_name("adapter"), fmt::join(below, ", "));
  return parse_peft_config(read_text(path, kMaxConfigBytes), path.string());
}

namespace {

// Returns a number as JSON: a whole one as an integer, as PEFT declares lora_alpha one.
nlohmann::ordered_json number_json(double value) {
  if (value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

template <class T>
nlohmann::ordered_json patterns_json(const std::vector<std::pair<Pattern, T>>& patterns) {
  nlohmann::ordered_json json;
  for (const auto& [pattern, value] : patterns)
    json[written_pattern(pattern)] = number_json(static_cast<double>(value));
  return json;
}

}  // namespace

std::string write_peft_config(const PeftConfig& config) {
  nlohmann::ordered_json object;
  object["peft_type"] = "LORA";
  object["task_type"] = config.scores ? kScoreTask : kTextTask;
  object["base_model_name_or_path"] = config.base_model;
  object["inference_mode"] = true;
  object["r"] = config.rank;
  object["lora_alpha"] = number_json(config.alpha);
  object["lora_dropout"] = config.dropout;
  object["use_rslora"] = config.rslora;
  if (config.dora) object["use_dora"] = true;
  object["target_modules"] = config.target_modules;
  if (config.layers_to_transform) object["layers_to_transform"] = *config.layers_to_transform;
  if (!config.rank_pattern.empty()) object["rank_pattern"] = patterns_json(config.rank_pattern);
  if (!config.alpha_pattern.empty()) object["alpha_pattern"] = patterns_json(config.alpha_pattern);
  std::vector<std::string> saved = config.modules_to_save;
  if (config.scores) saved.insert(saved.begin(), kOtherHead);
  if (!saved.empty()) object["modules_to_save"] = saved;
  if (config.ensure_weight_tying) object["ensure_weight_tying"] = true;
  object["bias"] = "none";
  object["fan_in_fan_out"] = false;
  object["init_lora_weights"] = true;
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string plain_peft_config(std::string_view json, std::string_view source) {
  const PeftConfig plain = with_first_halves(parse_peft_config(json, source));
  auto object = nlohmann::ordered_json::parse(json);
  object["r"] = plain.rank;
  object["lora_alpha"] = number_json(plain.alpha);
  if (!plain.rank_pattern.empty()) object["rank_pattern"] = patterns_json(plain.rank_pattern);
  if (!plain.alpha_pattern.empty()) object["alpha_pattern"] = patterns_json(plain.alpha_pattern);
  object[kInit] = true;
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_string(const PeftTensorName& tensor) {
  return fmt::format("{}{}{}", kPeftPrefix, tensor.linear, tensor.half == LoraHalf::A ? kSuffixA : kSuffixB);
}

}  // namespace snug
