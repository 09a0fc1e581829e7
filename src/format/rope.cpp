#include "format/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

namespace snug {
namespace {

constexpr double kMaxLength = 1e12;

constexpr std::array kTypes{std::pair{std::string_view("default"), RopeType::Default},
                            std::pair{std::string_view("linear"), RopeType::Linear},
                            std::pair{std::string_view("dynamic"), RopeType::Dynamic},
                            std::pair{std::string_view("llama3"), RopeType::Llama3},
                            std::pair{std::string_view("yarn"), RopeType::Yarn},
                            std::pair{std::string_view("longrope"), RopeType::LongRope},
                            std::pair{std::string_view("su"), RopeType::LongRope}};  // as Phi-3 spelt it

// The original length stands at the top level too, where Phi-3 has it; there it counts.
double original_length(const JsonObject& config, const JsonObject& rope, double usual) {
  const JsonObject& object = config.has("original_max_position_embeddings") ? config : rope;
  return object.number("original_max_position_embeddings", 1, kMaxLength, usual);
}

// Returns how many of a head's elements turn.
int64_t rotary_dim(const JsonObject& object, int64_t head_dim, double usual) {
  const double share = object.number("partial_rotary_factor", 0, 1, usual);
  const auto dim = static_cast<int64_t>(static_cast<double>(head_dim) * share);
  if (dim < 2 || dim % 2 != 0)
    object.fail("partial_rotary_factor",
                fmt::format("a share of the {} elements of a head that is an even number", head_dim));
  return dim;
}

void parse_llama3(const JsonObject& rope, RopeParameters& out) {
  out.low_freq_factor = rope.number("low_freq_factor", 1e-3, kMaxRopeFactor);
  out.high_freq_factor = rope.number("high_freq_factor", 1e-3, kMaxRopeFactor);
  if (out.high_freq_factor <= out.low_freq_factor)
    rope.fail("high_freq_factor", fmt::format("more than low_freq_factor, {}", out.low_freq_factor));
}

void parse_yarn(const JsonObject& rope, RopeParameters& out) {
  out.beta_fast = rope.number("beta_fast", 1e-3, kMaxLength, out.beta_fast);
  out.beta_slow = rope.number("beta_slow", 1e-3, kMaxLength, out.beta_slow);
  if (out.beta_fast < out.beta_slow) rope.fail("beta_fast", fmt::format("at least beta_slow, {}", out.beta_slow));
  out.truncate = rope.boolean("truncate", true);
  const double weight = rope.number("mscale", 0, kMaxRopeFactor, 0),
               all = rope.number("mscale_all_dim", 0, kMaxRopeFactor, 0);
  const double usual = weight > 0 && all > 0
                           ? yarn_attention_factor(out.factor, weight) / yarn_attention_factor(out.factor, all)
                           : yarn_attention_factor(out.factor);
  out.attention_factor = rope.number("attention_factor", 0, kMaxRopeFactor, usual);
}

std::vector<double> factors(const JsonObject& rope, std::string_view key, int64_t pairs) {
  const std::string expected = fmt::format("a list of {} numbers above 0, one for each pair of a head", pairs);
  if (!rope.has(key)) rope.fail(key, expected);
  const Json& list = rope.at(key);
  const auto good = [](const Json& v) {
    return v.is_number() && v.get<double>() > 0 && v.get<double>() < kMaxRopeFactor;
  };
  if (!list.is_array() || std::ssize(list) != pairs || !std::ranges::all_of(list, good)) rope.fail(key, expected);
  return list.get<std::vector<double>>();
}

void parse_longrope(const JsonObject& rope, int64_t dim, RopeParameters& out) {
  out.short_factor = factors(rope, "short_factor", dim / 2);
  out.long_factor = factors(rope, "long_factor", dim / 2);
  out.attention_factor = rope.number("attention_factor", 0, kMaxRopeFactor,
                                     longrope_attention_factor(out.factor, out.original_max_position));
}

}  // namespace

std::string_view name(RopeType type) {
  return std::ranges::find(kTypes, type, &std::pair<std::string_view, RopeType>::second)->first;
}

double yarn_attention_factor(double scale, double weight) {
  return scale <= 1 ? 1 : 0.1 * weight * std::log(scale) + 1;
}

double longrope_attention_factor(double scale, double original_length) {
  return scale <= 1 ? 1 : std::sqrt(1 + std::log(scale) / std::log(original_length));
}

bool has_rope_by_layers(const JsonObject& config) {
  if (!config.has("rope_parameters")) return false;
  const JsonObject rope = config.object("rope_parameters");
  return rope.has("full_attention") || rope.has("sliding_attention");
}

RopeParameters parse_rope(const JsonObject& config, const RopeDefaults& defaults, int64_t head_dim,
                          int64_t max_position, std::string_view layers) {
  constexpr double kMinTheta = 1, kMaxTheta = 1e12;
  RopeParameters out;
  // The base at the top level is that of the layers that see all of a text.
  out.theta =
      layers == "full_attention" ? config.number("rope_theta", kMinTheta, kMaxTheta, defaults.theta) : defaults.theta;
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const bool nested = config.has(key) && config.object(key).has("partial_rotary_factor");
  const int64_t dim = rotary_dim(nested ? config.object(key) : config, head_dim, defaults.partial_rotary_factor);
  out.dim = dim == head_dim ? 0 : dim;
  if (!config.has(key)) return out;
  if (config.has("rope_parameters") && config.has("rope_scaling") &&
      config.at("rope_parameters") != config.at("rope_scaling"))
    config.fail("rope_scaling", "nothing beside rope_parameters, or the same");
  JsonObject rope = config.object(key);
  if (has_rope_by_layers(config)) {
    if (!rope.has(layers)) return out;
    rope = rope.object(layers);
  }
  out.theta = rope.number("rope_theta", kMinTheta, kMaxTheta, out.theta);
  const char* type_key = rope.has("rope_type") ? "rope_type" : "type";  // "type" is the older spelling
  const std::string type = rope.string(type_key, "default");
  const auto found = std::ranges::find(kTypes, type, &std::pair<std::string_view, RopeType>::first);
  if (found == kTypes.end())
    rope.fail(type_key, "\"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\" or \"longrope\"");
  out.type = found->second;
  // Early files of Phi-3 call LongRope "yarn".
  if (out.type == RopeType::Yarn && rope.has("long_factor")) out.type = RopeType::LongRope;
  for (const char* other : {"mrope_section", "xdrope_section"})
    if (rope.has(other)) rope.fail(other, "none: positions of a text have one number");
  if (out.type == RopeType::Default) return out;
  if (out.type == RopeType::Dynamic && rope.has("alpha")) {
    if (!defaults.alpha) rope.fail("alpha", "none beside type dynamic");
    if (dim < 4) rope.fail("alpha", fmt::format("none for {} elements that turn", dim));
    const auto width = static_cast<double>(dim);
    out.theta *= std::pow(rope.number("alpha", 1e-3, kMaxLength), width / (width - 2));
    out.type = RopeType::Default;
    return out;
  }
  if (out.type == RopeType::Dynamic)
    out.original_max_position = static_cast<double>(max_position);
  else if (out.type != RopeType::Linear)
    out.original_max_position = original_length(
        config, rope,
        defaults.original_max_position > 0 ? defaults.original_max_position : static_cast<double>(max_position));
  // Yarn and LongRope may leave the factor to the two lengths.
  const bool by_lengths = out.type == RopeType::LongRope || out.type == RopeType::Yarn;
  const std::optional<double> ratio =
      by_lengths ? std::optional(std::max(1.0, static_cast<double>(max_position) / out.original_max_position))
                 : std::nullopt;
  out.factor = rope.number("factor", 1, kMaxRopeFactor, ratio);
  if (out.type == RopeType::Llama3) parse_llama3(rope, out);
  if (out.type == RopeType::Yarn) parse_yarn(rope, out);
  if (out.type == RopeType::LongRope) parse_longrope(rope, dim, out);
  return out;
}

}  // namespace snug
