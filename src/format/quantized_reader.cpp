// The values of quantised weights.
#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/rounding.h"
#include "format/load.h"
#include "format/quantized_weights.h"
#include "tensor/codebook.h"
#include "tensor/view.h"

namespace snug {
namespace {

constexpr int64_t kWordBits = 32;
// Which of eight outputs a word of AWQ has, from its low bits on.
constexpr std::array<int64_t, 8> kAwqOrder{0, 2, 4, 6, 1, 3, 5, 7};

template <class T>
std::vector<T> read_values(const SafetensorsIndex& index, const SafetensorsEntry& entry) {
  std::vector<T> values(entry.bytes / sizeof(T));
  File::open_read(index.files()[entry.file], IoMode::Buffered)
      .read(entry.offset, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

QuantizedReader::QuantizedReader(const SafetensorsIndex& index, const QuantizedWeight& weight)
    : index_(index),
      config_(weight.config),
      weight_(weight),
      file_(File::open_read(index.files()[weight.codes->file], IoMode::Buffered)),
      transposed_(config_.method == QuantizationMethod::Gptq || config_.method == QuantizationMethod::Awq),
      in_word_(kWordBits / config_.bits),
      mask_((1u << config_.bits) - 1),
      codes_(static_cast<size_t>(std::min(kRows, weight.rows) * weight.cols)) {
  if (config_.strategy == ScaleStrategy::Tensor) block_rows_ = weight.rows;
  if (config_.strategy == ScaleStrategy::Block) block_rows_ = config_.block_rows;
  read_groups();
  read_scales();
  read_zeros();
  if (transposed_) words_ = read_values<uint32_t>(index, *weight.codes);
}

std::string QuantizedReader::place(const SafetensorsEntry& entry) const {
  return fmt::format("{}, tensor '{}'", index_.files()[entry.file].string(), entry.name);
}

void QuantizedReader::read_groups() {
  int64_t width = weight_.cols;
  if (config_.strategy == ScaleStrategy::Group) width = config_.group_size;
  if (config_.strategy == ScaleStrategy::Block) width = config_.block_cols;
  groups_ = ceil_div(weight_.cols, width);
  if (!weight_.group_index) {
    for (int64_t c = 0; c < weight_.cols; ++c) group_of_.push_back(static_cast<int32_t>(c / width));
    return;
  }
  group_of_ = read_values<int32_t>(index_, *weight_.group_index);
  for (size_t c = 0; c < group_of_.size(); ++c)
    if (group_of_[c] < 0 || group_of_[c] >= groups_)
      user_error("{}, element {}: found group {}, expected 0 to {}", place(*weight_.group_index), c, group_of_[c],
                 groups_ - 1);
}

void QuantizedReader::read_scales() {
  const std::vector<std::byte> bytes = read_values<std::byte>(index_, *weight_.scales);
  const DType dtype = *weight_.scales->dtype;
  scales_.resize(bytes.size() / element_bytes(dtype));
  const auto groups = static_cast<size_t>(groups_);
  const size_t rows = scales_.size() / groups;
  dispatch_float(dtype, [&]<class T>() {
    for (size_t i = 0; i < scales_.size(); ++i)
      scales_[transposed_ ? i % rows * groups + i / rows : i] = static_cast<float>(load<T>(&bytes[i * sizeof(T)]));
  });
}

// Words may end with codes of rows that are not there.
void QuantizedReader::set_zero(int64_t row, int64_t group, float zero) {
  if (row < weight_.rows) zeros_[static_cast<size_t>(row * groups_ + group)] = zero;
}

void QuantizedReader::read_zeros() {
  const auto middle = static_cast<float>(config_.codes == CodeType::Packed ? 1 << (config_.bits - 1) : 0);
  zeros_.assign(scales_.size(), middle);
  if (!weight_.zeros) return;
  if (weight_.zeros->dtype_name == "I8") {
    const std::vector<int8_t> found = read_values<int8_t>(index_, *weight_.zeros);
    std::ranges::transform(found, zeros_.begin(), [&](int8_t zero) { return static_cast<float>(zero) + middle; });
    return;
  }
  // 1 for each code of a word: it was taken from the word as a whole.
  const uint32_t ones = config_.zeros_less_one ? ~0u / mask_ : 0;
  const std::vector<uint32_t> words = read_values<uint32_t>(index_, *weight_.zeros);
  const int64_t word_rows = std::ssize(words) / groups_;
  for (int64_t i = 0; i < std::ssize(words); ++i) {
    const int64_t group = transposed_ ? i / word_rows : i % groups_;
    const int64_t row = (transposed_ ? i % word_rows : i / groups_) * in_word_;
    const uint32_t word = words[static_cast<size_t>(i)] + ones;
    for (int64_t k = 0; k < in_word_; ++k) {
      const bool awq = config_.method == QuantizationMethod::Awq;
      set_zero(row + (awq ? kAwqOrder[static_cast<size_t>(k)] : k), group,
               static_cast<float>((word >> (k * config_.bits)) & mask_));
    }
  }
}

void QuantizedReader::decode_rows(int64_t first, int64_t count) {
  const SafetensorsEntry& entry = *weight_.codes;
  const uint64_t row_bytes = entry.bytes / static_cast<uint64_t>(weight_.rows);
  stored_.resize(static_cast<uint64_t>(count) * row_bytes);
  file_.read(entry.offset + static_cast<uint64_t>(first) * row_bytes, stored_);
  for (int64_t r = 0; r < count; ++r) {
    const std::byte* const row = stored_.data() + static_cast<uint64_t>(r) * row_bytes;
    float* const codes = codes_.data() + r * weight_.cols;
    for (int64_t c = 0; c < weight_.cols; ++c) {
      switch (config_.codes) {
        case CodeType::Packed: {
          const auto word = load<uint32_t>(row + c / in_word_ * int64_t{sizeof(uint32_t)});
          codes[c] = static_cast<float>((word >> (c % in_word_ * config_.bits)) & mask_);
          break;
        }
        case CodeType::Int8:
          codes[c] = static_cast<float>(static_cast<int8_t>(row[c]));
          break;
        case CodeType::Fp8:
          codes[c] = float_from_fp8(static_cast<uint8_t>(row[c]));
          break;
      }
    }
  }
}

void QuantizedReader::decode_gptq(int64_t first, int64_t count) {
  for (int64_t c = 0; c < weight_.cols; ++c) {
    const uint32_t* const words = words_.data() + c / in_word_ * weight_.rows + first;
    const int64_t shift = c % in_word_ * config_.bits;
    for (int64_t r = 0; r < count; ++r)
      codes_[static_cast<size_t>(r * weight_.cols + c)] = static_cast<float>((words[r] >> shift) & mask_);
  }
}

void QuantizedReader::decode_awq(int64_t first, int64_t count) {
  for (int64_t c = 0; c < weight_.cols; ++c) {
    const uint32_t* const words = words_.data() + (c * weight_.rows + first) / in_word_;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = r / in_word_ * in_word_ + kAwqOrder[static_cast<size_t>(r % in_word_)];
      codes_[static_cast<size_t>(row * weight_.cols + c)] =
          static_cast<float>((words[r / in_word_] >> (r % in_word_ * config_.bits)) & mask_);
    }
  }
}

void QuantizedReader::read(int64_t first, std::span<BFloat16> out) {
  const int64_t count = std::ssize(out) / weight_.cols;
  check(first % kRows == 0 && count <= kRows && first + count <= weight_.rows, "rows {} to {} of {}", first,
        first + count, weight_.rows);
  if (config_.method == QuantizationMethod::Gptq)
    decode_gptq(first, count);
  else if (config_.method == QuantizationMethod::Awq)
    decode_awq(first, count);
  else
    decode_rows(first, count);
  constexpr uint16_t kExponent = 0x7f80;  // of infinities and of what is no number
  for (int64_t r = 0; r < count; ++r) {
    const auto table = static_cast<size_t>((first + r) / block_rows_ * groups_);
    for (int64_t c = 0; c < weight_.cols; ++c) {
      const auto at = static_cast<size_t>(r * weight_.cols + c);
      const size_t scale = table + static_cast<size_t>(group_of_[static_cast<size_t>(c)]);
      out[at] = BFloat16(scales_[scale] * (codes_[at] - zeros_[scale]));
      if ((out[at].bits & kExponent) == kExponent)
        user_error("{}: found {} times a scale of {} in row {}, column {}, expected a finite number in bf16",
                   place(*weight_.codes), codes_[at] - zeros_[scale], scales_[scale], first + r, c);
    }
  }
}

}  // namespace snug
