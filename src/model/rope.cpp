#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace snug {
namespace {

// Frequencies whose wave is longer than the original context can tell are divided by the factor, those well inside it
// are kept, and between the two it is interpolated.
float llama3(const RopeParameters& rope, float frequency) {
  const auto factor = static_cast<float>(rope.factor), low = static_cast<float>(rope.low_freq_factor),
             high = static_cast<float>(rope.high_freq_factor), length = static_cast<float>(rope.original_max_position);
  const float wave = 2.0f * std::numbers::pi_v<float> / frequency;
  if (wave > length / low) return frequency / factor;
  if (wave < length / high) return frequency;
  const float smooth = (length / wave - low) / (high - low);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

// Blends the pairs of a head from `low` to `high` and keeps those before.
struct YarnRange {
  double low, high;
};

YarnRange yarn_range(const RopeParameters& rope, int64_t dim) {
  const auto pair_that_turns = [&](double times) {
    return static_cast<double>(dim) * std::log(rope.original_max_position / (times * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = pair_that_turns(rope.beta_fast), high = pair_that_turns(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(dim - 1));
  return {low, low == high ? high + 0.001 : high};
}

float yarn(const RopeParameters& rope, const YarnRange& range, int64_t pair, float wave) {
  const float ramp = std::clamp(
      (static_cast<float>(pair) - static_cast<float>(range.low)) / static_cast<float>(range.high - range.low), 0.0f,
      1.0f);
  const float kept = 1.0f - ramp;
  return 1.0f / (static_cast<float>(rope.factor) * wave) * (1.0f - kept) + 1.0f / wave * kept;
}

// Returns NTK's theta: so large that the slowest pair turns no further than in the original length.
double theta_of(const RopeParameters& rope, int64_t dim, int64_t positions) {
  if (rope.type != RopeType::Dynamic || !is_long(rope, positions)) return rope.theta;
  const auto d = static_cast<double>(dim);
  const double grown = rope.factor * static_cast<double>(positions) / rope.original_max_position - (rope.factor - 1);
  return rope.theta * std::pow(grown, d / (d - 2));
}

}  // namespace

bool is_long(const RopeParameters& rope, int64_t positions) {
  return (rope.type == RopeType::Dynamic || rope.type == RopeType::LongRope) &&
         static_cast<double>(positions) > rope.original_max_position;
}

RopeTable rope_table(const RopeParameters& rope, int64_t dim, int64_t positions, bool queries) {
  const double theta = theta_of(rope, dim, positions);
  const YarnRange range = rope.type == RopeType::Yarn ? yarn_range(rope, dim) : YarnRange{};
  const std::vector<double>& factors = is_long(rope, positions) ? rope.long_factor : rope.short_factor;
  RopeTable table;
  table.attention_factor = static_cast<float>(rope.attention_factor);
  if (queries) {
    table.growth = static_cast<float>(rope.query_growth);
    table.growth_length = static_cast<int64_t>(rope.original_max_position);
  }
  for (int64_t i = 0; i < dim / 2; i++) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    const auto wave = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));  // over 2 pi
    float frequency = 1.0f / wave;
    if (rope.type == RopeType::Linear) frequency /= static_cast<float>(rope.factor);
    if (rope.type == RopeType::Llama3) frequency = llama3(rope, frequency);
    if (rope.type == RopeType::Yarn) frequency = yarn(rope, range, i, wave);
    if (rope.type == RopeType::LongRope)
      frequency = 1.0f / (static_cast<float>(factors[static_cast<size_t>(i)]) * wave);
    table.frequencies.push_back(frequency);
  }
  return table;
}

RopeTable rope_table(const RopeParameters& rope, const RopeAxes& axes) {
  RopeTable table;
  for (const int64_t pairs : axes.pairs)
    for (const float frequency : rope_table(rope, 2 * pairs, 0).frequencies) table.frequencies.push_back(frequency);
  return table;
}

}  // namespace snug
