#include "backend/rope_frequencies.h"

#include <cmath>
#include <numbers>

namespace snug {
namespace {

// Llama 3.1's scaling: frequencies whose wave is longer than the original context can tell are divided by the factor,
// those well inside it are kept, and between the two it is interpolated.
float scaled(const RopeTable& t, float frequency) {
  const auto factor = static_cast<float>(t.factor), low = static_cast<float>(t.low_frequency_factor),
             high = static_cast<float>(t.high_frequency_factor), length = static_cast<float>(t.original_length);
  const float wave = 2.0f * std::numbers::pi_v<float> / frequency;
  if (wave > length / low) return frequency / factor;
  if (wave < length / high) return frequency;
  const float smooth = (length / wave - low) / (high - low);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const RopeTable& table, int64_t dim) {
  std::vector<float> result;
  for (int64_t i = 0; i < dim / 2; i++) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    const float frequency = 1.0f / static_cast<float>(std::pow(table.theta, static_cast<double>(exponent)));
    result.push_back(table.factor > 0 ? scaled(table, frequency) : frequency);
  }
  return result;
}

}  // namespace snug
