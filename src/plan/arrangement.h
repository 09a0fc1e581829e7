// What decides a job, in three kinds: what the user chooses and the planner never changes (Numerics), how a step is cut
// (Cut), and where bytes live and when work happens (Strategy), which never changes a bit of a result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace snug {

struct Numerics {
  DType compute = DType::BF16;     // of products and activations: BF16 or F32
  DType base = DType::BF16;        // of frozen weights: BF16 or F32
  DType accumulator = DType::F32;  // of gradients summed over passes
  int64_t head_rows = 1024;        // rows of a chunk of logits
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0;
  float max_grad_norm = 1;

  // Gradients have the products' dtype. Trainable weights are fp32 in value: plain where products are fp32, else split
  // into the bf16 weight and the 16 bits that complete it.
  DType gradient() const { return compute; }
  bool split_master() const { return compute == DType::BF16; }
};

struct Cut {
  int64_t sequence_length = 2048;
  int64_t micro_batch = 1;                                          // blocks a pass
  int64_t passes = 1;                                               // of a step
  int64_t tokens() const { return micro_batch * sequence_length; }  // a pass
};

// What a block computes again in its backward instead of keeping it. Norms and SwiGLU always are.
enum class Recompute : uint8_t { None, Mlp, Attention, Block };
std::string_view name(Recompute recompute);

struct Strategy {
  std::vector<Recompute> recompute;  // by block
  int64_t offloaded_blocks = 0;      // the inputs of the first so many blocks wait on the host for their backward
  int64_t retire_lag = 12;           // ops for which the buffers of a copy stay reserved beyond it
};

}  // namespace snug
