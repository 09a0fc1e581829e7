// What a model is, as data: all that planning and running know of it. A family makes it from a configuration
// (model/families.h); the parameters are made from it (model/params.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/rope.h"
#include "program/ops.h"

namespace snug {

// Names of tensors are those of the model's files; within a layer they follow the layer's prefix.
enum class NormKind : uint8_t { Rms, Layer };  // the ops RmsNorm and LayerNorm
inline std::string_view name(NormKind kind) { return kind == NormKind::Rms ? "rms_norm" : "layer_norm"; }

struct NormSpec {
  std::string weight;  // "input_layernorm.weight"
  double epsilon = 0;
  bool plus_one = false;  // the gain is 1 + the weight
  NormKind kind = NormKind::Rms;
  std::string bias{};  // of LayerNorm: "input_layernorm.bias"; empty: none
};

// One linear of the model.
struct LinearPart {
  std::string module;  // "self_attn.q_proj", whose tensors are ".weight" [rows, in] and perhaps ".bias" [rows]
  int64_t rows = 0;
  // The module whose tensors hold these rows in the files, after those of the parts before this one that name the same;
  // empty: the part's own.
  std::string stored_in{};
  bool operator==(const LinearPart&) const = default;
};

// Linears of one input that are one product: y = x W^T (+ bias), their rows one after the other.
struct LinearSpec {
  std::vector<LinearPart> parts;
  int64_t in = 0;
  bool bias = false;
};

// A decoder layer: normed attention, then a normed MLP, each added to the residual stream.
struct LayerSpec {
  NormSpec attention_norm, mlp_norm;
  HeadShape heads;     // kv_heads divides heads; heads * dim need not be the model's width
  int64_t window = 0;  // tokens that one sees, itself the last; 0: all before it
  bool rope = true;    // whether queries and keys are rotated by their positions
  bool rope_interleaved =
      false;  // whether neighbours are what turns together, not an element and one of the other half
  LinearSpec qkv, o, gate_up, down;
  NormSpec query_norm{}, key_norm{};                // of each head by itself, before rope; without a weight: none
  double attention_scale = 0;                       // of scores; 0: 1 / sqrt(heads.dim)
  double attention_cap = 0;                         // scores s become cap tanh(s / cap); 0: they stay
  double branch_factor = 1;                         // of what attention and the MLP add to the residual stream
  NormSpec attention_post_norm{}, mlp_post_norm{};  // of what they add; without a weight: none
  Activation gate = Activation::Silu;               // of the MLP: of its gate or, where it has none, of all of it
  bool local_rope = false;                          // whether the rotary embedding is the model's local one
  bool gated = true;                                // whether the MLP has a gate: gate_up is gate and up, else up alone
};

struct ModelSpec {
  std::string architecture;     // as config.json spells it: "LlamaForCausalLM"
  int64_t hidden = 0;           // width of the residual stream
  int64_t vocabulary = 0;       // rows of embedding and head
  std::string embedding, head;  // tensors
  bool tied = false;            // the head is the embedding
  std::string layer_prefix;     // "model.layers.", which a layer's number and a dot follow
  std::vector<LayerSpec> layers;
  NormSpec final_norm;
  RopeParameters rope, local_rope{};  // of layers that have one; heads have one dim
  double embedding_factor = 1;        // of the embedding's rows, rounded to the products' dtype
  double logits_cap = 0;              // they, times the factor, become cap tanh(x / cap); 0: they stay
  double logits_factor = 1;           // of the logits

  int64_t positions = 0;  // of the longest document that the model was made for: decides nothing

  std::string prefix_of(size_t layer) const { return layer_prefix + std::to_string(layer) + "."; }
};

}  // namespace snug
