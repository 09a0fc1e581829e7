// Computes rotary position embedding (Su et al., arXiv:2104.09864) of pairs of a head's elements:
//   x1, x2 -> x1 cos - x2 sin, x2 cos + x1 sin
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

// Rotates pairs [begin, end) of the `pairs` of a head, whose elements are `pairs` apart, or neighbours. sign: 1
// forward, -1 backward.
template <bool kInterleaved, class T>
void rotate(T* x, const float* cosine, const float* sine, float sign, int64_t pairs, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    T &one = x[kInterleaved ? 2 * i : i], &other = x[kInterleaved ? 2 * i + 1 : i + pairs];
    const float first = to_float(one), second = to_float(other), s = sign * sine[i];
    store(one, first * cosine[i] - second * s);
    store(other, second * cosine[i] + first * s);
  }
}

float factor_of_row(const RopeTable& table, int64_t position) {
  if (table.growth == 0) return table.attention_factor;
  const auto lengths = static_cast<double>(position / table.growth_length);
  return table.attention_factor * static_cast<float>(1 + static_cast<double>(table.growth) * std::log(1 + lengths));
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
      const float factor = factor_of_row(attrs, position);
      for (int64_t i = 0; i < half; i++) {
        const float angle = static_cast<float>(position) * attrs.frequencies[static_cast<size_t>(i)];
        rows[position][i] = static_cast<float>(std::cos(static_cast<double>(angle))) * factor;
        rows[position][i + half] = static_cast<float>(std::sin(static_cast<double>(angle))) * factor;
      }
    });
  };
}

Launch bind_rope(const Rope& rope, Operands operands) {
  const int64_t dim = rope.dim;
  const TensorView view = operands.take("x", kActivation);
  operands.expect(dim > 0 && view.cols() % dim == 0, "'x' is {}, expected columns of heads of {}",
                  to_string(view.shape), dim);
  const int64_t axes = rope.pairs.count();
  const int32_t* const positions = operands.matrix("positions", {DType::I32}, axes, view.rows()).as<int32_t>();
  const TensorView table = operands.take("table", {DType::F32});
  operands.expect(table.cols() % 2 == 0 && table.cols() <= dim,
                  "'table' is {}, expected an even number up to {} of columns", to_string(table.shape), dim);
  const int64_t pairs = table.cols() / 2;
  const size_t last = static_cast<size_t>(axes) - 1;
  operands.expect(axes == 1 || rope.pairs.end_of(last) == pairs, "'table' is {}, expected columns of {} pairs",
                  to_string(table.shape), rope.pairs.end_of(last));
  operands.done();
  return dispatch_activation(view.dtype, [&]<class T>() -> Launch {
    return [=, x = Rows<T>(view), angles = Rows<float>(table)](const RuntimeScalars&) {
      for (int64_t t = 0; t < axes * view.rows(); t++)
        check(0 <= positions[t] && positions[t] < table.rows(), "rope: position {} of token {} is beyond a table of {}",
              positions[t], t % view.rows(), table.rows());
      const float sign = rope.backward ? -1.0f : 1.0f;
      share_rows(view.rows(), view.cols(), [&](int64_t t) {
        int64_t begin = 0;
        for (size_t axis = 0; axis <= last; axis++) {
          const int64_t end = axis == last ? pairs : rope.pairs.end_of(axis);
          const float *cosine = angles[positions[static_cast<int64_t>(axis) * view.rows() + t]], *sine = cosine + pairs;
          for (int64_t first = 0; first < view.cols(); first += dim)
            if (rope.interleaved)
              rotate<true>(x[t] + first, cosine, sine, sign, pairs, begin, end);
            else
              rotate<false>(x[t] + first, cosine, sine, sign, pairs, begin, end);
          begin = end;
        }
      });
    };
  });
}

}  // namespace snug::cpu
