// Model families: each turns a configuration into what the model is. A family is one file, families/NAME.cpp, which
// says all there is about it and defines `Family snug::families::NAME()`. The build lists these files (CMakeLists.txt),
// so that a family is added by adding its file.
#pragma once

#include <string>
#include <vector>

#include "format/hf_config.h"
#include "model/spec.h"

namespace snug {

struct Family {
  HfFamily config;  // its names and defaults in config.json
  // Returns what the model is. `config` holds the shared keys; `json` is the whole file, for the family's own keys.
  ModelSpec (*spec)(const HfConfig& config, const JsonObject& json);
};

// Returns every family, in the order of their files' names.
std::vector<Family> all_families();

// ---- What families are made of ----

// Returns a model whose layers are all Llama's, under the names that Llama's files have, without biases or windows.
ModelSpec llama_decoder(const HfConfig& config);

// Puts biases on q, k, v and o where `attention_bias` is true, and on gate, up and down where `mlp_bias` is.
void add_biases(ModelSpec& model, const JsonObject& json);

// Makes all of the model's norms' gains 1 + the weight, its gates GELU's and the embedding's factor sqrt(hidden): what
// all of Gemma has.
void become_gemma(ModelSpec& model);

// Gives each layer Gemma 2's and 3's norms before and after attention and the MLP.
void add_post_norms(ModelSpec& model);

// Returns what sliding_window says: 4,096 tokens where the key is absent, 0, no window, where it is null.
int64_t window_of(const JsonObject& json);

// Gives layers the window of Qwen2 and its kin, where use_sliding_window is true: layer_types names the layers that
// have it, or those from max_window_layers on have it.
void add_chosen_windows(ModelSpec& model, const JsonObject& json);

// Returns for each layer whether `layer_types` gives it a sliding window; the key must be there.
std::vector<bool> sliding_layers(const JsonObject& json, size_t layers);

}  // namespace snug
