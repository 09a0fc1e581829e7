// Turns a model whose linears GPTQ, AWQ, compressed-tensors or the method "fp8" quantised into a plain one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "format/quantization_config.h"

namespace snug {

// By which of these methods config.json says that the model in a directory is quantised; nothing for another method, or
// for none. UserError where config.json cannot be read.
std::optional<QuantizationMethod> quantized_by(const std::filesystem::path& directory);

// How config.json says that it is: "gptq, 4 bits, groups of 128". UserError as import_quantized().
std::string quantized_form(const std::filesystem::path& directory);

// The text of config.json for what import_quantized() writes: what it was, without a word of quantisation.
std::string plain_config(const std::filesystem::path& directory);

// UserError for what import_quantized() refuses by config.json and the headers of weight files.
void check_quantized(const std::filesystem::path& directory);

// Writes model.safetensors, config.json and what else stands beside the weights to `out`, which appears only when it is
// complete. Quantised weights are written as their values in bf16, others as they are. A linear that is stored by
// inputs first (gptq, awq) passes through memory as it is stored, others through some rows of them. Returns what was
// narrowed or not used, a line each, first what values were rounded to. UserError for anything that is not read, by
// name.
std::vector<std::string> import_quantized(const std::filesystem::path& directory, const std::filesystem::path& out,
                                          Existing existing);

}  // namespace snug
