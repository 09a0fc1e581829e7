#include "model/decoder_layer.h"

#include <cmath>
#include <tuple>

namespace snug {
namespace {

// Returns x plus what the branch's last linear makes of `inner`, as a value of this class.
Value add_branch(Builder& b, Value inner, const Linear& last, const LayerSpec& spec, ActivationClass kind, Value x) {
  if (spec.branch_factor == 1) return b.linear(inner, last, kind, x);
  const Value branch = b.linear(inner, last, ActivationClass::AlwaysRecompute);
  return b.scaled_sum(branch, spec.branch_factor, x, kind);
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
  if (spec.rope) b.rope({q.value, q.begin, k.end}, heads.dim, context.positions, context.rope_table);
  const double usual = 1 / std::sqrt(static_cast<double>(heads.dim));
  const double scale = spec.attention_scale > 0 ? spec.attention_scale : usual;
  const Value attention =
      context.cache ? b.cached_attention(q, k, v, heads, scale, *context.cache, spec.window)
                    : b.attention(q, k, v, heads, scale, context.documents, context.longest_document, spec.window);
  const Value r = add_branch(b, attention, params.o, spec, ActivationClass::Residual, x);
  const Value gate_up = b.linear(b.rms_norm(r, params.mlp_norm), params.gate_up, ActivationClass::Mlp);
  return add_branch(b, b.swiglu(gate_up), params.down, spec, ActivationClass::LayerInput, r);
}

}  // namespace snug
