#include "format/peft.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "format/json.h"

namespace snug {
namespace {

constexpr uint64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kMaxRank = 1 << 16;
constexpr std::string_view kPrefix = "base_model.model.", kSuffixA = ".lora_A.weight", kSuffixB = ".lora_B.weight";

// Keys that are read below, or that say nothing about what an adapter computes.
constexpr std::array<std::string_view, 18> kKnownKeys{"peft_type",
                                                      "task_type",
                                                      "base_model_name_or_path",
                                                      "r",
                                                      "lora_alpha",
                                                      "lora_dropout",
                                                      "use_rslora",
                                                      "bias",
                                                      "fan_in_fan_out",
                                                      "revision",
                                                      "target_modules",
                                                      "init_lora_weights",
                                                      "inference_mode",
                                                      "auto_mapping",
                                                      "peft_version",
                                                      "megatron_core",
                                                      "qalora_group_size",
                                                      "runtime_config"};

// Off: null, false, or an empty text, list or object.
bool is_off(const Json& value) {
  return value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty()) || value == "";
}

void refuse_other_features(const JsonObject& config) {
  for (const auto& [key, value] : config.value().items()) {
    const bool known = std::ranges::find(kKnownKeys, key) != kKnownKeys.end();
    if (!known && !is_off(value)) config.fail(key, "it off: snug reads plain LoRA");
  }
  if (config.string("peft_type") != "LORA") config.fail("peft_type", "\"LORA\"");
  if (config.string("task_type", "CAUSAL_LM") != "CAUSAL_LM") config.fail("task_type", "\"CAUSAL_LM\"");
  if (config.string("bias", "none") != "none") config.fail("bias", "\"none\"");
  if (config.boolean("fan_in_fan_out", false)) config.fail("fan_in_fan_out", "false");
  // Some ways to start an adapter (PiSSA, OLoRA, LoftQ) change the base weights as well.
  if (config.has("init_lora_weights")) {
    const Json& init = config.at("init_lora_weights");
    if (!init.is_boolean() && init != "gaussian") config.fail("init_lora_weights", "true, false or \"gaussian\"");
  }
}

std::vector<std::string> parse_target_modules(const JsonObject& config) {
  constexpr std::string_view kKey = "target_modules", kExpected = "a list of module names";
  const Json& list = config.at(kKey);
  if (!list.is_array() || list.empty()) config.fail(kKey, kExpected);
  std::vector<std::string> modules;
  for (const Json& module : list) {
    if (!module.is_string() || module == "") config.fail(kKey, kExpected);
    modules.push_back(module.get<std::string>());
  }
  std::ranges::sort(modules);
  return modules;
}

}  // namespace

double lora_scale(const PeftConfig& config) {
  const auto rank = static_cast<double>(config.rank);
  return config.alpha / (config.rslora ? std::sqrt(rank) : rank);
}

PeftConfig parse_peft_config(std::string_view json, std::string_view source) {
  const Json parsed = parse_json(json, source);
  const JsonObject object(parsed, std::string(source));
  refuse_other_features(object);
  PeftConfig config;
  config.base_model = object.string("base_model_name_or_path", "");
  config.rank = object.integer("r", 1, kMaxRank);
  config.alpha = object.number("lora_alpha", 0, 1e6);
  config.dropout = object.number("lora_dropout", 0, 1, 0.0);
  config.rslora = object.boolean("use_rslora", false);
  config.target_modules = parse_target_modules(object);
  return config;
}

PeftConfig read_peft_config(const std::filesystem::path& directory) {
  const auto path = directory / kPeftConfigFile;
  return parse_peft_config(read_text(path, kMaxConfigBytes), path.string());
}

std::string write_peft_config(const PeftConfig& config) {
  nlohmann::ordered_json object;
  object["peft_type"] = "LORA";
  object["task_type"] = "CAUSAL_LM";
  object["base_model_name_or_path"] = config.base_model;
  object["inference_mode"] = true;
  object["r"] = config.rank;
  // PEFT declares lora_alpha a whole number; it is written as one where it is one.
  if (config.alpha == std::floor(config.alpha)) {
    object["lora_alpha"] = static_cast<int64_t>(config.alpha);
  } else {
    object["lora_alpha"] = config.alpha;
  }
  object["lora_dropout"] = config.dropout;
  object["use_rslora"] = config.rslora;
  object["target_modules"] = config.target_modules;
  object["bias"] = "none";
  object["fan_in_fan_out"] = false;
  object["init_lora_weights"] = true;
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_string(const PeftTensorName& tensor) {
  return fmt::format("{}{}{}", kPrefix, tensor.linear, tensor.half == LoraHalf::A ? kSuffixA : kSuffixB);
}

bool targets(const PeftConfig& config, std::string_view linear) {
  return std::ranges::any_of(config.target_modules, [&](std::string_view module) {
    if (!linear.ends_with(module)) return false;
    return linear.size() == module.size() || linear[linear.size() - module.size() - 1] == '.';
  });
}

}  // namespace snug
