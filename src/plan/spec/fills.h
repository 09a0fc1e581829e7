// Says how parameters are drawn that no file holds.
#pragma once

#include <cmath>

#include "model/params.h"
#include "model/spec.h"
#include "program/ops.h"

namespace snug {

// This is transformers' default of `initializer_range` for these families.
inline constexpr float kInitialDeviation = 0.02f;

// Fills a parameter as the model's authors draw it: weights normal, gains one, biases zero.
inline RandomFill model_fill(const ParamSpec& param, uint64_t seed, uint32_t stream) {
  if (param.name == ModelSpec::kScoreHead)  // as TRL's and OpenRLHF's reward models begin
    return {Distribution::Normal, 1.0f / static_cast<float>(param.shape.cols() + 1), seed, stream, 0};
  if (param.decay) return {Distribution::Normal, kInitialDeviation, seed, stream, 0};
  return {Distribution::Constant, param.initial, seed, stream, 0};
}

// Fills an adapter as PEFT does: A uniform in +-1 / sqrt(in) (Kaiming with a = sqrt(5)), B zero. Norms of rows have not
// changed; what they begin with is not drawn but computed of the weight.
inline RandomFill adapter_fill(const ParamSpec& param, uint64_t seed, uint32_t stream) {
  if (param.name.ends_with(".lora_A.weight"))
    return {Distribution::Uniform, 1.0f / std::sqrt(static_cast<float>(param.shape.cols())), seed, stream, 0};
  return {Distribution::Constant, 0.0f, seed, stream, 0};
}

}  // namespace snug
