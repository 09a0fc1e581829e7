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

// Returns x, normed where there is a norm.
Value normed(Builder& b, Value x, const Norm& norm) { return norm.gain == kNoParam ? x : b.rms_norm(x, norm); }

// Queries, keys and values of the layer: columns of one value, or of two.
struct Heads {
  View q, k, v;
};

void rotate(Builder& b, const LayerSpec& spec, const LayerContext& context, const Heads& heads) {
  if (!spec.rope) return;
  const auto& [q, k, v] = heads;
  const Rope op{spec.heads.dim, false, spec.rope_interleaved, context.rope_axes};
  if (!context.query_rope_table) return b.rope({q.value, q.begin, k.end}, op, context.positions, context.rope_table);
  b.rope(q, op, context.positions, *context.query_rope_table);
  b.rope(k, op, context.positions, context.rope_table);
}

// Returns queries and keys, normed and rotated, and values of the input of attention.
Heads heads_of(Builder& b, const LayerSpec& spec, const LayerParams& params, const LayerContext& context, Value x) {
  const Value qkv = b.linear(x, params.qkv, ActivationClass::Attention);
  const int64_t queries = spec.heads.query_columns(), keys = spec.heads.key_columns();
  Heads heads{{qkv, 0, queries}, {qkv, queries, queries + keys}, {qkv, queries + keys, queries + 2 * keys}};
  if (spec.rope_before_norms) rotate(b, spec, context, heads);
  if (params.query_norm.gain != kNoParam)
    std::tie(heads.q, heads.k) = b.head_norms(heads.q, params.query_norm, heads.k, params.key_norm);
  if (!spec.rope_before_norms) rotate(b, spec, context, heads);
  return heads;
}

Value projector(Builder& b, const LayerSpec& spec, const LayerParams& params, Value x) {
  const Value joined = b.joined_norm(x, params.mlp_norm, spec.joined_rows);
  const Value inner = b.activate(b.linear(joined, params.gate_up, ActivationClass::Mlp), spec.gate);
  return b.linear(inner, params.down, ActivationClass::LayerBoundary);
}

Value placed_keys(Builder& b, const LayerSpec& spec, const LayerParams& params, const LayerContext& context, Value x) {
  if (params.query_places == kNoParam) return b.with_sines(x, context.positions, context.rope_table);
  const ResizeRows resize{.from = side_of_square(spec.queries), .to = context.image_side};
  return b.with_repeated(x, b.resized_rows(params.query_places, resize));
}

// A resampler: what keys are made of has the sines of its row and column in it, or what the queries' places are there;
// what values are made of has not.
Value resampler(Builder& b, const LayerSpec& spec, const LayerParams& params, const LayerContext& context, Value x) {
  if (context.class_rows > 0) x = b.without_first_rows(x, context.class_rows);
  const Value rows = b.linear(normed(b, x, params.attention_norm), params.gate_up, ActivationClass::Mlp);
  const Value input = b.rms_norm(rows, params.key_norm);
  const Value placed = placed_keys(b, spec, params, context, input);
  const Value k = b.linear(placed, params.k, ActivationClass::Attention),
              v = b.linear(input, params.v, ActivationClass::Attention);
  Value query = b.rms_norm(b.parameter(params.query), params.query_norm);
  if (params.query_places != kNoParam) query = b.with_repeated(query, b.parameter(params.query_places));
  const Value q = b.repeated_rows(b.linear(query, params.q, ActivationClass::Attention), *context.queries);
  const int64_t columns = spec.heads.query_columns();
  const Value attention = b.attention({q, 0, columns}, {k, 0, columns}, {v, 0, columns},
                                      {.shape = spec.heads,
                                       .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(spec.heads.dim))),
                                       .longest = context.longest_document,
                                       .bidirectional = true,
                                       .cross = true,
                                       .documents = Documents::Images},
                                      *context.image_rows, context.documents);
  const Value result = b.linear(attention, params.o, ActivationClass::Attention);
  return b.linear(b.rms_norm(result, params.attention_post_norm), params.down, ActivationClass::LayerBoundary);
}

}  // namespace

Value decoder_layer(Builder& b, const LayerSpec& spec, const LayerParams& params, const LayerContext& context,
                    Value x) {
  if (spec.joined_rows > 0) return projector(b, spec, params, x);
  if (spec.queries > 0) return resampler(b, spec, params, context, x);
  const Value input = normed(b, x, params.attention_norm);
  const auto [q, k, v] = heads_of(b, spec, params, context, input);
  const HeadShape& heads = spec.heads;
  const double default_scale = 1 / std::sqrt(static_cast<double>(heads.dim));
  const double scale = spec.attention_scale > 0 ? spec.attention_scale : default_scale;
  const Value attention =
      context.cache ? b.cached_attention(q, k, v, heads, scale, spec.attention_cap, *context.cache, spec.window)
                    : b.attention(q, k, v,
                                  {.shape = heads,
                                   .scale = static_cast<float>(scale),
                                   .longest = context.longest_document,
                                   .window = spec.window,
                                   .cap = static_cast<float>(spec.attention_cap),
                                   .bidirectional = spec.documents != Documents::Tokens,
                                   .documents = spec.documents},
                                  context.documents);
  const Value r = add_branch(b, spec, attention, params.o, params.attention_post_norm, ActivationClass::Attention,
                             ActivationClass::Residual, x);
  const Value up =
      b.linear(spec.parallel ? input : normed(b, r, params.mlp_norm), params.gate_up, ActivationClass::Mlp);
  const Value h = spec.gated ? b.swiglu(up, spec.gate) : b.activate(up, spec.gate);
  return add_branch(b, spec, h, params.down, params.mlp_post_norm, ActivationClass::Mlp, ActivationClass::LayerBoundary,
                    r);
}

}  // namespace snug
