// Finds the directory that is meant by a model or an adapter, and says what lies there if it is none.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace snug {

// Returns the directory of the model that `given` (of --model) names: itself if it holds config.json; for an id of
// Hugging Face's hub ("org/name") that is no directory here, the snapshot of its branch `main` in the local cache
// (https://huggingface.co/docs/huggingface_hub/guides/manage-cache). Throws UserError that says what lies there
// otherwise, and what to give instead.
std::filesystem::path find_model_directory(const std::string& given);
// Returns the directory that --adapter names, which holds adapter_config.json.
std::filesystem::path find_adapter_directory(const std::string& given);

// Returns whether it is a file that begins or is named as GGUF files are.
bool is_gguf_file(const std::filesystem::path& path);

// Throws UserError that says what lies in a directory whose weights cannot be read: shards without their index, files
// of other formats, an adapter's. Returns if it holds nothing of the kind.
void refuse_other_weights(const std::filesystem::path& model);

}  // namespace snug
