// Rotary position embedding (Su et al., arXiv:2104.09864) over halves of a head:
//   x1, x2 -> x1 cos - x2 sin, x2 cos + x1 sin
#include <numbers>
#include <vector>

#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

// Llama 3.1's scaling: frequencies whose wave is longer than the original context can tell are divided by the factor,
// those well inside it are kept, and between the two it is interpolated.
float scaled(const RopeTable& t, float frequency) {
  const auto factor = static_cast<float>(t.factor), low = static_cast<float>(t.low_frequency_factor),
             high = static_cast<float>(t.high_frequency_factor), length = static_cast<float>(t.original_length);
  const float wave = 2.0f * std::numbers::pi_v<float> / frequency;
  if (wave > length / low) return frequency / factor;
  if (wave < length / high) return frequency;
  const float smooth = (length / wave - low) / (high - low);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

// f_i for i < dim / 2, each step rounded to fp32: the models were trained with frequencies rounded so (transformers'
// rope utilities compute in fp32), and a long position turns a rounding into a visible angle.
std::vector<float> frequencies(const RopeTable& table, int64_t dim) {
  std::vector<float> result;
  for (int64_t i = 0; i < dim / 2; i++) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    const float frequency = 1.0f / static_cast<float>(std::pow(table.theta, static_cast<double>(exponent)));
    result.push_back(table.factor > 0 ? scaled(table, frequency) : frequency);
  }
  return result;
}

// dim / 2 pairs, `half` apart. sign: 1 forward, -1 backward.
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
  operands.expect(table.cols() % 2 == 0, "'table' has {} columns, expected an even number", table.cols());
  operands.done();
  return [table, frequency = frequencies(attrs, table.cols())](const PassFacts&) {
    const Rows<float> rows(table);
    const int64_t half = table.cols() / 2;
    share_rows(table.rows(), table.cols(), [&](int64_t position) {
      for (int64_t i = 0; i < half; i++) {
        const float angle = static_cast<float>(position) * frequency[static_cast<size_t>(i)];
        rows[position][i] = static_cast<float>(std::cos(static_cast<double>(angle)));
        rows[position][i + half] = static_cast<float>(std::sin(static_cast<double>(angle)));
      }
    });
  };
}

Launch bind_rope(const Rope& rope, Operands operands) {
  const HeadShape& shape = rope.shape;
  const TensorView qkv = operands.take("qkv", kActivation);
  operands.expect(qkv.cols() == shape.width(), "'qkv' is {}, expected {} columns", to_string(qkv.shape), shape.width());
  operands.expect(shape.dim % 2 == 0, "heads of {} elements, expected an even number", shape.dim);
  const int32_t* const positions = operands.vector("positions", {DType::I32}, qkv.rows()).as<int32_t>();
  const TensorView table = operands.take("table", {DType::F32});
  operands.expect(table.cols() == shape.dim, "'table' is {}, expected {} columns", to_string(table.shape), shape.dim);
  operands.done();
  return dispatch_activation(qkv.dtype, [&]<class T>() -> Launch {
    return [=, x = Rows<T>(qkv), angles = Rows<float>(table)](const PassFacts&) {
      for (int64_t t = 0; t < qkv.rows(); t++)
        check(0 <= positions[t] && positions[t] < table.rows(), "rope: position {} of token {} is beyond a table of {}",
              positions[t], t, table.rows());
      const int64_t half = shape.dim / 2;
      share_rows(qkv.rows(), qkv.cols(), [&](int64_t t) {
        const float* cosine = angles[positions[t]];
        for (int64_t head = 0; head < shape.heads + shape.kv_heads; head++)
          rotate(x[t] + head * shape.dim, cosine, cosine + half, rope.backward ? -1.0f : 1.0f, half);
      });
    };
  });
}

}  // namespace snug::cpu
