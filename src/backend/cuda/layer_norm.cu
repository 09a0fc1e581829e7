// Computes LayerNorm (Ba et al., arXiv:1607.06450).   z = (x - mean) r, r = 1 / sqrt(mean((x - mean)^2) + epsilon)
//   y = gain z + bias   dx = r (gain dy - mean(gain dy) - z mean(gain dy z))   dgain = sum of dy z   dbias = sum of dy
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/columns.cuh"
#include "backend/cuda/facts.h"

namespace snug::cuda {
namespace {

// Says where a row, or a head of one, is.
struct RowPlace {
  __device__ RowPlace(int64_t number, int64_t heads, int64_t n)
      : token(heads == 1 ? number : number / heads), column(heads == 1 ? 0 : number % heads * n) {}
  int64_t token, column;
};

template <class T>
struct Forward {
  Rows<T> x, y;
  float* moments;  // means, then rstd
  int64_t rows, heads, gains, n;
  float epsilon, more;  // more: beside the gain's operand, 0 or 1
};

// Takes a block for each row or head. Threads keep up to kKept groups of a row between the walks over it and read the
// others again.
constexpr int kKept = 4;

template <int N, class T, class G>
__global__ void __launch_bounds__(kThreads) layer_norm_kernel(Forward<T> op, const G* gain, const G* bias) {
  __shared__ float shared[2][32];
  const int64_t number = blockIdx.x, first = int64_t{threadIdx.x} * N, step = int64_t{blockDim.x} * N;
  const RowPlace at(number, op.heads, op.n);
  const int64_t own = op.gains == 1 ? 0 : at.column;  // where the head's row of gain and bias begins
  const auto count = static_cast<float>(op.n);
  const auto load_x = [&](int64_t col) { return load_floats<N>(op.x.at(at.token, at.column + col)); };
  Pack<float, N> kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; i++)
    if (first + i * step < op.n) kept[i] = load_x(first + i * step);
  // Calls f(values, col) for every group of this thread.
  const auto each = [&](const auto& f) {
#pragma unroll
    for (int i = 0; i < kKept; i++)
      if (first + i * step < op.n) f(kept[i], first + i * step);
    for (int64_t col = first + kKept * step; col < op.n; col += step) f(load_x(col), col);
  };
  float total = 0, squares = 0;
  each([&](const Pack<float, N>& values, int64_t) {
#pragma unroll
    for (int k = 0; k < N; k++) total += values[k];
  });
  const float mean = block_sum(total, shared[0]) / count;
  each([&](const Pack<float, N>& values, int64_t) {
#pragma unroll
    for (int k = 0; k < N; k++) squares += (values[k] - mean) * (values[k] - mean);
  });
  const float r = 1.0f / sqrtf(block_sum(squares, shared[1]) / count + op.epsilon);
  if (threadIdx.x == 0) {
    op.moments[number] = mean;
    op.moments[op.rows + number] = r;
  }
  each([&](Pack<float, N> values, int64_t col) {
    const auto factors = load_floats<N>(gain + own + col);
    Pack<float, N> added{};
    if (bias) added = load_floats<N>(bias + own + col);
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = (values[k] - mean) * r * (factors[k] + op.more) + added[k];
    save_floats<N>(op.y.at(at.token, at.column + col), values);
  });
}

template <class T>
struct Backward {
  Rows<T> dy, x, dx;
  const float* moments;
  float *dgain, *dbias;  // by block: its rows' parts of them, where they are asked for
  int64_t rows, heads, gains, n, block_rows;
  bool accumulate, restore;
  float more;
};

// Takes block_rows rows or heads in a block, one after the other; it reads each twice, and sums their parts of dgain
// and dbias. Without these a block takes one row. Where each head has a row of the gain, blockIdx.y is that row, and a
// block takes this head of as many tokens.
template <int N, class T, class G>
__global__ void __launch_bounds__(kThreads) layer_norm_backward_kernel(Backward<T> op, const G* gain, const G* bias) {
  __shared__ float shared[2][2][32];
  const int64_t first = int64_t{threadIdx.x} * N, step = int64_t{kThreads} * N;
  const int64_t begin = blockIdx.x * op.block_rows, end = min(op.rows / op.gains, begin + op.block_rows);
  const int64_t own = blockIdx.y * op.n;  // where the row of gain and bias begins
  const auto count = static_cast<float>(op.n);
  for (int64_t row = begin; row < end; row++) {
    const int64_t number = row * op.gains + blockIdx.y;
    const RowPlace at(number, op.heads, op.n);
    const float mean = op.moments[number], r = op.moments[op.rows + number];
    float total = 0, along = 0;
    for (int64_t col = first; col < op.n; col += step) {
      const auto factors = load_floats<N>(gain + own + col), d = load_floats<N>(op.dy.at(at.token, at.column + col));
      const auto x = load_floats<N>(op.x.at(at.token, at.column + col));
#pragma unroll
      for (int k = 0; k < N; k++) {
        const float scaled = (factors[k] + op.more) * d[k];
        total += scaled;
        along += scaled * ((x[k] - mean) * r);
      }
    }
    total = block_sum(total, shared[row % 2][0]) / count;
    along = block_sum(along, shared[row % 2][1]) / count;
    for (int64_t col = first; col < op.n; col += step) {
      const auto factors = load_floats<N>(gain + own + col), d = load_floats<N>(op.dy.at(at.token, at.column + col));
      auto z = load_floats<N>(op.x.at(at.token, at.column + col));
      T* const dx = op.dx.at(at.token, at.column + col);
      Pack<float, N> result{};
      if (op.accumulate) result = load_floats<N>(dx);
#pragma unroll
      for (int k = 0; k < N; k++) {
        z[k] = (z[k] - mean) * r;
        result[k] += r * ((factors[k] + op.more) * d[k] - total - z[k] * along);
      }
      save_floats<N>(dx, result);
      const auto add = [&](float* partial, const auto& value) {
        if (!partial) return;
        partial += blockIdx.x * op.gains * op.n + own + col;
        auto sums = row > begin ? load<N>(partial) : Pack<float, N>{};
#pragma unroll
        for (int k = 0; k < N; k++) sums[k] += value(k);
        save<N>(partial, sums);
      };
      add(op.dgain, [&](int k) { return d[k] * z[k]; });
      add(op.dbias, [&](int k) { return d[k]; });
      if (!op.restore) continue;
      Pack<float, N> y{};
      if (bias) y = load_floats<N>(bias + own + col);
#pragma unroll
      for (int k = 0; k < N; k++) y[k] = z[k] * (factors[k] + op.more) + y[k];
      save_floats<N>(op.dy.at(at.token, at.column + col), y);
    }
  }
}

// For gradients of gain and bias over rows of at most one group for each thread: a row is read once, the rows after it
// are on their way to shared memory meanwhile, each thread's groups by that thread, and sums stay in registers.
constexpr int kAhead = 2;  // rows

template <class T>
struct RowGroup {
  Raw<T, kWide> dy, x, dx;
};

template <int kRowThreads, class T, class G>
__global__ void __launch_bounds__(kRowThreads, 1024 / kRowThreads)
    layer_norm_backward_sums_kernel(Backward<T> op, const G* gain, const G* bias) {
  __shared__ float shared[2][2][32];
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  const int64_t col = int64_t{threadIdx.x} * kWide, begin = blockIdx.x * op.block_rows;
  const int rows = static_cast<int>(min(op.block_rows, op.rows - begin));
  const bool inside = col < op.n;
  const auto count = static_cast<float>(op.n);
  T *dy = op.dy.at(begin, col), *dx = op.dx.at(begin, col);
  const T *next_dy = dy, *next_x = op.x.at(begin, col), *next_dx = dx;
  Raw<G, kWide> gains = {};
  if (inside) gains.fetch(gain + col);
  auto* const fetched = reinterpret_cast<Raw<T, kWide>*>(shared_bytes) + threadIdx.x;  // by slot and operand
  int left = rows;                                                                     // rows to be fetched
  const auto fetch = [&](int slot) {
    if (inside && left > 0) {
      auto* const to = fetched + slot * 3 * kRowThreads;
      fetch_group(to, next_dy);
      fetch_group(to + kRowThreads, next_x);
      if (op.accumulate) fetch_group(to + 2 * kRowThreads, next_dx);
      next_dy += op.dy.stride;
      next_x += op.x.stride;
      next_dx += op.dx.stride;
      left--;
    }
    commit_fetches();
  };
#pragma unroll
  for (int slot = 0; slot < kAhead; slot++) fetch(slot);
  Pack<float, kWide> dgain{}, dbias{};
  for (int row = 0; row < rows; row++) {
    const float mean = op.moments[begin + row], r = op.moments[op.rows + begin + row];
    const int slot = row % kAhead;
    wait_fetches<kAhead - 1>();
    RowGroup<T> group = {};
    if (inside) {
      const auto* const from = fetched + slot * 3 * kRowThreads;
      group.dy = from[0];
      group.x = from[kRowThreads];
      if (op.accumulate) group.dx = from[2 * kRowThreads];
    }
    float total = 0, along = 0;
    if (inside) {
#pragma unroll
      for (int k = 0; k < kWide; k++) {
        const float scaled = (to_float(gains[k]) + op.more) * to_float(group.dy[k]);
        total += scaled;
        along += scaled * ((to_float(group.x[k]) - mean) * r);
      }
    }
    fetch(slot);
    total = block_sum(total, shared[row % 2][0]) / count;
    along = block_sum(along, shared[row % 2][1]) / count;
    if (inside) {
      group.dy.keep_words();
      group.x.keep_words();
      gains.keep_words();
      Pack<float, kWide> result, y{};
      if (op.restore && bias) y = load_floats<kWide>(bias + col);
#pragma unroll
      for (int k = 0; k < kWide; k++) {
        const float factor = to_float(gains[k]) + op.more, d = to_float(group.dy[k]);
        const float z = (to_float(group.x[k]) - mean) * r;
        result[k] = to_float(group.dx[k]) + r * (factor * d - total - z * along);  // 0 where nothing is added to
        y[k] = z * factor + y[k];
        dgain[k] += d * z;
        dbias[k] += d;
      }
      save_floats<kWide>(dx, result);
      if (op.restore) save_floats<kWide>(dy, y);
    }
    dy += op.dy.stride;
    dx += op.dx.stride;
  }
  if (!inside) return;
  if (op.dgain) save<kWide>(op.dgain + blockIdx.x * op.n + col, dgain);
  if (op.dbias) save<kWide>(op.dbias + blockIdx.x * op.n + col, dbias);
}

template <int kRowThreads, class T>
constexpr int kFetched = kAhead* kRowThreads* static_cast<int>(sizeof(RowGroup<T>));  // bytes of a block

// Calls f.template operator()<threads>() for the smallest block that has a thread for each group of such a row; returns
// false if none has.
template <class F>
bool with_row_threads(int64_t cols, const F& f) {
  if (cols > 1024 * kWide) return false;
  if (cols <= 256 * kWide)
    f.template operator()<256>();
  else if (cols <= 512 * kWide)
    f.template operator()<512>();
  else
    f.template operator()<1024>();
  return true;
}

// Launches the kernel that reads rows once if there is one for them; returns false if not. `prepare`: nothing is
// launched, but made ready to be.
template <int N, class T, class G>
bool launch_sums(const Backward<T>& op, const G* gain, const G* bias, cudaStream_t stream, bool prepare) {
  if constexpr (N == kWide && sizeof(T) == 2) {
    if (op.heads > 1 || !(op.dgain || op.dbias)) return false;
    return with_row_threads(op.n, [&]<int kRowThreads>() {
      const auto kernel = layer_norm_backward_sums_kernel<kRowThreads, T, G>;
      if (prepare)
        allow_shared(kernel, kFetched<kRowThreads, T>);
      else
        kernel<<<blocks_of(op.rows, op.block_rows), kRowThreads, kFetched<kRowThreads, T>, stream>>>(op, gain, bias);
    });
  }
  return false;
}

}  // namespace

Launch bind_layer_norm(const LayerNorm& norm, Operands operands, cudaStream_t stream) {
  const auto of = layer_norm_operands(norm, operands);
  operands.done();
  const TensorView x = of.x, gain = of.gain, bias = of.bias, y = of.y;
  const int64_t rows = of.size.rows, n = of.size.cols, heads = of.size.heads, gains = of.size.gains;
  float* const moments = of.moments;
  const bool groups = wide({x, gain, norm.bias ? bias : gain, y}) && n % kWide == 0;
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_activation(gain.dtype, [&]<class G>() {
      return dispatch_wide(groups, [&]<int N>() -> Launch {
        const Forward<T> op{
            Rows<T>(x), Rows<T>(y), moments, rows, heads, gains, n, norm.epsilon, norm.plus_one ? 1.0f : 0.0f};
        return [=, of_gain = gain.as<G>(), of_bias = norm.bias ? bias.as<G>() : nullptr](const RuntimeScalars&) {
          const int64_t threads = round_up(ceil_div(ceil_div(n, N), kKept), 32);
          layer_norm_kernel<N>
              <<<static_cast<unsigned>(rows), static_cast<unsigned>(std::clamp<int64_t>(threads, 32, kThreads)), 0,
                 stream>>>(op, of_gain, of_bias);
          check_launch("layer_norm");
        };
      });
    });
  });
}

Launch bind_layer_norm_backward(const LayerNormBackward& norm, Operands operands, cudaStream_t stream) {
  const auto of = layer_norm_backward_operands(norm, operands);
  const TensorView dy = of.dy, x = of.x, gain = of.gain, bias = of.bias, dx = of.dx, dgain = of.dgain, dbias = of.dbias;
  const int64_t rows = of.size.rows, cols = of.size.cols, heads = of.size.heads, gains = of.size.gains;
  const int64_t gain_rows = rows / gains, sums = gains * cols;  // rows of each row of the gain, and elements of these
  const float* const moments = of.moments;
  auto* const scratch =
      reinterpret_cast<float*>(operands.scratch(layer_norm_backward_scratch_bytes(norm, dy.dtype, gain_rows, sums)));
  operands.done();
  const bool adds = norm.gain_gradient || norm.bias_gradient;
  const int64_t block_rows = adds ? norm_block_rows(gain_rows, sums, dy.dtype) : 1,
                blocks = ceil_div(gain_rows, block_rows);
  float* const of_gain = norm.gain_gradient ? scratch : nullptr;
  float* const of_bias = norm.bias_gradient ? scratch + (of_gain ? blocks * sums : 0) : nullptr;
  const auto sum_partials = [=](float* partial, const TensorView& sum) {
    const TensorView partials{reinterpret_cast<std::byte*>(partial), DType::F32, {blocks, sums}, sums};
    dispatch_activation(sum.dtype, [&]<class D>() { sum_columns<float, D>(partials, sum, stream); });
  };
  const bool groups = wide({dy, x, gain, norm.bias ? bias : gain, dx}) && cols % kWide == 0;
  return dispatch_activation(dy.dtype, [&]<class T>() {
    return dispatch_activation(gain.dtype, [&]<class G>() {
      return dispatch_wide(groups, [&]<int N>() -> Launch {
        const Backward<T> op{Rows<T>(dy),  Rows<T>(x),
                             Rows<T>(dx),  moments,
                             of_gain,      of_bias,
                             rows,         heads,
                             gains,        cols,
                             block_rows,   norm.accumulate,
                             norm.restore, norm.plus_one ? 1.0f : 0.0f};
        const G *const factors = gain.as<G>(), *const added = norm.bias ? bias.as<G>() : nullptr;
        launch_sums<N>(op, factors, added, stream, true);
        return [=](const RuntimeScalars&) {
          if (!launch_sums<N>(op, factors, added, stream, false))
            layer_norm_backward_kernel<N>
                <<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(gains)), kThreads, 0, stream>>>(
                    op, factors, added);
          check_launch("layer_norm_backward");
          if (of_gain) sum_partials(of_gain, dgain);
          if (of_bias) sum_partials(of_bias, dbias);
        };
      });
    });
  });
}

}  // namespace snug::cuda
