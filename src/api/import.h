// Models that are made plain before they are used: GGUF files, and those in GPTQ, AWQ, compressed-tensors or fp8.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "api/options.h"
#include "base/file.h"

namespace snug {

// Whether a model directory holds weights in one of those formats.
bool must_be_imported(const std::filesystem::path& directory);

// Makes a model directory of a GGUF file or a model directory in one of those formats, as import_gguf() and
// import_quantized() do. UserError for a family that is not read, before anything is written.
std::vector<std::string> import_model(const std::filesystem::path& model, const std::filesystem::path& out,
                                      Existing existing);

// How such a model is stored: "GGUF", "gptq, 4 bits, groups of 128"; empty for any other.
std::string imported_form(const std::filesystem::path& model);

// The model directory of such a model in --cache-dir: made once, under the hash of its files' bytes, and said on
// standard error; and every time what its values were rounded to.
std::filesystem::path import_to_cache(const JobConfig& options, const std::filesystem::path& model);

}  // namespace snug
