// Which directory is meant where a model or an adapter is asked for, and what lies there if it is none.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace snug {

// The directory of the model that `given` (of --model) names: itself if it holds config.json; for an id of Hugging
// Face's hub ("org/name") that is no directory here, the snapshot of its branch `main` in the local cache
// (https://huggingface.co/docs/huggingface_hub/guides/manage-cache). UserError that says what lies there otherwise, and
// what to give instead.
std::filesystem::path find_model_directory(const std::string& given);
// Of --adapter, whose directory holds adapter_config.json.
std::filesystem::path find_adapter_directory(const std::string& given);

// Whether it is a file that begins or is named as GGUF files are.
bool is_gguf_file(const std::filesystem::path& path);

// UserError that says what lies in a directory whose weights cannot be read, where something does: shards without
// their index, files of other formats, an adapter's. Returns where there is nothing of the kind.
void refuse_other_weights(const std::filesystem::path& model);

}  // namespace snug
