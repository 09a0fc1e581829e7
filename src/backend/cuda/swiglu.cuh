// Activations and gated linear units (Shazeer, arXiv:2002.05202) of one number: the same bits in every kernel that has
// them.   h = activation(gate) up       dgate = dh up activation'(gate)       dup = dh activation(gate)
#pragma once

#include "backend/cuda/device.cuh"
#include "backend/gelu.h"

namespace snug::cuda {

// An activation (program/ops.h) and its derivative.
struct Activated {
  float value, slope;
};

// Says that an activation is x sigmoid(z): z is linear x, or GELU's by tanh (backend/gelu.h).
struct SigmoidGate {
  constexpr explicit SigmoidGate(Activation kind)
      : tanh(kind == Activation::GeluTanh), linear(kind == Activation::GeluQuick ? kGeluQuick : 1.0f) {}
  bool tanh;
  float linear;
};

// T: of the numbers that x was read from.
template <class T>
__device__ Activated activated(float x, const SigmoidGate& gate) {
  const float s = sigmoid<T>(gate.tanh ? x * (kGeluLinear + kGeluCubic * x * x) : gate.linear * x);
  const float slope = gate.tanh ? kGeluLinear + 3.0f * kGeluCubic * x * x : gate.linear;
  return {x * s, s * (1.0f + x * (1.0f - s) * slope)};
}

template <class T, Activation kind>
__device__ Activated activated(float x) {
  if constexpr (kind == Activation::Gelu) {
    const float a = fabsf(x), e = exponential<T>(-0.5f * (a * a));
    const float tail = e * normal_tail(1.0f / (1.0f + kTailScale * a));
    const float p = x < 0.0f ? tail : 1.0f - tail;
    return {x * p, p + x * (kNormalDensity * e)};
  } else if constexpr (kind == Activation::ReluSquared) {
    const float r = x < 0.0f ? 0.0f : x;  // NaN stays
    return {r * r, 2.0f * r};
  } else {
    return activated<T>(x, SigmoidGate(kind));
  }
}

// Of an activated gate.
__device__ inline float swiglu(const Activated& gate, float up) { return gate.value * up; }

struct SwiGluGradient {
  float dgate, dup, h;
};
__device__ inline SwiGluGradient swiglu_gradient(float dh, const Activated& gate, float up) {
  return {dh * up * gate.slope, dh * gate.value, gate.value * up};
}

// Calls f.template operator()<kind>() with an activation's kind.
template <class F>
decltype(auto) dispatch_kind(Activation activation, const F& f) {
  switch (activation) {
    case Activation::GeluTanh:
      return f.template operator()<Activation::GeluTanh>();
    case Activation::Gelu:
      return f.template operator()<Activation::Gelu>();
    case Activation::GeluQuick:
      return f.template operator()<Activation::GeluQuick>();
    case Activation::ReluSquared:
      return f.template operator()<Activation::ReluSquared>();
    case Activation::Silu:
      break;
  }
  return f.template operator()<Activation::Silu>();
}

}  // namespace snug::cuda
