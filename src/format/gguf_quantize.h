// Quantises numbers to GGUF's types, the reverse of gguf_dequantize.cpp.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "format/gguf.h"
#include "format/gguf_architecture.h"

namespace snug {

// This is the largest magnitude that can be stored in every type that is written, as scales are fp16.
inline constexpr float kMaxGgufValue = 65504;

// Stores whole blocks; `out` holds row_bytes(type, values.size()). F32, F16, BF16, Q8_0, Q5_0 and Q5_1 are to the bit
// as in the gguf package. For Q4_K, Q5_K and Q6_K it searches scales and minima with the least squares of errors, in
// which larger values count more. Values must be finite and at most kMaxGgufValue. Throws InternalError for other
// types.
void quantize(GgufType type, std::span<const float> values, std::span<std::byte> out);

// Says what a whole file is written in, by llama.cpp's names; they hold for matrices, while vectors are F32.
enum class GgufFileType { F16, BF16, Q8_0, Q4_K_M };

std::string_view name(GgufFileType type);  // "Q4_K_M"
// Returns the type of "q4_k_m" or "Q4_K_M"; nothing for other words.
std::optional<GgufFileType> gguf_file_type(std::string_view word);
// Returns general.file_type.
uint32_t number_of(GgufFileType type);

// Returns the type in which llama.cpp's quantiser stores a tensor of such a file: in Q4_K_M most are Q4_K, the head and
// half of the layers' v and down matrices Q6_K. Rows that are not whole blocks of those take Q5_0, Q8_0 or F16.
GgufType gguf_tensor_type(GgufFileType file, const GgufTensorName& tensor, const GgufSizes& sizes);

}  // namespace snug
