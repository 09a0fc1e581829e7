// Emits Adafactor's updates of matrices (Shazeer and Stern, arXiv:1804.04235).
#pragma once

#include <span>

#include "plan/lowering/scale_matrix.h"

namespace snug {

class Adafactor {
 public:
  // Takes room beside any one of these matrices.
  Adafactor(Emitter& emitter, std::span<const Shape> matrices);

  // Brings the means of squares of a matrix's rows [R] and columns [C] forward by its gradient.
  void follow(const Operand& gradient, const Operand& rows, const Operand& columns, const Operand& scalars);
  // Puts the update in the gradient's place.
  void direct(const Operand& gradient, const Operand& rows, const Operand& columns, const Operand& scalars);

 private:
  Emitter& emitter_;
  MatrixScaler scaler_;
  Operand row_scales_, column_scales_, mean_, factor_;
};

}  // namespace snug
