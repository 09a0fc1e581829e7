// Classes of a layer's forward values: what is kept until the backward, offloaded or computed again is decided by
// class.
#pragma once

#include <cstdint>

namespace snug {

enum class ActivationClass : uint8_t {
  Boundary,         // what a layer starts from and ends with: never computed again
  Attention,        // queries, keys and values; the attention's result and row sums
  Residual,         // between attention and MLP
  Mlp,              // gate and up
  Adapter,          // x A^T of a low-rank adapter
  AlwaysRecompute,  // norms and SwiGLU: little work for many bytes
  Tiny,             // a norm's row factors, x A^T of the last linear: always kept
};

}  // namespace snug
