#include "plan/lowering/scale_matrix.h"

#include <algorithm>

namespace snug {
namespace {

std::vector<Operand> scales_of(const MatrixScales& scales) {
  std::vector<Operand> operands;
  for (const std::optional<Operand>& one : {scales.rows, scales.columns})
    if (one) operands.push_back(read(*one));
  return operands;
}

}  // namespace

MatrixScaler::MatrixScaler(Emitter& emitter, std::span<const Shape> matrices) : emitter_(emitter) {
  int64_t rows = 1;
  for (const Shape& matrix : matrices) rows = std::max(rows, matrix.rows());
  squares_ = emitter.tensor("squares", DType::F32, {rows}, Role::Metrics);
  square_ = emitter.tensor("square", DType::F32, {1}, Role::Metrics);
}

Operand MatrixScaler::squares(const Operand& gradient, const MatrixScales& scales, double factor,
                              const Operand& scalars) {
  const int64_t rows = gradient.shape.rows();
  const Operand squares = elements(squares_, 0, rows);
  std::vector<Operand> operands = scales_of(scales);
  operands.insert(operands.begin(), read(gradient));
  operands.push_back(write(squares));
  operands.push_back(read(scalars));
  emitter_.op("squares", ScaledSquares{scales.rows.has_value(), scales.columns.has_value()}, operands);
  emitter_.op("square", TreeSum{.count = rows, .scale = static_cast<float>(factor)},
              {read(reshaped(squares, {1, rows})), write(square_)});
  return square_;
}

void MatrixScaler::scale(const Operand& gradient, const MatrixScales& scales, const Operand& factor,
                         const Operand& scalars) {
  std::vector<Operand> operands = scales_of(scales);
  operands.insert(operands.begin(), update(gradient));
  operands.push_back(read(factor));
  operands.push_back(read(scalars));
  emitter_.op("scale", ScaleMatrix{scales.rows.has_value(), scales.columns.has_value()}, operands);
}

}  // namespace snug
