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

// Throws UserError unless the heads' rows are as many as the hidden size, for classes whose o_proj is a square.
void require_whole_heads(const HfConfig& config, const JsonObject& json);

// Puts biases on q, k, v and o where `attention_bias` is true, and on gate, up and down where `mlp_bias` is.
void add_biases(ModelSpec& model, const JsonObject& json);

// Norms each head of queries and keys by itself, under the names that most files have.
void add_head_norms(ModelSpec& model, const HfConfig& config);

// Norms each head of queries and keys by a LayerNorm with a gain of its own and without a bias, under these names
// (NormSpec::weight).
void add_own_head_norms(ModelSpec& model, const HfConfig& config, const std::string& query, const std::string& key);

// Takes the gate from every layer's MLP: down(activation(up(x))).
void leave_out_gates(ModelSpec& model);

// Makes LayerNorms of the norms before attention, before the MLP and of the end; with `plus_one` their gains are 1 +
// the weight.
void become_layer_normed(ModelSpec& model, bool plus_one, bool bias = true);

// Takes the norms before attention and the MLP away, and norms what the two add instead.
void move_norms_behind(ModelSpec& model);

// Makes an OLMo 2 of the model: norms stand behind attention and the MLP, all queries are normed as one row and all
// keys as another, and `attention_bias` puts biases on q, k, v and o.
void become_olmo2(ModelSpec& model, const HfConfig& config, const JsonObject& json);

// Makes a GLM-4 of the model: gate and up are one linear in the files, neighbours turn, and q, k and v have biases
// unless `attention_bias` is false.
void become_glm(ModelSpec& model, const JsonObject& json);

// Has the MLP read what attention reads, instead of a norm of its own of what attention has added to.
void become_parallel(ModelSpec& model);

// Makes a Cohere of the model: attention and the MLP read one LayerNorm without a bias, neighbours turn, `logit_scale`
// is times the logits, and `attention_bias` puts biases on q, k, v and o.
void become_cohere(ModelSpec& model, const JsonObject& json);

// Reads Granite's factors of embeddings, scores, branches and logits; an absent one is 1.
void add_granite_factors(ModelSpec& model, const JsonObject& json);

// Returns the names and defaults of Gemma and its successors, which read `own_keys` besides attention_bias.
HfFamily gemma_names(std::string_view model_type, std::string_view architecture, int64_t kv_heads,
                     std::vector<std::string_view> own_keys = {});

// Makes a Gemma of the model: gains of all norms are 1 + the weight, the embedding's factor is sqrt(hidden), and
// `attention_bias` puts biases on q, k, v and o.
void become_gemma(ModelSpec& model, const JsonObject& json);

// Makes a Gemma 2 of the model: norms stand before and after attention and the MLP, `query_pre_attn_scalar` says the
// scale of scores, and all else is as become_gemma() has it.
void become_gemma2(ModelSpec& model, const JsonObject& json);

// Returns what sliding_window says: `fallback` tokens where the key is absent, 0, no window, where it is null.
int64_t window_of(const JsonObject& json, int64_t fallback = 4096);

// Gives every layer the window; 0: none. Classes that have it so pass over `layer_types`; a file in which these differ
// is of another family, and refused.
void add_window_everywhere(ModelSpec& model, const JsonObject& json, int64_t window);

// Gives layers the window of Qwen2 and its kin, where use_sliding_window is true: layer_types names the layers that
// have it, or those from max_window_layers on have it.
void add_chosen_windows(ModelSpec& model, const JsonObject& json);

// Returns for each layer whether `layer_types` gives it a sliding window; the key must be there.
std::vector<bool> sliding_layers(const JsonObject& json, size_t layers);

// Returns for each layer whether it has a window: as `layer_types` says or, without it, all but each `every`-th, a
// number that `key` may change.
std::vector<bool> windows_but_every(const JsonObject& json, size_t layers, int64_t every,
                                    std::string_view key = "sliding_window_pattern");

// Returns the rotary embedding of layers with a window: that of `rope_parameters` where it has one for each type of
// layer, else the plain one.
RopeParameters rope_of_windows(const HfConfig& config, const JsonObject& json, double theta);

}  // namespace snug
