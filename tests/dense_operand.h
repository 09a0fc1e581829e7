// Operands for what asks for shapes and dtypes alone.
#pragma once

#include "program/program.h"

namespace snug {

inline Operand dense(DType dtype, const Shape& shape) {
  Operand operand;
  operand.dtype = dtype;
  operand.shape = shape;
  operand.row_stride = shape.cols();
  return operand;
}

}  // namespace snug
