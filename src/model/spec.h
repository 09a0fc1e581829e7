// A ModelSpec says what a model is, as data; planning and running know nothing else of it. A family makes it from a
// configuration (model/families.h), and the parameters follow from it (model/params.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "format/rope.h"
#include "program/ops.h"

namespace snug {

enum class NormKind : uint8_t { Rms, Layer };  // the ops RmsNorm and LayerNorm
inline std::string_view name(NormKind kind) { return kind == NormKind::Rms ? "rms_norm" : "layer_norm"; }

// Describes a norm. Names of tensors are those of the model's files; within a layer they follow the layer's prefix.
struct NormSpec {
  // "input_layernorm.weight"; where heads have gains of their own, {} may stand for the number of a head, each of which
  // then has a tensor: "self_attn.q_layernorm.norms.{}.weight".
  std::string weight;
  double epsilon = 0;
  bool plus_one = false;  // the gain is 1 + the weight
  NormKind kind = NormKind::Rms;
  std::string bias{};  // of LayerNorm: "input_layernorm.bias"; empty: none
};

// Describes one linear of the model.
struct LinearPart {
  std::string module;  // "self_attn.q_proj", whose tensors are ".weight" [rows, in] and perhaps ".bias" [rows]
  int64_t rows = 0;
  // The module whose tensors hold these rows in the files, after those of the parts before this one that name the same;
  // empty: the part's own.
  std::string stored_in{};
  // The names of its tensors, {} standing for "weight" or "bias", where they are not the module's with a dot.
  std::string tensors{};
  bool operator==(const LinearPart&) const = default;
};

// Describes linears of one input that are one product y = x W^T (+ bias), their rows one after the other.
struct LinearSpec {
  std::vector<LinearPart> parts;
  int64_t in = 0;
  bool bias = false;
  bool transposed = false;  // y = x W: the weight is [in, rows]; of one part without an adapter
  // Where the biases are no tensors of the parts': those that there are, with the rows that each is for, in order; one
  // without a module stands for rows that have none.
  std::vector<LinearPart> biases{};
};

// Describes a decoder layer: attention, then an MLP, each added to the residual stream.
struct LayerSpec {
  NormSpec attention_norm{}, mlp_norm{};  // norm what the two read; without a weight: none
  HeadShape heads{};                      // kv_heads divides heads; heads * dim need not be the model's width
  int64_t window = 0;                     // how many tokens a token sees, itself the last; 0: all before it
  bool rope = true;                       // whether queries and keys are rotated by their positions
  bool rope_interleaved = false;  // whether rope's pairs are neighbours, not an element and one of the other half
  LinearSpec qkv{}, o{}, gate_up{}, down{};
  NormSpec query_norm{}, key_norm{};                // of queries and of keys; without a weight: none
  double attention_scale = 0;                       // of scores; 0: 1 / sqrt(heads.dim)
  double attention_cap = 0;                         // scores s become cap tanh(s / cap); 0: they stay
  double residual_multiplier = 1;                   // times what attention and the MLP add to the residual stream
  NormSpec attention_post_norm{}, mlp_post_norm{};  // norm what the two add; without a weight: none
  Activation gate = Activation::Silu;               // of the MLP's gate or, where it has none, of all of it
  bool local_rope = false;                          // whether the rotary embedding is the model's local one
  bool gated = true;                                // whether the MLP has a gate: gate_up is gate and up, else up alone
  bool joint_head_norms = false;            // whether query_norm and key_norm take all heads as one row, not each
  bool own_head_gains = false;              //   or each with a gain of its own
  bool rope_before_norms = false;           // whether query_norm and key_norm stand behind the rotary embedding
  bool parallel = false;                    // whether the MLP reads what attention reads; it has no norm of its own
  Documents documents = Documents::Tokens;  // within which attention is; of images it is bidirectional
  // Of a projector: how many rows of its input become one, which the MLP turns into a row of another stream. It has
  // neither attention nor a residual stream. 0: the layer is none.
  int64_t joined_rows = 0;
  // Of a projector that makes as many rows of every image, whatever its patches are (a resampler, as Qwen-VL has one,
  // Bai et al., arXiv:2308.12966): how many queries look at the patches of an image. It norms the tower's rows of which
  // `gate_up` makes what keys (behind key_norm, with sines of row and column added) and values are made of; `qkv` is
  // one part, the rows of queries, keys and values, each of which has an input of its own; `down`, behind
  // attention_post_norm, makes rows of another stream. 0: the layer is none.
  int64_t queries = 0;
  std::string query{};  // their tensor [queries, heads * dim]
  // A tensor like it that is never trained: it is added to the queries, which lie in a square, and as the square of an
  // image's patches to keys, in the place of sines. Empty: there is none.
  std::string query_places{};
};

// Returns the side of a square of so many rows.
inline int64_t side_of_square(int64_t rows) {
  return static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(rows))));
}

// Describes a tower, which makes rows of the residual stream of images' patches. Its layers are the first of
// ModelSpec::layers, over a residual stream of their own with a row a patch; the last is a projector.
struct TowerSpec {
  int64_t layers = 0;                // 0: the model has no tower
  int64_t width = 0;                 // of the tower's residual stream
  std::string patches;               // the module that makes a patch's row of its numbers: "patch_embed.proj"
  bool patch_bias = false;           //   whether it has a bias
  std::vector<int64_t> patch_shape;  //   a patch as files spell its numbers in this module's weight: {3, 2, 14, 14}
  std::string prefix, layer_prefix;  // of tensors: "model.visual.", and "model.visual.blocks." before a number
  std::string projector_prefix;      // "model.visual.merger."
  RopeParameters rope{};             // of a patch's row and column
  RopeAxes rope_axes{};              //   and which pairs turn by which; of a resampler none do, but sines are added
  int64_t merge = 1;                 // patches a side that the projector makes one row of
  int64_t window = 0;                // patches a side of the windows that layers may have
  std::string position_rows{};       // tensor of rows that are added to patches; empty: there are none
  int64_t position_count = 0;        //   how many rows it has
  int64_t position_side = 0;         //   of which an image's patches have the first so many, in order, equally often
  // With all images of one size: patches a side of each. Then `position_rows` are a square, behind a row for the class
  // row if there is one, and are resized to the image's (ResizeRows, with antialiasing). 0: images differ in size.
  int64_t image_side = 0;
  // The tensor of a row that stands before an image's patches in every block, and that the projector does not see;
  // empty: there is none. Images are of one size then.
  std::string class_row{};
  NormSpec final_norm{};       // norms the last block's result, with a name in full; without a weight: none
  int64_t least_patches = 1;   // the fewest that an image has
  int64_t square_patches = 0;  //   and of a square one, where its size does not decide that
  int64_t longest_side = 0;    // the most patches a side that an image has; 0: as many as a pass has

  explicit operator bool() const { return layers > 0; }
  // Return of how many patches a pass has a multiple, and how many an image has where all are of one size.
  int64_t patch_multiple() const { return image_side > 0 ? image_patches() : merge * merge; }
  int64_t image_patches() const { return image_side * image_side; }
  int64_t patch_numbers() const {
    return std::accumulate(patch_shape.begin(), patch_shape.end(), int64_t{1}, std::multiplies<>());
  }
};

struct ModelSpec {
  std::string architecture;     // as config.json spells it: "LlamaForCausalLM"
  int64_t hidden = 0;           // width of the residual stream
  int64_t vocabulary = 0;       // rows of embedding and head
  std::string embedding, head;  // names of their tensors
  bool tied = false;            // the head is the embedding
  std::string layer_prefix;     // "model.layers.", which a layer's number and a dot follow
  std::vector<LayerSpec> layers;
  NormSpec final_norm;
  RopeParameters rope, local_rope{};  // for the layers that have one; all heads have one dim
  double embedding_factor = 1;        // times the embedding's rows, rounded to the products' dtype
  double logits_cap = 0;              // logits times the factor become cap tanh(x / cap); 0: they stay
  double logits_factor = 1;           // times the logits
  bool scores = false;                // the head has one row, and gives a text a score instead of logits
  RopeAxes rope_axes{};               // which pairs turn by which axis of positions, where they have several
  TowerSpec tower{};

  int64_t positions = 0;  // length of the longest document that the model was made for; decides nothing

  size_t tower_layers() const { return static_cast<size_t>(tower.layers); }
  // Returns the projector of a model with a tower.
  const LayerSpec& projector() const { return layers[tower_layers() - 1]; }
  // Return how many images a pass of so many patches may have, and how many rows the projector makes of them.
  int64_t most_images(int64_t patches) const { return patches / tower.least_patches; }
  // Returns how many rows the residual stream of a tower has over so many patches.
  int64_t stream_rows(int64_t patches) const {
    return tower.class_row.empty() ? patches : patches + most_images(patches);
  }
  int64_t tower_rows(int64_t patches) const {
    return projector().queries > 0 ? projector().queries * most_images(patches) : patches / projector().joined_rows;
  }
  // Returns the first layer of the text's.
  const LayerSpec& text_layer() const { return layers.at(tower_layers()); }
  int64_t width_of(size_t layer) const { return layer < tower_layers() ? tower.width : hidden; }
  std::string prefix_of(size_t layer) const {
    if (layer + 1 == tower_layers()) return tower.projector_prefix;
    if (layer < tower_layers()) return fmt::format("{}{}.", tower.layer_prefix, layer);
    return fmt::format("{}{}.", layer_prefix, layer - tower_layers());
  }
  // Makes it a model of one score, as transformers' classes for sequence classification with one label have it.
  void become_scorer() {
    scores = true;
    tied = false;
    head = kScoreHead;
    logits_factor = 1;
    logits_cap = 0;
  }
  static constexpr const char* kScoreHead = "score.weight";
};

// Returns the model without its tower: the text model.
ModelSpec without_tower(ModelSpec model);

}  // namespace snug
