// Linears that GPTQ, AWQ, compressed-tensors or the method "fp8" quantised, as safetensors hold them. For the weight
// "x.weight" of [m, n], n inputs in g groups, with b bits a code:
//
//   gptq      x.qweight I32 [n b / 32, m]: b bits a code, the codes of consecutive inputs in a word, from its low bits
//             on; x.scales [g, m]; x.qzeros I32 [g, m b / 32]: the codes of consecutive outputs in a word; x.g_idx I32
//             [n]: the group of each input (without it they follow each other)
//   awq       x.qweight I32 [n, m / 8]: a word holds the codes of outputs 0, 2, 4, 6, 1, 3, 5, 7 of eight, from its low
//             bits on; x.qzeros I32 [g, m / 8], the same; x.scales [g, m]
//   compressed-tensors
//             x.weight I8 or F8_E4M3 [m, n], or x.weight_packed I32 [m, n b / 32] and x.weight_shape I64 [2];
//             x.weight_scale [m, g], of a row [m, 1], of a tensor [1], by blocks [m / rows, n / columns];
//             x.weight_zero_point, where codes are not symmetric: I8 as the scales, or I32 [m b / 32, g], packed;
//             x.weight_g_idx I32 [n]: the group of each input, where groups do not follow each other
//   fp8       x.weight F8_E4M3 [m, n]; x.weight_scale_inv (by which the codes are multiplied all the same) or
//             x.weight_scale: [m / rows, n / columns], rounded up, or one of a tensor or of each row
//
// Scales are fp32, bf16 or fp16. A value is scale (code - zero point). Packed codes are unsigned; compressed-tensors'
// are those of signed ones plus 2^(b-1), and so are its packed zero points.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "format/quantization_config.h"
#include "format/safetensors.h"

namespace snug {

// Where a weight's parts are. The entries belong to the index.
struct QuantizedWeight {
  std::string name;            // "x.weight"
  int64_t rows = 0, cols = 0;  // outputs, inputs
  const SafetensorsEntry* codes = nullptr;
  const SafetensorsEntry* scales = nullptr;
  const SafetensorsEntry* zeros = nullptr;        // null: code 0 stands for 0, or 2^(b-1) of packed ones
  const SafetensorsEntry* group_index = nullptr;  // null: groups follow each other
  QuantizationConfig config{};                    // of this weight, with the strategy of the scales as they are there
};

// All tensors of a model.
struct QuantizedTensors {
  std::vector<QuantizedWeight> weights;           // in order of the codes' names
  std::vector<const SafetensorsEntry*> plain;     // in fp32, bf16 or fp16
  std::vector<const SafetensorsEntry*> not_used;  // scales of activations and caches
};

// UserError naming file, tensor, found and expected for anything missing, of another dtype or shape, or that no such
// model has. Reads the few bytes that headers do not tell (weight_shape).
QuantizedTensors find_quantized(const SafetensorsIndex& index, const QuantizationScheme& scheme);

// Reads the values of one weight, rounded to bf16 from fp32. Holds its scales and zero points in fp32; and its codes
// where those of a row do not lie together, as with gptq and awq.
class QuantizedReader {
 public:
  static constexpr int64_t kRows = 32;  // read at a time

  // Index and weight must outlive it. UserError for groups that are not there.
  QuantizedReader(const SafetensorsIndex& index, const QuantizedWeight& weight);
  // Fills `out` with whole rows from `first` on, a multiple of kRows: that many, or those that are left. UserError for
  // a value that is no finite number.
  void read(int64_t first, std::span<BFloat16> out);

 private:
  void read_groups();
  void read_scales();
  void read_zeros();
  void set_zero(int64_t row, int64_t group, float zero);
  void decode_rows(int64_t first, int64_t count);
  void decode_gptq(int64_t first, int64_t count);
  void decode_awq(int64_t first, int64_t count);
  std::string place(const SafetensorsEntry& entry) const;

  const SafetensorsIndex& index_;
  const QuantizationConfig& config_;
  const QuantizedWeight& weight_;
  File file_;                          // that holds the codes
  bool transposed_;                    // gptq, awq: codes, scales and zero points lie by inputs first
  int64_t in_word_;                    // codes
  uint32_t mask_;                      // of a code in a word
  int64_t block_rows_ = 1;             // that have scales in common
  int64_t groups_ = 1;                 // of a row
  std::vector<float> scales_, zeros_;  // [rows / block_rows_ rounded up, groups_]
  std::vector<int32_t> group_of_;      // by column
  std::vector<uint32_t> words_;        // transposed: all codes
  std::vector<std::byte> stored_;      // others: kRows rows of codes
  std::vector<float> codes_;           // [kRows, columns]
};

}  // namespace snug
