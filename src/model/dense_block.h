// The decoder block of Llama and Qwen2: RMSNorm, grouped-query attention with rotary embedding, RMSNorm, SwiGLU MLP,
// each half added to the residual stream.
#pragma once

#include "model/builder.h"

namespace snug {

// What every block of a pass shares.
struct BlockContext {
  Operand positions, rope_table;
  Operand documents;             // training and evaluation
  int64_t longest_document = 0;  //   and the most tokens one of them has
  std::optional<Operand> cache;  // generating: this block's keys and values
};

class DenseBlock {
 public:
  DenseBlock(const BlockParams& params, BlockContext context) : params_(params), context_(std::move(context)) {}

  // x [T, hidden] -> [T, hidden]
  Value forward(Builder& b, Value x);
  // Turns dy, in place, into the gradient of x, and emits those of the block's parameters. Where `wanted` is false,
  // nothing before this block is trained: what only x needs is left out, and dy is left as it may be.
  void backward(Builder& b, Value dy, bool wanted);

  Value input() const { return x_; }

 private:
  BlockParams params_;
  BlockContext context_;
  Value x_, n1_, qkv_, attention_, r_, n2_;
  Builder::Gated gated_;
};

}  // namespace snug
