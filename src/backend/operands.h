// Takes the views of one op in ops.h's order, and checks that they are what its kind expects.
#pragma once

#include <initializer_list>
#include <span>
#include <string_view>

#include "program/program.h"

namespace snug {

// Lists the dtypes that an operand may have.
using DTypes = std::initializer_list<DType>;
inline constexpr DTypes kActivation{DType::F32, DType::BF16};
inline constexpr DTypes kFloat{DType::F32, DType::BF16, DType::F16};
inline constexpr DTypes kIndex{DType::I32};

// Gives the next view at each take. Throws InternalError that names the op's site and the operand if the view is
// missing or differs from the expected one, and in done() if one is left over.
class Operands {
 public:
  Operands(const Op& op, std::span<const TensorView> views) : op_(op), views_(views) {}

  // Takes an operand of any shape.
  const TensorView& take(std::string_view what, DTypes dtypes);
  // Takes a matrix of this size; a tensor of more dimensions counts as one (Shape::rows, Shape::cols).
  const TensorView& matrix(std::string_view what, DTypes dtypes, int64_t rows, int64_t cols);
  // Takes a dense operand of any shape.
  const TensorView& dense(std::string_view what, DTypes dtypes);
  // Takes a dense operand with this many elements in any shape.
  const TensorView& vector(std::string_view what, DTypes dtypes, int64_t count);
  // Takes dense bytes, at least this many; returns null and takes none if none are needed.
  std::byte* scratch(uint64_t bytes);
  // Returns how many have not been taken.
  size_t left() const { return views_.size() - next_; }
  void done() const;

  // Throws unless a further condition on the operands taken holds.
  template <class... Args>
  void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) const {
    if (!holds) refuse(fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void refuse(std::string_view reason) const;

  const Op& op_;
  std::span<const TensorView> views_;
  size_t next_ = 0;
};

// Holds where the scale of a block of an nf4 tensor comes from: the scale itself, or its code.
struct Nf4ScaleViews {
  const float* plain = nullptr;  // or
  const uint8_t* codes = nullptr;
  const float *block_scales = nullptr, *offset = nullptr;
};

// Holds all operands of a Dequantize from Nf4.
struct Nf4Operands {
  TensorView packed;  // two codes a byte
  int64_t count = 0;  // of numbers
  Nf4ScaleViews scales;
  TensorView x;
};
Nf4Operands nf4_operands(const Dequantize& attrs, Operands& operands);

// Requires that only the format Fp8 has factors, columns or scales of columns.
inline void expect_fp8_extras(const Quantize& quantize, const Operands& operands) {
  operands.expect(
      quantize.format == BaseFormat::Fp8 || !(quantize.factors || quantize.columns || quantize.column_scales),
      "found factors, columns or their scales and format {}, expected fp8", name(quantize.format));
  operands.expect(!(quantize.factors && quantize.columns), "found factors and columns, expected one of them");
}

}  // namespace snug
