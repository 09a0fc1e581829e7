// Models that are made plain before they are used: GGUF files, and those in GPTQ, AWQ, compressed-tensors or fp8; and
// adapters that begin with halves of their base's weights.
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

// The directory in --cache-dir of the plain adapter that stands for one in `adapter` whose first halves are taken off
// of the base's weights, as PEFT saves PiSSA and OLoRA where it is not told to convert them: made once, under the hash
// of both, and said on standard error. The halves are computed of the weights of `options.model`, exactly; PEFT rounds
// what is left of the base to its dtype. UserError if the model's weights are not there, or are codes.
std::filesystem::path import_adapter_to_cache(const JobConfig& options, const std::filesystem::path& adapter);

}  // namespace snug
