// Computes rotary position embedding (Su et al., arXiv:2104.09864) over halves of a head:
//   x1, x2 -> x1 cos - x2 sin, x2 cos + x1 sin
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

// Rotates dim / 2 pairs, `half` apart. `sign` is 1 forward, -1 backward.
template <class T>
void rotate(T* x, const float* cosine, const float* sine, float sign, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; i++) {
    const float first = to_float(x[i]), second = to_float(x[i + half]), s = sign * sine[i];
    store(x[i], first * cosine[i] - second * s);
    store(x[i + half], second * cosine[i] + first * s);
  }
}

}  // namespace

Launch bind_rope_table(const RopeTable& attrs, Operands operands) {
  const TensorView table = operands.take("table", {DType::F32});
  operands.expect(table.cols() == 2 * std::ssize(attrs.frequencies), "'table' has {} columns, expected {}",
                  table.cols(), 2 * std::ssize(attrs.frequencies));
  operands.done();
  return [table, attrs](const RuntimeScalars&) {
    const Rows<float> rows(table);
    const int64_t half = table.cols() / 2;
    share_rows(table.rows(), table.cols(), [&](int64_t position) {
      for (int64_t i = 0; i < half; i++) {
        const float angle = static_cast<float>(position) * attrs.frequencies[static_cast<size_t>(i)];
        rows[position][i] = static_cast<float>(std::cos(static_cast<double>(angle))) * attrs.magnitude;
        rows[position][i + half] = static_cast<float>(std::sin(static_cast<double>(angle))) * attrs.magnitude;
      }
    });
  };
}

Launch bind_rope(const Rope& rope, Operands operands) {
  const int64_t dim = rope.dim;
  const TensorView view = operands.take("x", kActivation);
  operands.expect(dim > 0 && dim % 2 == 0, "heads of {} elements, expected an even number", dim);
  operands.expect(view.cols() % dim == 0, "'x' is {}, expected columns of heads of {}", to_string(view.shape), dim);
  const int32_t* const positions = operands.vector("positions", {DType::I32}, view.rows()).as<int32_t>();
  const TensorView table = operands.take("table", {DType::F32});
  operands.expect(table.cols() == dim, "'table' is {}, expected {} columns", to_string(table.shape), dim);
  operands.done();
  return dispatch_activation(view.dtype, [&]<class T>() -> Launch {
    return [=, x = Rows<T>(view), angles = Rows<float>(table)](const RuntimeScalars&) {
      for (int64_t t = 0; t < view.rows(); t++)
        check(0 <= positions[t] && positions[t] < table.rows(), "rope: position {} of token {} is beyond a table of {}",
              positions[t], t, table.rows());
      const int64_t half = dim / 2;
      share_rows(view.rows(), view.cols(), [&](int64_t t) {
        const float* cosine = angles[positions[t]];
        for (int64_t first = 0; first < view.cols(); first += dim)
          rotate(x[t] + first, cosine, cosine + half, rope.backward ? -1.0f : 1.0f, half);
      });
    };
  });
}

}  // namespace snug::cpu
