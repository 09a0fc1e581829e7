#include "format/quantization_config.h"

#include <algorithm>
#include <array>

#include "base/ascii.h"
#include "base/error.h"

namespace snug {
namespace {

using enum QuantizationMethod;

constexpr std::array<std::string_view, 4> kMethods{"gptq", "awq", "compressed-tensors", "fp8"};
constexpr int64_t kMaxSize = int64_t{1} << 31;  // of a group or a block
constexpr const char* kGroupSize = "group_size";

// What would change the weights beside their codes.
void refuse_other(const JsonObject& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (config.has(key) && config.at(key) != false && !(config.at(key).is_object() && config.at(key).empty()))
      config.fail(key, "nothing: what else is done to weights or their products is not read");
}

// Groups of so many columns; -1 makes a row one group.
void parse_group_size(const JsonObject& config, const char* key, QuantizationConfig& result) {
  result.group_size = config.integer(key, -1, kMaxSize);
  if (result.group_size == 0) config.fail(key, "-1, or 1 and more");
  result.strategy = result.group_size < 0 ? ScaleStrategy::Row : ScaleStrategy::Group;
  result.group_size = std::max<int64_t>(result.group_size, 0);
}

void parse_bits(const JsonObject& config, const char* key, QuantizationConfig& result) {
  result.bits = config.integer(key, 1, 32);
  if (result.bits != 2 && result.bits != 4 && result.bits != 8) config.fail(key, "2, 4 or 8");
}

// The keys of GPTQ that may differ from module to module: of those that are left out `result` has the model's. Groups
// in an order of their own are told apart by an index alone; a row that is one group needs none.
void parse_gptq_codes(const JsonObject& config, QuantizationConfig& result, bool required) {
  constexpr const char* kOrder = "desc_act";
  if (required || config.has("bits")) parse_bits(config, "bits", result);
  if (required || config.has(kGroupSize)) parse_group_size(config, kGroupSize, result);
  if (config.has(kOrder)) result.ordered_by = config.boolean(kOrder) ? config.where(kOrder) : "";
}

// Its keys are regular expressions behind "-:", of modules that are plain, or "+:" or nothing, of modules that have
// bits and groups of their own. A name must begin as they say.
std::vector<ModuleRule> parse_module_rules(const JsonObject& config, const QuantizationConfig& of_model) {
  constexpr const char* kRules = "dynamic";
  // These decided which codes were chosen, and decide nothing of what they stand for.
  constexpr std::array<std::string_view, 9> kOfQuantiser{"sym",
                                                         "damp_percent",
                                                         "damp_auto_increment",
                                                         "static_groups",
                                                         "true_sequential",
                                                         "mse",
                                                         "act_group_aware",
                                                         "fallback",
                                                         "v2"};
  std::vector<ModuleRule> rules;
  if (!config.has(kRules)) return rules;
  const JsonObject dynamic = config.object(kRules);
  for (const auto& [key, value] : dynamic.value().items()) {
    const bool plain = key.starts_with("-:");
    const std::string expression = plain || key.starts_with("+:") ? key.substr(2) : key, place = dynamic.where(key);
    Pattern{expression, place};  // refuses one that is none by itself
    ModuleRule rule{key, Pattern(fmt::format("(?:{})[\\s\\S]*", expression), place), plain, of_model};
    if (!plain) {
      const JsonObject own = dynamic.object(key);
      for (const auto& [name, ignored] : own.value().items())
        if (name != "bits" && name != kGroupSize && name != "desc_act" &&
            std::ranges::find(kOfQuantiser, name) == kOfQuantiser.end())
          own.fail(name, "\"bits\", \"group_size\" or \"desc_act\": what else modules may differ by is not read");
      parse_gptq_codes(own, rule.config, /*required=*/false);
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

QuantizationScheme parse_gptq(const JsonObject& config) {
  QuantizationConfig result{.method = Gptq};
  parse_gptq_codes(config, result, /*required=*/true);
  const char* key = config.has("checkpoint_format") ? "checkpoint_format" : "format";
  const std::string format = config.string(key, "gptq");
  if (format != "gptq" && format != "gptq_v2") config.fail(key, "\"gptq\" or \"gptq_v2\"");
  result.zeros_less_one = format == "gptq";
  refuse_other(config, {"is_marlin_format", "rotation", "adapter"});
  return {result, parse_module_rules(config, result)};
}

// Its keys have older names, and newer ones.
QuantizationConfig parse_awq(const JsonObject& config) {
  QuantizationConfig result{.method = Awq};
  const char* bits = config.has("w_bit") ? "w_bit" : "bits";
  result.bits = config.integer(bits, 1, 32);
  if (result.bits != 4) config.fail(bits, "4");
  parse_group_size(config, config.has("q_group_size") ? "q_group_size" : kGroupSize, result);
  for (const char* key : {"version", "format", "checkpoint_format"})
    if (lower_case(config.string(key, "gemm")) != "gemm")
      config.fail(key, "\"gemm\": other layouts of AWQ's weights are not read");
  if (config.string("backend", "") == "llm-awq") config.fail("backend", "\"autoawq\": another layout is not read");
  if (!config.boolean("zero_point", true)) config.fail("zero_point", "true");
  return result;
}

// Two sizes, as a list or as "128x128".
void parse_block(const JsonObject& config, const char* key, QuantizationConfig& result) {
  const Json& list = config.at(key);
  const auto is_size = [](const Json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() > 0 && size.get<uint64_t>() <= uint64_t{kMaxSize};
  };
  if (!list.is_array() || list.size() != 2 || !std::ranges::all_of(list, is_size))
    config.fail(key, fmt::format("[rows, columns], each from 1 to {}", kMaxSize));
  result.strategy = ScaleStrategy::Block;
  result.block_rows = list[0].get<int64_t>();
  result.block_cols = list[1].get<int64_t>();
}

// Of what compressed-tensors calls formats, those that are read.
constexpr const char* kFormatKey = "format";
constexpr std::array<std::string_view, 4> kFormats{"pack-quantized", "int-quantized", "float-quantized",
                                                   "naive-quantized"};

// In which order columns were taken into groups. In the one of weights they follow each other.
void parse_order(const JsonObject& weights, QuantizationConfig& result) {
  constexpr const char* kOrder = "actorder";
  if (!weights.has(kOrder) || weights.at(kOrder) == false) return;
  const std::string order = weights.at(kOrder) == true ? "group" : weights.string(kOrder);
  if (order == "group" || order == "dynamic")
    result.ordered_by = weights.where(kOrder);
  else if (order != "weight" && order != "static")
    weights.fail(kOrder, "\"group\" or \"weight\"");
}

// `weights` of one of compressed-tensors' groups; `named` is the object that says the format.
QuantizationConfig parse_scheme(const JsonObject& weights, const JsonObject& named) {
  const std::string format = named.string(kFormatKey, "dense");
  QuantizationConfig result{.method = CompressedTensors};
  const std::string type = weights.string("type", "int");
  if (type != "int" && type != "float") weights.fail("type", "\"int\" or \"float\"");
  if (std::ranges::find(kFormats, format) == kFormats.end())
    named.fail(kFormatKey, fmt::format("one of \"{}\"", fmt::join(kFormats, "\", \"")));
  const bool packed = format == "pack-quantized", is_int = type == "int";
  if ((packed || format == "int-quantized") && !is_int) weights.fail("type", fmt::format("\"int\", as in {}", format));
  if (format == "float-quantized" && is_int) weights.fail("type", "\"float\", as in float-quantized");
  parse_bits(weights, "num_bits", result);
  if (!is_int && result.bits != 8) weights.fail("num_bits", "8, of floating point");
  result.codes = packed ? CodeType::Packed : is_int ? CodeType::Int8 : CodeType::Fp8;
  result.zero_points = !weights.boolean("symmetric", true);
  if (weights.has("dynamic") && weights.at("dynamic") != false) weights.fail("dynamic", "false, of weights");
  std::string implied = "tensor";
  if (weights.has("group_size")) {
    parse_group_size(weights, kGroupSize, result);
    implied = result.strategy == ScaleStrategy::Group ? "group" : "channel";
  }
  const std::string strategy = weights.string("strategy", implied);
  if (strategy == "tensor") {
    result.strategy = ScaleStrategy::Tensor;
  } else if (strategy == "channel") {
    result.strategy = ScaleStrategy::Row;
  } else if (strategy == "block") {
    parse_block(weights, "block_structure", result);
  } else if (strategy != "group") {
    weights.fail("strategy", "\"tensor\", \"channel\", \"group\" or \"block\"");
  }
  if (result.strategy != ScaleStrategy::Group) result.group_size = 0;
  if (strategy == "group" && result.group_size == 0) weights.fail("group_size", "1 and more");
  parse_order(weights, result);
  return result;
}

QuantizationConfig parse_compressed_tensors(const JsonObject& config) {
  refuse_other(config, {"transform_config"});
  if (config.has("sparsity_config") && !config.at("sparsity_config").empty()) {
    const JsonObject sparsity = config.object("sparsity_config");
    if (sparsity.string("format", "dense") != "dense") sparsity.fail("format", "\"dense\"");
  }
  const JsonObject groups = config.object("config_groups");
  std::optional<QuantizationConfig> result;
  for (const auto& [key, value] : groups.value().items()) {
    const JsonObject group = groups.object(key);
    if (!group.has("weights")) continue;
    const QuantizationConfig scheme = parse_scheme(group.object("weights"), group.has(kFormatKey) ? group : config);
    if (result && *result != scheme) groups.fail(key, "the weights of the group before it: one scheme for all linears");
    result = scheme;
  }
  if (!result) config.fail("config_groups", "a group with weights");
  return *result;
}

QuantizationConfig parse_fp8(const JsonObject& config) {
  QuantizationConfig result{
      .method = Fp8, .codes = CodeType::Fp8, .strategy = ScaleStrategy::Tensor, .zero_points = false};
  if (config.has("weight_block_size")) parse_block(config, "weight_block_size", result);
  return result;
}

}  // namespace

std::optional<JsonObject> find_quantization(const JsonObject& config) {
  for (const char* key : kQuantizationKeys)
    if (config.has(key)) return config.object(key);
  return std::nullopt;
}

std::string_view name(QuantizationMethod method) { return kMethods[static_cast<size_t>(method)]; }

std::optional<QuantizationMethod> quantization_method(const JsonObject& quantization) {
  const auto found = std::ranges::find(kMethods, quantization.string("quant_method", ""));
  if (found == kMethods.end()) return std::nullopt;
  return static_cast<QuantizationMethod>(found - kMethods.begin());
}

QuantizationScheme parse_quantization_config(const JsonObject& quantization) {
  const auto method = quantization_method(quantization);
  if (!method) quantization.fail("quant_method", fmt::format("one of \"{}\"", fmt::join(kMethods, "\", \"")));
  switch (*method) {
    case Gptq:
      return parse_gptq(quantization);
    case Awq:
      return {parse_awq(quantization)};
    case CompressedTensors:
      return {parse_compressed_tensors(quantization)};
    case Fp8:
      return {parse_fp8(quantization)};
  }
  internal_error("a method of quantisation has no reader");
}

std::string describe(const QuantizationConfig& config) {
  const std::string codes = config.codes == CodeType::Packed ? fmt::format("{} bits", config.bits)
                            : config.codes == CodeType::Int8 ? "int8"
                                                             : "e4m3";
  std::string scales = "a scale for each linear";
  if (config.strategy == ScaleStrategy::Row) scales = "a scale for each row";
  if (config.strategy == ScaleStrategy::Group) scales = fmt::format("groups of {}", config.group_size);
  if (config.strategy == ScaleStrategy::Block)
    scales = fmt::format("blocks of {} x {}", config.block_rows, config.block_cols);
  return fmt::format("{}, {}, {}", name(config.method), codes, scales);
}

}  // namespace snug
