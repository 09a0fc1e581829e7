// Reads LoRA adapters as PEFT keeps them: `adapter_config.json` and `adapter_model.safetensors` in one directory.
//
// An adapted linear y = W x gains s B (A x), with A [r, in], B [out, r] and s = lora_alpha / r, or lora_alpha / sqrt(r)
// with use_rslora. For the linear "model.layers.0.self_attn.q_proj" the file holds
//   base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight  and  ...lora_B.weight
// and with use_dora (Liu et al., arXiv:2402.09353) the norms that the rows of W + s B A are given,
// ...lora_magnitude_vector. Parameters of the model that were trained as a whole, and rows of its embedding or head,
// may lie beside them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/pattern.h"
#include "format/spelling.h"

namespace snug {

// Names modules by names (of whole paths, or of their ends), or by an expression that fits whole paths.
struct PeftModules {
  std::vector<std::string> names = {};  // sorted
  std::optional<Pattern> expression = {};
  bool empty() const { return names.empty() && !expression; }
};

// Holds the adapter of one linear.
struct LoraTarget {
  int64_t rank = 0;
  double scale = 0;  // the factor of B (A x)
  bool operator==(const LoraTarget&) const = default;
};

// Says with what an adapter begins: with a change of nothing (A drawn and B zero, in most), or with halves of the
// base's own weights, which are taken off of these: of the largest singular values (PiSSA, Meng et al.,
// arXiv:2404.02948), or of a QR decomposition (OLoRA, Büyükakyüz, arXiv:2406.01775).
enum class LoraInit : uint8_t { Default, Pissa, Olora };
std::string_view name(LoraInit init);

struct PeftConfig {
  std::string base_model = {};                   // base_model_name_or_path; may be empty
  int64_t rank = 0;                              // r
  double alpha = 0;                              // lora_alpha
  double dropout = 0;                            // lora_dropout
  bool rslora = false;                           // use_rslora
  bool dora = false;                             // use_dora: norms of the adapted rows are trained beside the halves
  LoraInit init = LoraInit::Default;             // init_lora_weights
  std::vector<std::string> target_modules = {};  // "q_proj", or the end of a longer path; sorted

  // Adapters trained by snug have names instead of these two, and neither a pattern of layers, nor biases, nor rows of
  // tokens.
  std::optional<Pattern> target_expression = {};  // instead of target_modules
  PeftModules exclude_modules = {};
  std::optional<std::vector<int64_t>> layers_to_transform = {};
  std::vector<std::string> layers_pattern = {};
  // The first expression that fits the end of a path counts.
  std::vector<std::pair<Pattern, int64_t>> rank_pattern = {};
  std::vector<std::pair<Pattern, double>> alpha_pattern = {};
  std::string bias = "none";
  std::vector<std::string> modules_to_save = {};                             // ends of paths
  std::map<std::string, std::vector<int64_t>> trainable_token_indices = {};  // by the ends of paths
  bool scores = false;               // task_type SEQ_CLS: the model gives scores; modules_to_save has its head, "score"
  bool ensure_weight_tying = false;  // a head that is the embedding stays so where that is saved whole
  Spelling spelling = {};            // of paths that the names and expressions above are of; trained by snug: ours
};

// Returns rank and scale of the adapter of a linear, by our path of it; nothing if it has none. It follows PEFT's
// check_target_module_exists() and get_pattern_key().
std::optional<LoraTarget> target_of(const PeftConfig& config, std::string_view linear);
// Returns the pattern for a key of rank_pattern or alpha_pattern; `place` names it for messages.
Pattern pattern_of_ends(std::string_view key, std::string place);
// Returns the key of such a pattern as the file has it.
std::string written_pattern(const Pattern& pattern);
// Returns "NAME=NUMBER" for each entry of rank_pattern or alpha_pattern, in their order.
template <class T>
std::vector<std::string> written_patterns(const std::vector<std::pair<Pattern, T>>& patterns) {
  std::vector<std::string> texts;
  for (const auto& [pattern, value] : patterns) texts.push_back(fmt::format("{}={}", written_pattern(pattern), value));
  return texts;
}

// Returns whether a path is a name, or ends with it after a dot.
bool ends_path(std::string_view path, std::string_view name);

// Returns whether modules_to_save names a parameter of the model, by our name of it: PEFT takes a module for saved if
// its path ends with a name, wherever the name begins, together with everything in the module.
bool saves_whole(const PeftConfig& config, std::string_view param);
// Returns whether a head that was the embedding becomes a matrix of its own: PEFT trains a copy of what it saves.
bool parts_head(const PeftConfig& config, std::string_view embedding, std::string_view head);

// Reads and checks adapter_config.json; `source` is its name for messages. Throws UserError, by key, for another method
// than LoRA and for every feature beyond the fields above that is switched on.
PeftConfig parse_peft_config(std::string_view json, std::string_view source);
// Reads the configuration in a directory. If it has none, throws UserError that names the directories below that have.
PeftConfig read_peft_config(const std::filesystem::path& directory);

// Returns the configuration of the plain adapter of twice the rank, and the same scales, that stands for one whose
// first halves are taken off of the base: of [B, -B as it began] and [A; A as it began].
PeftConfig with_first_halves(PeftConfig config);

// Returns the text of adapter_config.json, for an adapter that snug trained, with halves taken off or not written as
// plain ones.
std::string write_peft_config(const PeftConfig& config);

// Returns the text of an adapter_config.json with what with_first_halves() makes of it; all else is kept.
std::string plain_peft_config(std::string_view json, std::string_view source);

constexpr std::string_view kPeftConfigFile = "adapter_config.json";
constexpr std::string_view kPeftWeightsFile = "adapter_model.safetensors";

enum class LoraHalf { A, B };

// Names a tensor of the weights file.
struct PeftTensorName {
  std::string linear;  // "model.layers.0.self_attn.q_proj"
  LoraHalf half;
};

std::string to_string(const PeftTensorName& tensor);

}  // namespace snug
