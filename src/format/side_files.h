// Lists the files beside a model's weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace snug {

inline constexpr uint64_t kMaxConfigBytes = 4 << 20;  // of config.json and similar files
inline constexpr uint64_t kMaxCodeBytes = 4 << 20;    // of a Python file of a model
// Names the files in which transformers looks for what makes a model's inputs.
inline constexpr const char* kImageProcessorFile = "preprocessor_config.json";
inline constexpr const char* kProcessorFile = "processor_config.json";
inline constexpr const char* kVideoProcessorFile = "video_preprocessor_config.json";
// Names the folder in which transformers keeps templates that have names (such as one for tools).
inline constexpr const char* kAdditionalTemplates = "additional_chat_templates";

// Returns the names within the directory of existing files beside the weights that a copy of the model needs too
// (configuration, tokenizer, chat template, processors; where an auto_map names code of its own, all Python files).
std::vector<std::string> side_files(const std::filesystem::path& directory);

// Says which modules an auto_map of the model names that side_files() does not have; empty if there are none.
std::string missing_code(const std::filesystem::path& directory);

// Returns those of them that make a tokenizer, without chat templates in files of their own.
std::vector<std::string> tokenizer_files(const std::filesystem::path& directory);

}  // namespace snug
