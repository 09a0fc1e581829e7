#include "format/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

namespace snug {
namespace {

constexpr double kMaxFactor = 1e4, kMaxLength = 1e12;

constexpr std::array kTypes{std::pair{std::string_view("default"), RopeType::Default},
                            std::pair{std::string_view("linear"), RopeType::Linear},
                            std::pair{std::string_view("dynamic"), RopeType::Dynamic},
                            std::pair{std::string_view("llama3"), RopeType::Llama3},
                            std::pair{std::string_view("yarn"), RopeType::Yarn},
                            std::pair{std::string_view("longrope"), RopeType::LongRope},
                            std::pair{std::string_view("su"), RopeType::LongRope}};  // as Phi-3 spelt it

// Returns the original length. It may stand at the top level, as in Phi-3's files, and counts there first.
double original_length(const JsonObject& config, const JsonObject& rope, int64_t max_position) {
  const JsonObject& object = config.has("original_max_position_embeddings") ? config : rope;
  return object.number("original_max_position_embeddings", 1, kMaxLength, static_cast<double>(max_position));
}

void parse_llama3(const JsonObject& rope, RopeParameters& out) {
  out.low_freq_factor = rope.number("low_freq_factor", 1e-3, kMaxFactor);
  out.high_freq_factor = rope.number("high_freq_factor", 1e-3, kMaxFactor);
  if (out.high_freq_factor <= out.low_freq_factor)
    rope.fail("high_freq_factor", fmt::format("more than low_freq_factor, {}", out.low_freq_factor));
}

void parse_yarn(const JsonObject& rope, RopeParameters& out) {
  out.beta_fast = rope.number("beta_fast", 1e-3, kMaxLength, out.beta_fast);
  out.beta_slow = rope.number("beta_slow", 1e-3, kMaxLength, out.beta_slow);
  if (out.beta_fast < out.beta_slow) rope.fail("beta_fast", fmt::format("at least beta_slow, {}", out.beta_slow));
  out.truncate = rope.boolean("truncate", true);
  const double weight = rope.number("mscale", 0, kMaxFactor, 0), all = rope.number("mscale_all_dim", 0, kMaxFactor, 0);
  const double usual = weight > 0 && all > 0 ? yarn_magnitude(out.factor, weight) / yarn_magnitude(out.factor, all)
                                             : yarn_magnitude(out.factor);
  out.attention_factor = rope.number("attention_factor", 0, kMaxFactor, usual);
}

std::vector<double> factors(const JsonObject& rope, std::string_view key, int64_t pairs) {
  const std::string expected = fmt::format("a list of {} numbers above 0, one for each pair of a head", pairs);
  if (!rope.has(key)) rope.fail(key, expected);
  const Json& list = rope.at(key);
  const auto good = [](const Json& v) { return v.is_number() && v.get<double>() > 0 && v.get<double>() < kMaxFactor; };
  if (!list.is_array() || std::ssize(list) != pairs || !std::ranges::all_of(list, good)) rope.fail(key, expected);
  return list.get<std::vector<double>>();
}

void parse_longrope(const JsonObject& rope, int64_t head_dim, RopeParameters& out) {
  out.short_factor = factors(rope, "short_factor", head_dim / 2);
  out.long_factor = factors(rope, "long_factor", head_dim / 2);
  const double usual = out.factor <= 1 ? 1 : std::sqrt(1 + std::log(out.factor) / std::log(out.original_max_position));
  out.attention_factor = rope.number("attention_factor", 0, kMaxFactor, usual);
}

}  // namespace

std::string_view name(RopeType type) {
  return std::ranges::find(kTypes, type, &std::pair<std::string_view, RopeType>::second)->first;
}

double yarn_magnitude(double scale, double weight) { return scale <= 1 ? 1 : 0.1 * weight * std::log(scale) + 1; }

RopeParameters parse_rope(const JsonObject& config, double theta, int64_t head_dim, int64_t max_position) {
  constexpr double kMinTheta = 1, kMaxTheta = 1e12;
  RopeParameters out;
  out.theta = config.number("rope_theta", kMinTheta, kMaxTheta, theta);
  const char* key = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (config.number("partial_rotary_factor", 0, 1, 1.0) != 1) config.fail("partial_rotary_factor", "1");
  if (!config.has(key)) return out;
  if (config.has("rope_parameters") && config.has("rope_scaling") &&
      config.at("rope_parameters") != config.at("rope_scaling"))
    config.fail("rope_scaling", "nothing beside rope_parameters, or the same");
  const JsonObject rope = config.object(key);
  out.theta = rope.number("rope_theta", kMinTheta, kMaxTheta, out.theta);
  if (rope.number("partial_rotary_factor", 0, 1, 1.0) != 1) rope.fail("partial_rotary_factor", "1");
  const char* type_key = rope.has("rope_type") ? "rope_type" : "type";  // "type" is the older spelling
  const std::string type = rope.string(type_key, "default");
  const auto found = std::ranges::find(kTypes, type, &std::pair<std::string_view, RopeType>::first);
  if (found == kTypes.end())
    rope.fail(type_key, "\"default\", \"linear\", \"dynamic\", \"llama3\", \"yarn\" or \"longrope\"");
  out.type = found->second;
  for (const char* other : {"mrope_section", "xdrope_section"})
    if (rope.has(other)) rope.fail(other, "none: positions of a text have one number");
  if (out.type == RopeType::Default) return out;
  if (out.type == RopeType::Dynamic && rope.has("alpha")) rope.fail("alpha", "none beside type dynamic");
  if (out.type == RopeType::Dynamic)
    out.original_max_position = static_cast<double>(max_position);
  else if (out.type != RopeType::Linear)
    out.original_max_position = original_length(config, rope, max_position);
  // Yarn and LongRope may leave the factor to the two lengths.
  const bool by_lengths = out.type == RopeType::LongRope || out.type == RopeType::Yarn;
  const std::optional<double> ratio =
      by_lengths ? std::optional(std::max(1.0, static_cast<double>(max_position) / out.original_max_position))
                 : std::nullopt;
  out.factor = rope.number("factor", 1, kMaxFactor, ratio);
  if (out.type == RopeType::Llama3) parse_llama3(rope, out);
  if (out.type == RopeType::Yarn) parse_yarn(rope, out);
  if (out.type == RopeType::LongRope) parse_longrope(rope, head_dim, out);
  return out;
}

}  // namespace snug
