// Computes Adafactor's means of squares of rows and columns, and the scales that they give (program/update_ops.h).
#include "backend/adafactor_scalars.h"
#include "backend/cpu/columns.h"
#include "backend/cpu/kernels.h"
#include "backend/update_operands.h"

namespace snug::cpu {

Launch bind_factored_means(const FactoredMeans& means, Operands operands) {
  const FactoredMeansOperands of = factored_means_operands(operands);
  return dispatch_activation(of.g.dtype, [&]<class G>() -> Launch {
    return [=, g = Rows<G>(of.g), rows = of.rows.as<float>(), columns = of.columns.as<float>(), count = of.g.rows(),
            width = of.g.cols(), scalars = of.scalars](const RuntimeScalars& runtime) {
      if (scalars->finite == 0.0f) return;
      const FactoredMeansScalars s(means, runtime);
      const auto square = [factor = scalars->factor](float x) { return (x * factor) * (x * factor); };
      const auto follow = [&s](float& mean, float total, int64_t n) {
        mean = std::fma(s.keep, mean, s.share * (total / static_cast<float>(n) + s.epsilon));
      };
      share_rows(count, width, [&](int64_t row) {
        follow(rows[row], sum(width, [&](int64_t j) { return square(to_float(g[row][j])); }), width);
      });
      sum_columns(g, count, width, square, [&](int64_t j, float total) { follow(columns[j], total, count); });
    };
  });
}

Launch bind_factored_scales(Operands operands) {
  const FactoredScalesOperands of = factored_scales_operands(operands);
  return [=, of_rows = of.rows.as<float>(), of_columns = of.columns.as<float>()](const RuntimeScalars&) {
    const auto fill = [](int64_t count, const float* means, float over, float* scales) {
      share_runs(Extent(1, count), [=](int64_t, int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++) scales[i] = 1.0f / std::sqrt(means[i] / over);
      });
    };
    fill(of.rows.count(), of_rows, *of.mean, of.row_scales);
    fill(of.columns.count(), of_columns, 1.0f, of.column_scales);
  };
}

Launch bind_square_limit(const SquareLimit& limit, Operands operands) {
  const float* const square = operands.vector("square", {DType::F32}, 1).as<float>();
  float* const factor = operands.vector("factor", {DType::F32}, 1).as<float>();
  operands.done();
  return [=, threshold = static_cast<float>(limit.threshold)](const RuntimeScalars&) {
    *factor = 1.0f / std::max(1.0f, std::sqrt(*square) / threshold);
  };
}

}  // namespace snug::cpu
