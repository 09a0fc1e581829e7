// Numbers into GGUF's types: the way back from what gguf_dequantize.cpp reads.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "format/gguf.h"
#include "format/gguf_architecture.h"

namespace snug {

// Values of this magnitude and less can be stored in every type that is written: scales are fp16.
inline constexpr float kMaxGgufValue = 65504;

// Stores whole blocks; `out` holds row_bytes(type, values.size()). F32, F16, BF16, Q8_0, Q5_0 and Q5_1 to the bit as
// the gguf package does. In Q4_K, Q5_K and Q6_K scales and minima are searched for that make the squares of errors
// least, in which larger values count more. Values are finite and at most kMaxGgufValue. InternalError for other types.
void quantize(GgufType type, std::span<const float> values, std::span<std::byte> out);

// What a whole file is written in, by llama.cpp's names: of the matrices; vectors are F32.
enum class GgufFileType { F16, BF16, Q8_0, Q4_K_M };

std::string_view name(GgufFileType type);  // "Q4_K_M"
// From "q4_k_m" or "Q4_K_M"; nothing for others.
std::optional<GgufFileType> gguf_file_type(std::string_view word);
// general.file_type
uint32_t number_of(GgufFileType type);

// The type in which llama.cpp's quantiser stores a tensor of such a file: in Q4_K_M most are Q4_K, the head and half of
// the layers' v and down matrices Q6_K. Rows that are no whole blocks of those take Q5_0, Q8_0 or F16.
GgufType gguf_tensor_type(GgufFileType file, const GgufTensorName& tensor, const GgufSizes& sizes);

}  // namespace snug
