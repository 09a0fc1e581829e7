// Scales a gradient by numbers of its rows and columns, and sums the squares of what that gives.
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "backend/update_operands.h"

namespace snug::cpu {
Launch bind_scaled_squares(const ScaledSquares& attrs, Operands operands) {
  const ScaledOperands of = scaled_operands(operands, attrs.rows, attrs.columns);
  float* const squares = operands.vector("squares", {DType::F32}, of.g.rows()).as<float>();
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return dispatch_activation(of.g.dtype, [&]<class G>() -> Launch {
    return [=, g = Rows<G>(of.g), columns = of.column_scales](const RuntimeScalars&) {
      const int64_t width = of.g.cols();
      share_rows(of.g.rows(), width, [&](int64_t row) {
        const float factor = of.row_scales ? scalars->factor * of.row_scales[row] : scalars->factor;
        squares[row] = sum(width, [&](int64_t j) {
          const float x = to_float(g[row][j]) * (columns ? factor * columns[j] : factor);
          return x * x;
        });
      });
    };
  });
}

Launch bind_scale_matrix(const ScaleMatrix& attrs, Operands operands) {
  const ScaledOperands of = scaled_operands(operands, attrs.rows, attrs.columns);
  const float* const whole = operands.vector("factor", {DType::F32}, 1).as<float>();
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return dispatch_activation(of.g.dtype, [&]<class G>() -> Launch {
    return [=, g = Rows<G>(of.g), columns = of.column_scales](const RuntimeScalars&) {
      if (scalars->finite == 0.0f) return;
      const float factor = scalars->factor * *whole;
      share_runs(Extent(of.g.rows(), of.g.cols()), [&](int64_t row, int64_t first, int64_t last) {
        const float of_row = of.row_scales ? factor * of.row_scales[row] : factor;
        G* const values = g[row];
#pragma omp simd
        for (int64_t j = first; j < last; j++)
          store(values[j], to_float(values[j]) * (columns ? of_row * columns[j] : of_row));
      });
    };
  });
}

}  // namespace snug::cpu
