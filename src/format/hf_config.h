// A model directory as Hugging Face lays it out: what config.json says of a dense decoder, and which files lie beside
// it. Reads what transformers 4 and 5 write. Whatever snug does not compute is refused by name, never passed over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/bnb.h"
#include "format/side_files.h"
#include "tensor/dtype.h"

namespace snug {

enum class Architecture { LlamaForCausalLM, Qwen2ForCausalLM };

// As transformers spells it in `architectures` of config.json.
std::string_view name(Architecture architecture);

// How Llama 3.1 stretches rotary frequencies ("rope_type": "llama3"): wavelengths above original_max_position /
// low_freq_factor are multiplied by factor, those below original_max_position / high_freq_factor stay, between them the
// two are blended.
struct Llama3RopeScaling {
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position = 8192;
};

struct HfConfig {
  Architecture architecture = Architecture::LlamaForCausalLM;
  int64_t hidden_size = 0, intermediate_size = 0, layers = 0;
  int64_t heads = 0, kv_heads = 0;  // kv_heads divides heads
  int64_t head_dim = 0;             // even; heads * head_dim need not be hidden_size
  int64_t vocabulary = 0;           // rows of the embedding
  int64_t max_position = 0;
  double rms_norm_eps = 0, rope_theta = 0;
  std::optional<Llama3RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  std::vector<int64_t> windows;  // by layer; empty where none has any
  // How many tokens one sees in a layer, itself the last; 0: all before it.
  int64_t window(int64_t layer) const { return windows.empty() ? 0 : windows.at(static_cast<size_t>(layer)); }
  std::optional<int64_t> bos;
  std::vector<int64_t> eos;    // any of them ends a reply; may be empty
  std::optional<DType> dtype;  // of the weights when they were saved, if it says so
  std::optional<BnbQuantization> quantization;
  int64_t prediction_layers = 0;     // behind the last layer, for tokens further ahead; not part of the model
  std::vector<std::string> dropout;  // keys and shares ("attention_dropout 0.1") that act in training alone
  std::vector<std::string> notes;    // a line for each thing that the files say and that is not used
};

// Reads config.json. As in transformers `model_type` decides which architecture it is, and `architectures` only where
// there is no model_type, or where it names another head than the language model's. Ids beyond the vocabulary are left
// out with a note. `source` is the file's name for messages. UserError naming file, key, found and expected for
// anything unsupported, missing or out of range.
HfConfig parse_hf_config(std::string_view json, std::string_view source);

// The end tokens that generation_config.json names; nothing if it names none below `vocabulary`. Adds a note for each
// id that is not below it.
std::optional<std::vector<int64_t>> parse_generation_config(std::string_view json, std::string_view source,
                                                            int64_t vocabulary, std::vector<std::string>& notes);

// `<directory>/config.json`, with the end tokens of generation_config.json where that file names some.
HfConfig read_hf_config(const std::filesystem::path& directory);

}  // namespace snug
