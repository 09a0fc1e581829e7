// Lists the architectures of GGUF files, and how their tensors are named and laid out compared with Hugging Face's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "format/rope.h"
#include "tensor/view.h"

namespace snug {

// Names the modules of a layer's norms in Hugging Face's files; one without a name is not there.
struct GgufNorms {
  std::string_view attention = "input_layernorm", attention_post = "", mlp = "post_attention_layernorm", mlp_post = "";
  std::string_view query = "", key = "";
};

struct GgufArchitecture {
  std::string_view name;        // general.architecture
  std::string_view model_type;  // of config.json
  std::string_view class_name;  // of config.json, in `architectures`
  // Of config.json, too: the value of hidden_act, and the key of norms' epsilon.
  std::string_view activation = "silu", epsilon_key = "rms_norm_eps";
  // Modules of Hugging Face's files.
  std::string_view up = "mlp.up_proj", down = "mlp.down_proj";
  // Files hold rotary pairs (i, i + head_dim / 2) of q and k as neighbours (2 i, 2 i + 1).
  bool interleaves_heads = false;
  bool qkv_bias = false;          // always has biases on q, k and v
  bool has_biases = false;        // always has biases on all linears
  bool may_have_biases = false;   // may have them
  bool has_rope_factors = false;  // may have a tensor of what each rotary frequency is divided by
  bool has_long_rope = false;     // may have two such tensors, one for texts beyond the original length
  bool gemma = false;             // files hold gains, the model what they are more than 1
  GgufNorms norms = {};
  bool joint_head_norms = false;  // norms of q and k take all heads as one row
  bool layer_norm = false;        // norms are LayerNorms
  bool neighbours = false;        // models turn rotary pairs of neighbours, so that files hold q and k as they are
  bool fused_gate_up = false;     // gate and up are one linear in both formats
  bool fused_qkv = false;         // q, k and v are one in both formats
  bool gated = true;              // the MLP has a gate
  bool norm_bias = false;         // LayerNorms have biases
  bool plus_one = false;          // files hold gains, the model what they are more than 1
  bool needs_own_head = false;    // llama.cpp takes no embedding for the output's matrix
  bool whole_heads = false;       // llama.cpp takes the heads' rows for as many as the hidden size
  bool partial_rope = false;      // a part of each head may turn
  bool may_have_qkv_biases = false;
  int64_t full_interval = 0;         // of layers with a window every so many-th sees all; 0: none has one
  bool passes_over_windows = false;  // all layers may have a window, which llama.cpp does not apply
  bool may_lack_windows = false;     // none of a file's layers may have one
  bool rope_in_windows = false;      // layers that see all have no rotary embedding where others have a window
  bool may_have_head_gains = false;  // heads of q and k may be normed, each with a gain of its own
  bool may_be_parallel = false;      // the MLP may read what attention reads, and have no norm
};

// Returns the architecture of a name; null for other names.
const GgufArchitecture* find_gguf_architecture(std::string_view name);
// Returns the architecture of a class in config.json's `architectures`; Mistral's is written as llama, OLMo 3's as
// olmo2, Granite 4's without Mamba layers as granite, the text models of Gemma 3's and Mistral 3's as gemma3 and
// mistral3. Null for others.
const GgufArchitecture* gguf_architecture_of(std::string_view class_name);
// Returns all names, for messages.
std::string gguf_architecture_names();

// Returns whether a layer sees a window, in a model of which some do: llama.cpp knows which, whatever the file says.
inline bool gguf_layer_has_window(const GgufArchitecture& kind, int64_t layer) {
  return kind.full_interval > 0 && (layer + 1) % kind.full_interval != 0;
}

// Returns whether a layer has rotary embedding, in a model of which some layers have a window or not: every fourth of
// SmolLM3's has none in llama.cpp, which no key says.
inline constexpr int64_t kGgufNoRopeInterval = 4;
inline bool gguf_layer_has_rope(const GgufArchitecture& kind, int64_t layer, bool windows) {
  if (kind.rope_in_windows && windows) return gguf_layer_has_window(kind, layer);
  return kind.name != "smollm3" || (layer + 1) % kGgufNoRopeInterval != 0;
}
// llama.cpp has windows in EXAONE 4 of so many layers alone.
inline constexpr int64_t kGgufExaoneLayersWithWindows = 64;
// llama.cpp takes heads of Command R for normed from so many layers on, and below for not.
inline constexpr int64_t kGgufCommandRLayersWithNorms = 64;

// The base of the rotary embedding of Gemma 3's layers with a window.
inline constexpr double kGgufLocalTheta = 10000;

// Returns what Gemma 2's and 3's scores are divided by the root of: the size of a head, but in the 27Bs, which
// llama.cpp tells by their number of layers.
inline int64_t gguf_score_divisor(const GgufArchitecture& kind, int64_t layers, int64_t hidden, int64_t heads,
                                  int64_t head_dim) {
  return layers == (kind.name == "gemma2" ? 46 : 62) ? hidden / heads : head_dim;
}

// What decides the tensors of a model.
struct GgufSizes {
  const GgufArchitecture* architecture = nullptr;
  int64_t hidden = 0, inner = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, vocabulary = 0;
  bool own_head = false;  // the output's matrix is not the embedding's
  bool qkv_biases = false, o_bias = false, mlp_biases = false;
  bool head_gains = false;  // heads of q and k are normed, each with a gain of its own
  bool parallel = false;    // the MLP has no norm
  bool shared_mlp = false;  // Hugging Face's files have the MLP under Granite 4's names, gate and up in one tensor
  std::string prefix = "model.", head = "lm_head.weight";  // of names in Hugging Face's files, and that of the head
};

// Names a tensor in both formats.
struct GgufTensorName {
  std::string gguf, hugging_face;     // {} in the latter stands for a row's number: each row is a tensor, a vector
  Shape shape;                        // in the file
  int64_t interleaved_head_rows = 0;  // rows of a head where its rows are interleaved; 0: rows keep their order
  float more = 0;                     // than the model's the file's values are
  // Hugging Face's tensor has so many rows, of which the file's are those from `first_row` on; 0: as many.
  int64_t stored_rows = 0, first_row = 0;

  bool in_vectors() const { return hugging_face.find("{}") != std::string::npos; }
  std::string vector_name(int64_t row) const { return fmt::format(fmt::runtime(hugging_face), row); }
  // Returns the shape of Hugging Face's tensor.
  Shape stored_shape() const { return stored_rows > 0 ? Shape{stored_rows, shape.cols()} : shape; }
};

inline constexpr std::string_view kGgufRopeFactors = "rope_freqs.weight",
                                  kGgufLongRopeFactors = "rope_factors_long.weight",
                                  kGgufShortRopeFactors = "rope_factors_short.weight";

// Returns tensors in the order in which llama.cpp's converter walks a model: embedding, layers, final norm, head.
std::vector<GgufTensorName> gguf_tensor_names(const GgufSizes& sizes);

// Returns the divisor of each rotary frequency of a head by Llama 3.1's scaling.
std::vector<double> llama3_rope_factors(const RopeParameters& scaling, int64_t head_dim);
// Returns a scaling with these divisors. Other constants may give the same divisors: it is Llama 3.1's if they do, else
// with a low_freq_factor of 1 if some do. Nothing if none has them.
std::optional<RopeParameters> llama3_scaling_of(std::span<const float> factors, double theta);

// Returns where row `row` of Hugging Face's tensor lies in the file.
int64_t gguf_row(const GgufTensorName& tensor, int64_t row);

}  // namespace snug
