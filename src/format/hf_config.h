// Reads a model's config.json in Hugging Face's layout: the keys that all dense decoders share. A family's own keys are
// read by its family (model/families/). Both spellings are read, that of transformers 4 and that of 5. Whatever snug
// does not compute is refused by name, never passed over.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/bnb.h"
#include "format/json.h"
#include "format/rope.h"
#include "tensor/dtype.h"

namespace snug {

inline constexpr int64_t kMaxPosition = int64_t{1} << 32;  // Larger lengths are nonsense in a config.
inline constexpr int64_t kMaxLayers = 1 << 12;
inline constexpr int64_t kMaxWidth = 1 << 20;

// Describes a family of models as config.json knows it: its names, and the defaults that its configuration class in
// transformers has for absent keys.
struct HfFamily {
  std::string_view model_type;        // "llama"
  std::string_view architecture;      // "LlamaForCausalLM", as `architectures` spells it
  std::optional<int64_t> kv_heads{};  // nothing: as many as heads
  std::optional<int64_t> head_dim{};  // nothing: hidden_size / heads
  int64_t max_position = 2048;
  double rms_norm_eps = 1e-6, rope_theta = 10000;
  double partial_rotary_factor = 1, original_max_position = 0;  // RopeDefaults
  bool rope_alpha = false;                                      // RopeDefaults::alpha
  bool tie_word_embeddings = false;
  double dropout = 0;  // attention_dropout and residual_dropout
  std::optional<int64_t> bos{};
  std::vector<int64_t> eos{};
  // What the MLP or its gate goes through, as `hidden_act` spells it: or "gelu_pytorch_tanh", or "relu2".
  std::string_view activation = "silu";
  bool gelu_is_by_tanh = false;  // where `hidden_act` says "gelu"; `hidden_activation`, if it is there, says it instead
  std::string_view epsilon_key = "rms_norm_eps";  // of all norms
  // Keys that every other family refuses where they ask for another layer or another sum: this one reads them itself,
  // or passes over them as its class does.
  std::vector<std::string_view> own_keys{};
  std::string_view rope = {};  // JSON of rope_parameters where a file has neither these nor rope_scaling
};

struct HfConfig {
  size_t family = 0;         // index of the family, of those that were passed
  std::string architecture;  // the family's
  int64_t hidden_size = 0, intermediate_size = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0;  // kv_heads divides heads
  int64_t head_dim = 0;             // even; heads * head_dim need not be hidden_size
  int64_t vocabulary = 0;           // rows of the embedding
  int64_t max_position = 0;
  double rms_norm_eps = 0;
  RopeParameters rope;
  bool tie_word_embeddings = false;
  std::string_view activation;  // the family's
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;    // any of them ends a reply; may be empty
  std::optional<DType> dtype;  // of the weights when they were saved, if it says so
  std::optional<BnbQuantization> quantization;
  int64_t prediction_layers = 0;     // layers behind the last one, for tokens further ahead; not part of the model
  std::vector<std::string> dropout;  // keys and shares ("attention_dropout 0.1") that act only in training
  bool scores = false;               // the head gives one score, as classes for sequence classification have it
  std::vector<std::string> notes;    // a line for each thing that the files say and that is not used
};

// Reads the shared keys of config.json. As in transformers `model_type` decides which of `families` it is;
// `architectures` does only if there is no model_type, or if it names another head than the language model's. Ids
// beyond the vocabulary are left out with a note. Throws UserError naming file, key, found and expected for anything
// unsupported, missing or out of range; `other_types` are read elsewhere, and named in messages.
HfConfig parse_hf_config(const JsonObject& config, std::span<const HfFamily> families,
                         std::span<const std::string_view> other_types = {});

}  // namespace snug
