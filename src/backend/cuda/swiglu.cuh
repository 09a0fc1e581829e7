// Gated linear units (Shazeer, arXiv:2002.05202) of one number: the same bits in every kernel that has it.
//   s = sigmoid(z)      h = gate s up       dgate = dh up s (1 + gate (1 - s) dz/dgate)       dup = dh gate s
// SwiGLU: z = gate. GELU by tanh: z as backend/gelu.h has it.
#pragma once

#include "backend/cuda/device.cuh"
#include "backend/gelu.h"

namespace snug::cuda {

// T: of the activations. `gelu`: whether the gate's activation is GELU.
template <class T>
__device__ float gate_sigmoid(float gate, bool gelu) {
  return sigmoid<T>(gelu ? gate * (kGeluLinear + kGeluCubic * gate * gate) : gate);
}

template <class T>
__device__ float swiglu(float gate, float up, bool gelu) {
  return gate * gate_sigmoid<T>(gate, gelu) * up;
}

struct SwiGluGradient {
  float dgate, dup, h;
};
template <class T>
__device__ SwiGluGradient swiglu_gradient(float dh, float gate, float up, bool gelu) {
  const float s = gate_sigmoid<T>(gate, gelu);
  const float slope = gelu ? kGeluLinear + 3.0f * kGeluCubic * gate * gate : 1.0f;
  return {dh * up * (s * (1.0f + gate * (1.0f - s) * slope)), dh * (gate * s), gate * s * up};
}

}  // namespace snug::cuda
