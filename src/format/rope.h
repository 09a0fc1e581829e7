// Says how a model's rotary embedding turns, from rope_parameters (or rope_theta and rope_scaling) of config.json.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "format/json.h"

namespace snug {

enum class RopeType : uint8_t { Default, Linear, Dynamic, Llama3, Yarn, LongRope };

// Holds the parameters. Each type reads the members that are named with it. With d / 2 pairs a head, pair i turns by
// f_i = theta^(-2i/d) a position, which is then changed:
//   Linear    f_i / factor
//   Dynamic   theta grows with lengths beyond original_max_position (NTK): up to it as Default
//   Llama3    wavelengths above original_max_position / low_freq_factor are multiplied by factor, those below
//             original_max_position / high_freq_factor stay, between them the two are blended
//   Yarn      pairs that turn more than beta_fast times in original_max_position stay, those that turn less than
//             beta_slow times are divided by factor, between them the two are blended (Peng et al., arXiv:2309.00071);
//             cos and sin are multiplied by attention_factor
//   LongRope  f_i / long_factor[i] for lengths beyond original_max_position, else f_i / short_factor[i] (Ding et al.,
//             arXiv:2402.13753); cos and sin are multiplied by attention_factor
struct RopeParameters {
  double theta = 10000;
  RopeType type = RopeType::Default;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;
  double original_max_position = 0;
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;  // Yarn's borders are whole pairs
  double attention_factor = 1;
  std::vector<double> short_factor{}, long_factor{};
  int64_t dim = 0;  // leading elements of a head that turn, an even number; 0: all
  // Queries are multiplied by 1 + query_growth ln(1 + floor(position / original_max_position)).
  double query_growth = 0;
};

// What a family's configuration class has for keys that are absent.
struct RopeDefaults {
  double theta = 10000;
  double partial_rotary_factor = 1;  // the share of a head that turns
  double original_max_position = 0;  // 0: max_position_embeddings
  bool alpha = false;                // type dynamic with a key `alpha` enlarges theta by it once, for all lengths
};

// The largest factor of a length, a frequency or attention that is read.
inline constexpr double kMaxRopeFactor = 1e4;

// Returns the factor of cos and sin by which Yarn makes attention sharper: 0.1 weight ln(scale) + 1.
double yarn_attention_factor(double scale, double weight = 1);
// Returns LongRope's, sqrt(1 + ln(scale) / ln(length)), of an original length and of how many times as long texts may
// be.
double longrope_attention_factor(double scale, double original_length);

// Returns the type as configurations spell it: "default", "llama3".
std::string_view name(RopeType type);

// Reads them from a configuration. transformers 5 keeps all in `rope_parameters`; 4 had `rope_theta`, and
// `rope_scaling` for the rest. Where `rope_parameters` has an object for each type of layer, that of `layers` is read.
// UserError naming key, found and expected for a type that is not one of these, and for a number out of range.
RopeParameters parse_rope(const JsonObject& config, const RopeDefaults& defaults, int64_t head_dim,
                          int64_t max_position, std::string_view layers = "full_attention");

// Returns whether `rope_parameters` has an object for each type of layer.
bool has_rope_by_layers(const JsonObject& config);

}  // namespace snug
