// LoRA adapters as PEFT keeps them: `adapter_config.json` and `adapter_model.safetensors` in one directory.
//
// An adapted linear y = W x gains s B (A x), with A [r, in], B [out, r] and s = lora_alpha / r, or lora_alpha / sqrt(r)
// with use_rslora. For the linear "model.layers.0.self_attn.q_proj" the file holds
//   base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight  and  ...lora_B.weight
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

struct PeftConfig {
  std::string base_model = {};                   // base_model_name_or_path; may be empty
  int64_t rank = 0;                              // r
  double alpha = 0;                              // lora_alpha
  double dropout = 0;                            // lora_dropout
  bool rslora = false;                           // use_rslora
  std::vector<std::string> target_modules = {};  // "q_proj", or the end of a longer path; sorted
};

// What B (A x) is multiplied by.
double lora_scale(const PeftConfig& config);

// Reads and checks adapter_config.json; `source` is its name for messages. UserError for another method than LoRA and
// for every feature beyond the fields above that is switched on, by name.
PeftConfig parse_peft_config(std::string_view json, std::string_view source);
PeftConfig read_peft_config(const std::filesystem::path& directory);

// The text of adapter_config.json.
std::string write_peft_config(const PeftConfig& config);

constexpr std::string_view kPeftConfigFile = "adapter_config.json";
constexpr std::string_view kPeftWeightsFile = "adapter_model.safetensors";

enum class LoraHalf { A, B };

// A tensor of the weights file.
struct PeftTensorName {
  std::string linear;  // "model.layers.0.self_attn.q_proj"
  LoraHalf half;
};

std::string to_string(const PeftTensorName& tensor);

// Whether `target_modules` of an adapter covers a linear: it names its path or ends it at a dot.
bool targets(const PeftConfig& config, std::string_view linear);

}  // namespace snug
