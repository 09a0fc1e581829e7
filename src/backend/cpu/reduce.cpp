// Sums down columns and over ranks, and computes the global norm of all gradients.
#include <bit>

#include "backend/cpu/columns.h"
#include "backend/cpu/kernels.h"
#include "base/rounding.h"
#include "tensor/step_scalars.h"

namespace snug::cpu {
namespace {

// Returns the sum of x(begin), ..., x(begin + n - 1): neighbours in pairs, their sums in pairs, and so on; an odd one
// out goes up as it is.
template <class X>
float sum_pairwise(const X& x, int64_t begin, int64_t n) {
  if (n <= 1) return n == 0 ? 0.0f : x(begin);
  const auto left = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n - 1)));
  return sum_pairwise(x, begin, left) + sum_pairwise(x, begin + left, n - left);
}

}  // namespace

Launch bind_column_sum(Operands operands) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView y = operands.vector("sum", kActivation, x.cols());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_activation(y.dtype, [&]<class S>() -> Launch {
      return [=](const RuntimeScalars&) { sum_columns(Rows<T>(x), x.rows(), x.cols(), y.as<S>()); };
    });
  });
}

Launch bind_sum_ranks(const SumRanks& attrs, Operands operands) {
  const auto of = sum_ranks_operands(operands);
  const TensorView parts = of.parts, y = of.sum;
  return dispatch_activation(parts.dtype, [&]<class T>() {
    return dispatch_activation(y.dtype, [&]<class S>() -> Launch {
      return [=, accumulate = attrs.accumulate, rows = parts.rows(), from = Rows<T>(parts),
              to = y.as<S>()](const RuntimeScalars&) {
        constexpr int64_t kTile = 1024;
        share_runs(Extent{y}, [&](int64_t, int64_t first, int64_t last) {
          for (int64_t begin = first; begin < last; begin += kTile) {
            const int64_t width = std::min(kTile, last - begin);
            float total[kTile];
            for (int64_t i = 0; i < width; i++) total[i] = to_float(from[0][begin + i]);
            for (int64_t row = 1; row < rows; row++) {
              const T* source = from[row] + begin;
              for (int64_t i = 0; i < width; i++) total[i] += to_float(source[i]);
            }
            S* target = to + begin;
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
              store(target[i], accumulate ? to_float(target[i]) + total[i] : total[i]);
          }
        });
      };
    });
  });
}

Launch bind_norm_partials(Operands operands) {
  const NormPartialsOperands of = norm_partials_operands(operands);
  return dispatch_activation(of.gradients[0].dtype, [&]<class T>() -> Launch {
    return [=](const RuntimeScalars&) {
      share_rows(of.units, kUnit, [&](int64_t unit) {
        const auto which = static_cast<size_t>(std::ranges::upper_bound(of.first, unit) - of.first.begin()) - 1;
        const int64_t begin = (unit - of.first[which]) * kUnit;
        const T* const x = of.gradients[which].as<T>() + begin;
        of.partial[unit] = sum(std::min(kUnit, of.gradients[which].count() - begin), [=](int64_t i) {
          const float value = to_float(x[i]);
          return value * value;
        });
      });
    };
  });
}

Launch bind_tree_sum(const TreeSum& attrs, Operands operands) {
  const auto of = tree_sum_operands(attrs, operands);
  const TensorView x = of.x;
  const int64_t count = attrs.count, block = of.block, blocks = of.blocks;
  float* const sums = of.sums;
  return [=, cols = x.cols(), scale = attrs.scale, values = Rows<float>(x)](const RuntimeScalars&) {
    share_rows(blocks, block, [&](int64_t b) {
      const auto value = [&](int64_t i) { return values[i / cols][i % cols]; };
      sums[b] = sum_pairwise(value, b * block, std::min(block, count - b * block)) * scale;
    });
  };
}

Launch bind_clip_factor(const ClipFactor& attrs, Operands operands) {
  const TensorView partials = operands.dense("partial", {DType::F32});
  const float* const loss = operands.vector("loss", {DType::F32}, 1).as<float>();
  StepScalars* const step = step_scalars(operands.vector("scalars", {DType::F32}, kStepScalars));
  operands.done();
  return [=, partial = partials.as<float>()](const RuntimeScalars&) {
    const float norm = std::sqrt(sum_pairwise([&](int64_t i) { return partial[i]; }, 0, partials.count()));
    const float factor = attrs.max_norm / (norm + 1e-6f);
    *step = {.norm = norm,
             .factor = attrs.max_norm > 0 && factor < 1.0f ? factor : 1.0f,
             .finite = std::isfinite(norm) && std::isfinite(*loss) ? 1.0f : 0.0f};
  };
}

}  // namespace snug::cpu
