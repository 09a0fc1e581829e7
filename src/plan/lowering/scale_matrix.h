// Emits what Adafactor and APOLLO share: a gradient that is scaled by numbers of its rows and columns.
#pragma once

#include <optional>
#include <span>

#include "program/emitter.h"

namespace snug {

// Holds the scales of a matrix's rows [R] and columns [C], those that it has, in fp32.
struct MatrixScales {
  std::optional<Operand> rows, columns;
};

class MatrixScaler {
 public:
  // Takes room beside any one of these matrices.
  MatrixScaler(Emitter& emitter, std::span<const Shape> matrices);

  // Returns the sum of squares of what the scales make of the gradient, times `factor`: [1] fp32, until the next call.
  Operand squares(const Operand& gradient, const MatrixScales& scales, double factor, const Operand& scalars);
  // Puts that, times `factor` [1], in the gradient's place.
  void scale(const Operand& gradient, const MatrixScales& scales, const Operand& factor, const Operand& scalars);

 private:
  Emitter& emitter_;
  Operand squares_, square_;
};

}  // namespace snug
