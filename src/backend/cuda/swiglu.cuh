// Computes SwiGLU (Shazeer, arXiv:2002.05202) of one number, with equal bits in every kernel that has it.   s =
// sigmoid(gate)
//   h = gate s up       dgate = dh up s (1 + gate (1 - s))       dup = dh gate s
#pragma once

#include "backend/cuda/device.cuh"

namespace snug::cuda {

// T is the dtype of the activations.
template <class T>
__device__ float swiglu(float gate, float up) {
  return gate * sigmoid<T>(gate) * up;
}

struct SwiGluGradient {
  float dgate, dup, h;
};
template <class T>
__device__ SwiGluGradient swiglu_gradient(float dh, float gate, float up) {
  const float s = sigmoid<T>(gate);
  return {dh * up * (s * (1.0f + gate * (1.0f - s))), dh * (gate * s), gate * s * up};
}

}  // namespace snug::cuda
