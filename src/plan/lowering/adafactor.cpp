#include "plan/lowering/adafactor.h"

#include <algorithm>

namespace snug {

Adafactor::Adafactor(Emitter& emitter, std::span<const Shape> matrices)
    : emitter_(emitter), scaler_(emitter, matrices) {
  int64_t rows = 1, columns = 1;
  for (const Shape& matrix : matrices) {
    rows = std::max(rows, matrix.rows());
    columns = std::max(columns, matrix.cols());
  }
  row_scales_ = emitter.tensor("row_scales", DType::F32, {rows}, Role::Metrics);
  column_scales_ = emitter.tensor("column_scales", DType::F32, {columns}, Role::Metrics);
  mean_ = emitter.tensor("mean", DType::F32, {1}, Role::Metrics);
  factor_ = emitter.tensor("factor", DType::F32, {1}, Role::Metrics);
}

void Adafactor::follow(const Operand& gradient, const Operand& rows, const Operand& columns, const Operand& scalars) {
  emitter_.op("means", FactoredMeans{}, {read(gradient), update(rows), update(columns), read(scalars)});
}

void Adafactor::direct(const Operand& gradient, const Operand& rows, const Operand& columns, const Operand& scalars) {
  const int64_t count = rows.shape.count();
  const MatrixScales scales{elements(row_scales_, 0, count), elements(column_scales_, 0, columns.shape.count())};
  emitter_.op("mean", TreeSum{.count = count, .scale = 1 / static_cast<float>(count)},
              {read(reshaped(rows, {1, count})), write(mean_)});
  emitter_.op("scales", FactoredScales{},
              {read(rows), read(columns), read(mean_), write(*scales.rows), write(*scales.columns)});
  const double share = 1 / static_cast<double>(gradient.shape.count());
  emitter_.op("limit", SquareLimit{}, {read(scaler_.squares(gradient, scales, share, scalars)), write(factor_)});
  scaler_.scale(gradient, scales, factor_, scalars);
}

}  // namespace snug
