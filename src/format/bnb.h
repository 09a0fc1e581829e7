// Finds linears that bitsandbytes quantised, as transformers saves them in safetensors. For the weight "x.weight" of
// [m, n] there are:
//
//   int8   x.weight I8 [m, n]; x.SCB F32 [m], absmax of rows; x.weight_format U8 [], 0 (in row order), or absent
//   nf4    x.weight U8 [m n / 2, 1], codes in row order; x.weight.absmax, one a block of 64: F32, or U8 where they are
//          quantised a second time, and then x.weight.nested_absmax F32, one for 256 of them;
//          x.weight.quant_map F32 [16] and x.weight.nested_quant_map F32 [256]: the codebooks;
//          x.weight.quant_state.bitsandbytes__nf4 U8: JSON of type, block sizes, shape, dtype before, and nested_offset
//
// Quantize, QuantizeScales and Dequantize of program/ops.h say what the numbers mean.
#pragma once

#include <string_view>

#include "format/safetensors.h"

namespace snug {

// Holds what a configuration says: that the linears are stored as bitsandbytes quantised them, except some that may be
// stored plainly. It leaves out how bitsandbytes would compute with them (outliers, compute dtype).
struct BnbQuantization {
  bool nf4 = false;                     // else int8
  bool nested = false;                  // nf4: the scales are quantised too
  std::vector<std::string> left_out{};  // modules that are not quantised, by beginnings or ends of their names
};
// Returns whether the quantisation has a linear ("model.layers.0.mlp.up_proj"), by transformers' rule for names.
bool quantises(const BnbQuantization& quantization, std::string_view linear);

enum class WeightStorage : uint8_t { Plain, Int8, Nf4 };

// Says where a weight's bytes are. The entries belong to the index.
struct StoredWeight {
  WeightStorage storage = WeightStorage::Plain;
  const SafetensorsEntry* weight = nullptr;        // numbers or codes
  const SafetensorsEntry* scales = nullptr;        // Int8: SCB. Nf4: absmax
  const SafetensorsEntry* block_scales = nullptr;  // Nf4: nested_absmax; null where the scales are plain
  float offset = 0;                                // Nf4: of the scales, where they are not plain
};

// Returns the names of tensors that belong to a quantised weight.
std::vector<std::string> companions(WeightStorage storage, std::string_view name);

// Holds what quant_state.bitsandbytes__nf4 says, beyond what must be so.
struct Nf4State {
  int64_t rows = 0, cols = 0;
  bool nested = false;
  float offset = 0;
};

// Parses the text of that tensor. Throws UserError unless it is nf4 in blocks of 64, with nested blocks of 256 in fp32,
// and of a matrix whose size is a multiple of 64.
Nf4State parse_nf4_state(std::string_view json, std::string_view source);

// Returns how the linear weight `name` of this shape is stored; it reads the few bytes that the headers do not tell
// (state, codebooks). Throws UserError for anything missing, of another dtype or shape, or with a meaning that snug
// does not know. `reason` says where the shape comes from ("config.json, 'intermediate_size'").
StoredWeight find_stored_weight(const SafetensorsIndex& index, std::string_view name, const Shape& shape,
                                std::string_view reason);

}  // namespace snug
