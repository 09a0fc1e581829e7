// The files beside a model's weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace snug {

inline constexpr uint64_t kMaxConfigBytes = 4 << 20;  // of config.json and its like
// Where transformers keeps templates that have names (for tools and the like).
inline constexpr const char* kAdditionalTemplates = "additional_chat_templates";

// The files beside the weights that a copy of the model needs too (configuration, tokenizer, chat template), as far as
// they exist, as names within the directory.
std::vector<std::string> side_files(const std::filesystem::path& directory);

// Those of them that a tokenizer is made of, without chat templates in files of their own.
std::vector<std::string> tokenizer_files(const std::filesystem::path& directory);

}  // namespace snug
