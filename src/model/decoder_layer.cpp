#include "model/decoder_layer.h"

#include <tuple>

namespace snug {

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
  const Value attention = context.cache
                              ? b.cached_attention(q, k, v, heads, *context.cache, spec.window)
                              : b.attention(q, k, v, heads, context.documents, context.longest_document, spec.window);
  const Value r = b.linear(attention, params.o, ActivationClass::Residual, x);
  const Value gate_up = b.linear(b.rms_norm(r, params.mlp_norm), params.gate_up, ActivationClass::Mlp);
  return b.linear(b.swiglu(gate_up), params.down, ActivationClass::LayerInput, r);
}

}  // namespace snug
