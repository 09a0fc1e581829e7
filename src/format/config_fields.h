// The fields of model and adapter configurations (base/fields.h), as far as they decide results.
#pragma once

#include "base/fields.h"
#include "format/hf_config.h"
#include "format/peft.h"

namespace snug {

template <RecordOf<Llama3RopeScaling> R, class Visit>
void visit_fields(R& scaling, Visit&& visit) {
  auto& [factor, low_freq_factor, high_freq_factor, original_max_position] = scaling;
  visit("factor", factor);
  visit("low_freq_factor", low_freq_factor);
  visit("high_freq_factor", high_freq_factor);
  visit("original_max_position", original_max_position);
}

// Not visited: how long the model's documents were, which tokens begin and end them (they are in the data), how the
// files hold the weights (that is in Numerics, and in the files' hash), and what takes no part in a run.
template <RecordOf<HfConfig> R, class Visit>
void visit_fields(R& config, Visit&& visit) {
  auto& [architecture, hidden_size, intermediate_size, layers, heads, kv_heads, head_dim, vocabulary, max_position,
         rms_norm_eps, rope_theta, rope_scaling, tie_word_embeddings, qkv_bias, windows, bos, eos, dtype, quantization,
         prediction_layers, dropout, notes] = config;
  visit("architecture", architecture);
  visit("hidden_size", hidden_size);
  visit("intermediate_size", intermediate_size);
  visit("num_hidden_layers", layers);
  visit("num_attention_heads", heads);
  visit("num_key_value_heads", kv_heads);
  visit("head_dim", head_dim);
  visit("vocab_size", vocabulary);
  visit("rms_norm_eps", rms_norm_eps);
  visit("rope_theta", rope_theta);
  visit("rope_scaling", rope_scaling);
  visit("tie_word_embeddings", tie_word_embeddings);
  visit("qkv_bias", qkv_bias);
  visit("sliding_window", windows);
}

// Not visited: the name of the base, and what adapters that are trained have none of.
template <RecordOf<PeftConfig> R, class Visit>
void visit_fields(R& adapter, Visit&& visit) {
  auto& [base_model, rank, alpha, dropout, rslora, target_modules, target_expression, exclude_modules,
         layers_to_transform, layers_pattern, rank_pattern, alpha_pattern, bias, modules_to_save,
         trainable_token_indices, ensure_weight_tying] = adapter;
  visit("lora_rank", rank);
  visit("lora_alpha", alpha);
  visit("lora_dropout", dropout);
  visit("lora_rslora", rslora);
  visit("lora_targets", target_modules);
}

}  // namespace snug
