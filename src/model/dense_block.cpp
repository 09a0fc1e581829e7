#include "model/dense_block.h"

namespace snug {

Value DenseBlock::forward(Builder& b, Value x) {
  x_ = x;
  n1_ = b.rms_norm(x, params_.attention_norm);
  qkv_ = b.linear(n1_, params_.qkv, Keep::Attention);
  b.rope(qkv_, params_.heads, context_.positions, context_.rope_table);
  attention_ = context_.cache
                   ? b.cached_attention(qkv_, params_.heads, *context_.cache, params_.window)
                   : b.attention(qkv_, params_.heads, context_.documents, context_.longest_document, params_.window);
  r_ = b.linear(attention_, params_.o, Keep::Residual, x);
  n2_ = b.rms_norm(r_, params_.mlp_norm);
  gated_ = b.linear_swiglu(n2_, params_.gate_up);
  return b.linear(gated_.h, params_.down, Keep::Input, r_);
}

void DenseBlock::backward(Builder& b, Value dy, bool wanted) {
  const Value dgate_up = b.linear_swiglu_backward(dy, params_.down, gated_);
  b.weight_gradients(dy, gated_.h, params_.down);
  const Value dn2 = b.linear_backward(dgate_up, params_.gate_up);
  b.rms_norm_backward(dn2, r_, params_.mlp_norm.gain, n2_, dy, params_.gate_up);
  b.weight_gradients(dgate_up, n2_, params_.gate_up);
  const Value dattention = b.linear_backward(dy, params_.o);
  b.weight_gradients(dy, attention_, params_.o);
  const Value dqkv = b.attention_backward(dattention, qkv_, attention_, params_.heads, context_.documents,
                                          context_.longest_document, params_.window);
  b.rope_backward(dqkv, params_.heads, context_.positions, context_.rope_table);
  if (wanted) {
    const Value dn1 = b.linear_backward(dqkv, params_.qkv);
    b.rms_norm_backward(dn1, x_, params_.attention_norm.gain, n1_, dy, params_.qkv);
  }
  b.weight_gradients(dqkv, n1_, params_.qkv);
}

}  // namespace snug
