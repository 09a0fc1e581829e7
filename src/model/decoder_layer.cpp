#include "model/decoder_layer.h"

#include <cmath>
#include <tuple>

namespace snug {
namespace {

// Returns x plus what the branch's last linear makes of `inner`, as a value of class `sum`. What is still to be normed
// is of class `branch`.
Value add_branch(Builder& b, const LayerSpec& spec, Value inner, const Linear& last, const Norm& norm,
                 ActivationClass branch, ActivationClass sum, Value x) {
  check(norm.gain == kNoParam || spec.residual_multiplier == 1, "a branch that is normed has a factor, {}",
        spec.residual_multiplier);
  if (norm.gain != kNoParam) return b.rms_norm(b.linear(inner, last, branch), norm, sum, x);
  if (spec.residual_multiplier == 1) return b.linear(inner, last, sum, x);
  return b.scaled_sum(b.linear(inner, last, ActivationClass::AlwaysRecompute), spec.residual_multiplier, x, sum);
}

}  // namespace

Value decoder_layer(Builder& b, const LayerSpec& spec, const LayerParams& params, const LayerContext& context,
                    Value x) {
  const HeadShape& heads = spec.heads;
  const Value qkv = b.linear(b.rms_norm(x, params.attention_norm), params.qkv, ActivationClass::Attention);
  const int64_t queries = heads.query_columns(), keys = heads.key_columns();
  View q{qkv, 0, queries}, k{qkv, queries, queries + keys};
  const View v{qkv, queries + keys, queries + 2 * keys};
  if (params.query_norm.gain != kNoParam) std::tie(q, k) = b.head_norms(q, params.query_norm, k, params.key_norm);
  if (spec.rope)
    b.rope({q.value, q.begin, k.end}, {heads.dim, false, spec.rope_interleaved}, context.positions, context.rope_table);
  const double default_scale = 1 / std::sqrt(static_cast<double>(heads.dim));
  const double scale = spec.attention_scale > 0 ? spec.attention_scale : default_scale;
  const Value attention =
      context.cache ? b.cached_attention(q, k, v, heads, scale, spec.attention_cap, *context.cache, spec.window)
                    : b.attention(q, k, v, heads, scale, spec.attention_cap, context.documents,
                                  context.longest_document, spec.window);
  const Value r = add_branch(b, spec, attention, params.o, params.attention_post_norm, ActivationClass::Attention,
                             ActivationClass::Residual, x);
  const Value up = b.linear(b.rms_norm(r, params.mlp_norm), params.gate_up, ActivationClass::Mlp);
  const Value h = spec.gated ? b.swiglu(up, spec.gate) : b.activate(up, spec.gate);
  return add_branch(b, spec, h, params.down, params.mlp_post_norm, ActivationClass::Mlp, ActivationClass::LayerBoundary,
                    r);
}

}  // namespace snug
