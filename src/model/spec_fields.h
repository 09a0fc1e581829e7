// Visits the fields of a model (base/fields.h) that decide results.
#pragma once

#include "base/fields.h"
#include "model/spec.h"

namespace snug {

template <RecordOf<NormSpec> R, class Visit>
void visit_fields(R& norm, Visit&& visit) {
  auto& [weight, epsilon, plus_one, kind, bias] = norm;
  visit("weight", weight);
  visit("epsilon", epsilon);
  visit("plus_one", plus_one);
  visit("kind", kind);
  visit("bias", bias);
}

template <RecordOf<LinearPart> R, class Visit>
void visit_fields(R& part, Visit&& visit) {
  auto& [module, rows, stored_in, tensors] = part;
  visit("module", module);
  visit("rows", rows);
  if (!stored_in.empty()) visit("stored_in", stored_in);
  if (!tensors.empty()) visit("tensors", tensors);
}

template <RecordOf<LinearSpec> R, class Visit>
void visit_fields(R& linear, Visit&& visit) {
  auto& [parts, in, bias, transposed, biases] = linear;
  visit("parts", parts);
  visit("in", in);
  visit("bias", bias);
  visit("transposed", transposed);
  visit("biases", biases);
}

template <RecordOf<HeadShape> R, class Visit>
void visit_fields(R& shape, Visit&& visit) {
  auto& [heads, kv_heads, dim] = shape;
  visit("heads", heads);
  visit("kv_heads", kv_heads);
  visit("dim", dim);
}

template <RecordOf<RopeParameters> R, class Visit>
void visit_fields(R& rope, Visit&& visit) {
  auto& [theta, type, factor, low_freq_factor, high_freq_factor, original_max_position, beta_fast, beta_slow, truncate,
         attention_factor, short_factor, long_factor, dim, query_growth] = rope;
  visit("theta", theta);
  visit("type", type);
  visit("factor", factor);
  visit("low_freq_factor", low_freq_factor);
  visit("high_freq_factor", high_freq_factor);
  visit("original_max_position", original_max_position);
  visit("beta_fast", beta_fast);
  visit("beta_slow", beta_slow);
  visit("truncate", truncate);
  visit("attention_factor", attention_factor);
  visit("short_factor", short_factor);
  visit("long_factor", long_factor);
  visit("dim", dim);
  visit("query_growth", query_growth);
}

template <RecordOf<LayerSpec> R, class Visit>
void visit_fields(R& layer, Visit&& visit) {
  auto& [attention_norm, mlp_norm, heads, window, rope, rope_interleaved, qkv, o, gate_up, down, query_norm, key_norm,
         attention_scale, attention_cap, residual_multiplier, attention_post_norm, mlp_post_norm, gate, local_rope,
         gated, joint_head_norms, own_head_gains, rope_before_norms, parallel, documents, joined_rows, queries, query,
         query_places] = layer;
  visit("attention_norm", attention_norm);
  visit("mlp_norm", mlp_norm);
  visit("heads", heads);
  visit("sliding_window", window);
  visit("rope", rope);
  visit("rope_interleaved", rope_interleaved);
  visit("qkv", qkv);
  visit("o", o);
  visit("gate_up", gate_up);
  visit("down", down);
  visit("query_norm", query_norm);
  visit("key_norm", key_norm);
  visit("attention_scale", attention_scale);
  visit("attention_cap", attention_cap);
  visit("branch_factor", residual_multiplier);
  visit("attention_post_norm", attention_post_norm);
  visit("mlp_post_norm", mlp_post_norm);
  visit("gate", gate);
  visit("local_rope", local_rope);
  visit("gated", gated);
  visit("joint_head_norms", joint_head_norms);
  visit("own_head_gains", own_head_gains);
  visit("rope_before_norms", rope_before_norms);
  visit("parallel", parallel);
  visit("documents", documents);
  visit("joined_rows", joined_rows);
  visit("queries", queries);
  visit("query", query);
  visit("query_places", query_places);
}

template <RecordOf<RopeAxes> R, class Visit>
void visit_fields(R& axes, Visit&& visit) {
  auto& [pairs] = axes;
  const char* const kNames[] = {"first", "second", "third"};
  for (size_t i = 0; i < pairs.size(); i++) visit(kNames[i], pairs[i]);
}

template <RecordOf<TowerSpec> R, class Visit>
void visit_fields(R& tower, Visit&& visit) {
  auto& [layers, width, patches, patch_bias, patch_shape, prefix, layer_prefix, projector_prefix, rope, rope_axes,
         merge, window, position_rows, position_count, position_side, image_side, class_row, final_norm, least_patches,
         square_patches, longest_side] = tower;
  visit("layers", layers);
  visit("width", width);
  visit("patches", patches);
  visit("patch_bias", patch_bias);
  visit("patch_shape", patch_shape);
  visit("prefix", prefix);
  visit("layer_prefix", layer_prefix);
  visit("projector_prefix", projector_prefix);
  visit("rope", rope);
  visit("rope_axes", rope_axes);
  visit("merge", merge);
  visit("window", window);
  visit("position_rows", position_rows);
  visit("position_count", position_count);
  visit("position_side", position_side);
  visit("image_side", image_side);
  visit("class_row", class_row);
  visit("final_norm", final_norm);
  visit("least_patches", least_patches);
  visit("square_patches", square_patches);
  visit("longest_side", longest_side);
}

// Leaves out the layers, whose fields add_fields() adds one by one, and how long the model's documents were.
template <RecordOf<ModelSpec> R, class Visit>
void visit_fields(R& model, Visit&& visit) {
  auto& [architecture, hidden, vocabulary, embedding, head, tied, layer_prefix, layers, final_norm, rope, local_rope,
         embedding_factor, logits_cap, logits_factor, scores, rope_axes, tower, positions] = model;
  visit("architecture", architecture);
  visit("hidden_size", hidden);
  visit("vocab_size", vocabulary);
  visit("embedding", embedding);
  visit("head", head);
  visit("tie_word_embeddings", tied);
  visit("layer_prefix", layer_prefix);
  visit("final_norm", final_norm);
  visit("rope", rope);
  visit("local_rope", local_rope);
  visit("embedding_factor", embedding_factor);
  visit("logits_cap", logits_cap);
  visit("logits_factor", logits_factor);
  visit("scores", scores);
  visit("rope_axes", rope_axes);
  visit("tower", tower);
}

// Adds a model's fields: the number of layers, and each field of these once; where layers differ in it, runs of equal
// values are counted ("4096 x21, 0 x7").
void add_fields(Fields& fields, std::string_view group, const ModelSpec& model);

}  // namespace snug
