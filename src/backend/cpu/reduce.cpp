// Sums down columns, and the global norm of all gradients.
#include <bit>

#include "backend/cpu/columns.h"
#include "backend/cpu/kernels.h"

namespace snug::cpu {
namespace {

// Neighbours in pairs, their sums in pairs, and so on; an odd one out goes up as it is.
float sum_pairwise(const float* x, int64_t n) {
  if (n <= 1) return n == 0 ? 0.0f : x[0];
  const auto left = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n - 1)));
  return sum_pairwise(x, left) + sum_pairwise(x + left, n - left);
}

}  // namespace

Launch bind_column_sum(Operands operands) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView y = operands.vector("sum", kActivation, x.cols());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_activation(y.dtype, [&]<class S>() -> Launch {
      return [=](const PassFacts&) { sum_columns(Rows<T>(x), x.rows(), x.cols(), y.as<S>()); };
    });
  });
}

Launch bind_norm_partials(Operands operands) {
  const TensorView g = operands.dense("g", kActivation);
  const int64_t n = g.count(), units = (n + kUnit - 1) / kUnit;
  float* const partial = operands.vector("partial", {DType::F32}, units).as<float>();
  operands.done();
  return dispatch_activation(g.dtype, [&]<class T>() -> Launch {
    return [=, gradient = g.as<T>()](const PassFacts&) {
      share_rows(units, kUnit, [&](int64_t unit) {
        const T* x = gradient + unit * kUnit;
        partial[unit] = sum(std::min(kUnit, n - unit * kUnit), [=](int64_t i) {
          const float value = to_float(x[i]);
          return value * value;
        });
      });
    };
  });
}

Launch bind_clip_factor(const ClipFactor& attrs, Operands operands) {
  const TensorView partials = operands.dense("partial", {DType::F32});
  const float* const loss = operands.vector("loss", {DType::F32}, 1).as<float>();
  float* const clip = operands.vector("clip", {DType::F32}, 3).as<float>();
  operands.done();
  return [=, partial = partials.as<float>()](const PassFacts&) {
    const float norm = std::sqrt(sum_pairwise(partial, partials.count()));
    const float factor = attrs.max_norm / (norm + 1e-6f);
    clip[0] = norm;
    clip[1] = attrs.max_norm > 0 && factor < 1.0f ? factor : 1.0f;
    clip[2] = std::isfinite(norm) && std::isfinite(*loss) ? 1.0f : 0.0f;
  };
}

}  // namespace snug::cpu
