// Computes RMSNorm (Zhang and Sennrich, arXiv:1910.07467).   r = 1 / sqrt(mean(x^2) + epsilon)
//   y = gain x r       dx = r (gain dy - x r^2 mean(gain dy x))       dgain = sum over rows of dy x r
// and LayerNorm (Ba et al., arXiv:1607.06450).   z = (x - mean) r, r = 1 / sqrt(mean((x - mean)^2) + epsilon)
//   y = gain z + bias  dx = r (gain dy - mean(gain dy) - z mean(gain dy z))   dgain = sum of dy z   dbias = sum of dy
#include "backend/cpu/columns.h"
#include "backend/cpu/kernels.h"
#include "base/rounding.h"

namespace snug::cpu {
namespace {

constexpr int64_t kPartialRows = 32;  // rows of a block, whose part of dgain is one sum

// The gain as RmsNorm's attributes say it: the operand and `more`, 0 or 1.
template <class G>
struct Gain {
  const G* weight;
  float more;
  float operator[](int64_t i) const { return to_float(weight[i]) + more; }
  Gain from(int64_t first) const { return {weight + first, more}; }
};

template <class T, class G>
void scale_row(const T* x, const Gain<G>& gain, float r, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) store(y[i], to_float(x[i]) * r * gain[i]);
}

template <class T, class G>
float norm_row(const T* x, const Gain<G>& gain, T* y, int64_t n, float epsilon) {
  const float squares = sum(n, [=](int64_t i) {
    const float value = to_float(x[i]);
    return value * value;
  });
  const float r = 1.0f / std::sqrt(squares / static_cast<float>(n) + epsilon);
  scale_row(x, gain, r, y, n);
  return r;
}

// `dgain`, if not null, is added to.
template <class T, class G>
void norm_row_backward(const T* dy, const T* x, const Gain<G>& gain, float r, bool accumulate, T* dx, float* dgain,
                       int64_t n) {
  const float dot = sum(n, [=](int64_t i) { return gain[i] * to_float(dy[i]) * to_float(x[i]); });
  const float slope = r * r * (dot / static_cast<float>(n));
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float before = accumulate ? to_float(dx[i]) : 0.0f;
    store(dx[i], before + r * (gain[i] * to_float(dy[i]) - to_float(x[i]) * slope));
  }
  if (!dgain) return;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) dgain[i] += to_float(dy[i]) * to_float(x[i]) * r;
}

// A row's z is (x - mean) r.
struct Moments {
  float mean, r;
  template <class T>
  float z(const T& x) const {
    return (to_float(x) - mean) * r;
  }
};

// `bias`: null for none.
template <class T, class G>
void shift_row(const T* x, const Gain<G>& gain, const G* bias, const Moments& row, T* y, int64_t n) {
  if (bias) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) store(y[i], row.z(x[i]) * gain[i] + to_float(bias[i]));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) store(y[i], row.z(x[i]) * gain[i]);
  }
}

template <class T>
Moments moments_of(const T* x, int64_t n, float epsilon) {
  const float mean = sum(n, [=](int64_t i) { return to_float(x[i]); }) / static_cast<float>(n);
  const float squares = sum(n, [=](int64_t i) {
    const float value = to_float(x[i]) - mean;
    return value * value;
  });
  return {mean, 1.0f / std::sqrt(squares / static_cast<float>(n) + epsilon)};
}

// `dgain` and `dbias` are added to, but for those that are null.
template <class T, class G>
void layer_norm_row_backward(const T* dy, const T* x, const Gain<G>& gain, const Moments& row, bool accumulate, T* dx,
                             float* dgain, float* dbias, int64_t n) {
  const auto count = static_cast<float>(n);
  const float mean = sum(n, [=](int64_t i) { return gain[i] * to_float(dy[i]); }) / count;
  const float along = sum(n, [=](int64_t i) { return gain[i] * to_float(dy[i]) * row.z(x[i]); }) / count;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float before = accumulate ? to_float(dx[i]) : 0.0f;
    store(dx[i], before + row.r * (gain[i] * to_float(dy[i]) - mean - row.z(x[i]) * along));
  }
  if (dgain && dbias) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      dgain[i] += to_float(dy[i]) * row.z(x[i]);
      dbias[i] += to_float(dy[i]);
    }
  } else if (dgain) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dgain[i] += to_float(dy[i]) * row.z(x[i]);
  } else if (dbias) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dbias[i] += to_float(dy[i]);
  }
}

}  // namespace

Launch bind_rms_norm(const RmsNorm& norm, Operands operands) {
  const auto of = rms_norm_operands(operands);
  operands.done();
  const TensorView x = of.x, gain = of.gain, y = of.y;
  const int64_t n = of.size.cols, heads = of.size.heads;
  float* const rstd = of.rstd;
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_activation(gain.dtype, [&]<class G>() -> Launch {
      return [=, from = Rows<T>(x), to = Rows<T>(y),
              g = Gain<G>{gain.as<G>(), norm.plus_one ? 1.0f : 0.0f}](const RuntimeScalars&) {
        share_rows(x.rows() * heads, n, [&](int64_t i) {
          const int64_t row = i / heads, col = i % heads * n;
          rstd[i] = norm_row(from[row] + col, g, to[row] + col, n, norm.epsilon);
        });
      };
    });
  });
}

uint64_t rms_norm_backward_scratch_bytes(const RmsNormBackward& norm, int64_t rows, int64_t cols) {
  const int64_t blocks = ceil_div(rows, kPartialRows);
  return norm.gain_gradient ? static_cast<uint64_t>(blocks * cols) * sizeof(float) : 0;
}

Launch bind_rms_norm_backward(const RmsNormBackward& norm, Operands operands) {
  const auto of = rms_norm_backward_operands(norm, operands);
  const TensorView dy = of.dy, x = of.x, gain = of.gain, dx = of.dx, dgain = of.dgain;
  const int64_t rows = of.size.rows, cols = of.size.cols, heads = of.size.heads;
  const float* const rstd = of.rstd;
  auto* const partial = reinterpret_cast<float*>(operands.scratch(rms_norm_backward_scratch_bytes(norm, rows, cols)));
  operands.done();
  return dispatch_activation(dy.dtype, [&]<class T>() {
    return dispatch_activation(gain.dtype, [&]<class G>() -> Launch {
      return [=](const RuntimeScalars&) {
        const Rows<T> dy_rows(dy), x_rows(x), dx_rows(dx);
        const Gain<G> g{gain.as<G>(), norm.plus_one ? 1.0f : 0.0f};
        const int64_t blocks = ceil_div(rows, kPartialRows);
        share(blocks, [&](int64_t block) {
          float* const sums = norm.gain_gradient ? partial + block * cols : nullptr;
          if (sums) std::fill_n(sums, cols, 0.0f);
          for (int64_t row = block * kPartialRows; row < std::min(rows, (block + 1) * kPartialRows); row++) {
            const int64_t token = row / heads, col = row % heads * cols;
            norm_row_backward(dy_rows[token] + col, x_rows[token] + col, g, rstd[row], norm.accumulate,
                              dx_rows[token] + col, sums, cols);
            if (norm.restore) scale_row(x_rows[row], g, rstd[row], dy_rows[row], cols);
          }
        });
        if (!norm.gain_gradient) return;
        const Rows<float> partials({reinterpret_cast<std::byte*>(partial), DType::F32, {blocks, cols}, cols});
        dispatch_activation(dgain.dtype, [&]<class D>() { sum_columns(partials, blocks, cols, dgain.as<D>()); });
      };
    });
  });
}

Launch bind_layer_norm(const LayerNorm& norm, Operands operands) {
  const auto of = layer_norm_operands(norm, operands);
  operands.done();
  const TensorView x = of.x, gain = of.gain, bias = of.bias, y = of.y;
  const int64_t rows = of.size.rows, n = of.size.cols, heads = of.size.heads, gains = of.size.gains;
  float* const moments = of.moments;
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_activation(gain.dtype, [&]<class G>() -> Launch {
      return [=, from = Rows<T>(x), to = Rows<T>(y), g = Gain<G>{gain.as<G>(), norm.plus_one ? 1.0f : 0.0f},
              added = norm.bias ? bias.as<G>() : nullptr, epsilon = norm.epsilon](const RuntimeScalars&) {
        share_rows(rows, n, [&](int64_t i) {
          const int64_t row = i / heads, col = i % heads * n, own = i % gains * n;
          const Moments found = moments_of(from[row] + col, n, epsilon);
          moments[i] = found.mean;
          moments[rows + i] = found.r;
          shift_row(from[row] + col, g.from(own), added ? added + own : nullptr, found, to[row] + col, n);
        });
      };
    });
  });
}

// `cols` are the elements of the gain: of one row for each head, a row of x has as many.
uint64_t layer_norm_backward_scratch_bytes(const LayerNormBackward& norm, int64_t rows, int64_t cols) {
  const int64_t sums = (norm.gain_gradient ? 1 : 0) + (norm.bias_gradient ? 1 : 0);
  return static_cast<uint64_t>(sums * ceil_div(rows, kPartialRows) * cols) * sizeof(float);
}

Launch bind_layer_norm_backward(const LayerNormBackward& norm, Operands operands) {
  const auto of = layer_norm_backward_operands(norm, operands);
  const TensorView dy = of.dy, x = of.x, gain = of.gain, bias = of.bias, dx = of.dx, dgain = of.dgain, dbias = of.dbias;
  const int64_t rows = of.size.rows, cols = of.size.cols, heads = of.size.heads, gains = of.size.gains;
  const int64_t sums = gains * cols, blocks = ceil_div(rows / gains, kPartialRows), block_rows = kPartialRows * gains;
  const float* const moments = of.moments;
  auto* const scratch =
      reinterpret_cast<float*>(operands.scratch(layer_norm_backward_scratch_bytes(norm, rows / gains, sums)));
  operands.done();
  float* const of_gain = norm.gain_gradient ? scratch : nullptr;  // by block: its rows' part of dgain
  float* const of_bias = norm.bias_gradient ? scratch + (of_gain ? blocks * sums : 0) : nullptr;
  return dispatch_activation(dy.dtype, [&]<class T>() {
    return dispatch_activation(gain.dtype, [&]<class G>() -> Launch {
      return [=](const RuntimeScalars&) {
        const Rows<T> dy_rows(dy), x_rows(x), dx_rows(dx);
        const Gain<G> g{gain.as<G>(), norm.plus_one ? 1.0f : 0.0f};
        const G* const added = norm.bias ? bias.as<G>() : nullptr;
        share(blocks, [&](int64_t block) {
          float* const gain_sums = of_gain ? of_gain + block * sums : nullptr;
          float* const bias_sums = of_bias ? of_bias + block * sums : nullptr;
          for (float* const part : {gain_sums, bias_sums})
            if (part) std::fill_n(part, sums, 0.0f);
          for (int64_t row = block * block_rows; row < std::min(rows, (block + 1) * block_rows); row++) {
            const int64_t token = row / heads, col = row % heads * cols, own = row % gains * cols;
            const Moments of_row{moments[row], moments[rows + row]};
            layer_norm_row_backward(dy_rows[token] + col, x_rows[token] + col, g.from(own), of_row, norm.accumulate,
                                    dx_rows[token] + col, gain_sums ? gain_sums + own : nullptr,
                                    bias_sums ? bias_sums + own : nullptr, cols);
            if (norm.restore) shift_row(x_rows[row], g, added, of_row, dy_rows[row], cols);
          }
        });
        const auto add_up = [&](float* partial, const TensorView& sum) {
          const Rows<float> partials({reinterpret_cast<std::byte*>(partial), DType::F32, {blocks, sums}, sums});
          dispatch_activation(sum.dtype, [&]<class D>() { sum_columns(partials, blocks, sums, sum.as<D>()); });
        };
        if (of_gain) add_up(of_gain, dgain);
        if (of_bias) add_up(of_bias, dbias);
      };
    });
  });
}

}  // namespace snug::cpu
