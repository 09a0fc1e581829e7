// Computes RMSNorm (Zhang and Sennrich, arXiv:1910.07467).   r = 1 / sqrt(mean(x^2) + epsilon)
//   y = gain x r       dx = r (gain dy - x r^2 mean(gain dy x))       dgain = sum over rows of dy x r
#include "backend/cuda/bulk.cuh"
#include "backend/cuda/columns.cuh"
#include "backend/cuda/facts.h"

namespace snug::cuda {
namespace {

// Takes a block for each row. Threads keep up to kKept groups of a row between the two walks over it and read the
// others again.
constexpr int kKept = 4;

template <int N, class T, class G>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(Rows<T> x, const G* gain, Rows<T> y, float* rstd, int64_t n, float epsilon, float more) {
  __shared__ float shared[32];
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * N, step = int64_t{blockDim.x} * N;
  Pack<float, N> kept[kKept];
  float squares = 0;
  const auto add = [&](const Pack<float, N>& values) {
#pragma unroll
    for (int k = 0; k < N; k++) squares += values[k] * values[k];
  };
#pragma unroll
  for (int i = 0; i < kKept; i++)
    if (first + i * step < n) kept[i] = load_floats<N>(x.at(row, first + i * step));
#pragma unroll
  for (int i = 0; i < kKept; i++)
    if (first + i * step < n) add(kept[i]);
  for (int64_t col = first + kKept * step; col < n; col += step) add(load_floats<N>(x.at(row, col)));

  const float r = 1.0f / sqrtf(block_sum(squares, shared) / static_cast<float>(n) + epsilon);
  if (threadIdx.x == 0) rstd[row] = r;
  const auto put = [&](Pack<float, N> values, int64_t col) {
    const auto factors = load_floats<N>(gain + col);
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = values[k] * r * (factors[k] + more);
    save_floats<N>(y.at(row, col), values);
  };
#pragma unroll
  for (int i = 0; i < kKept; i++)
    if (first + i * step < n) put(kept[i], first + i * step);
  for (int64_t col = first + kKept * step; col < n; col += step) put(load_floats<N>(x.at(row, col)), col);
}

template <class T>
struct Backward {
  Rows<T> dy, x, dx;
  const float* rstd;
  float* partial;  // by block: its rows' part of dgain
  int64_t rows, n, block_rows;
  bool accumulate, restore;
  float more;  // beside the gain's operand: 0 or 1
};

// Takes block_rows rows in a block, one after the other; it reads each twice, and sums their part of dgain in
// `partial`. Without `partial` a block takes one row.
template <int N, class T, class G>
__global__ void __launch_bounds__(kThreads, 5) rms_norm_backward_kernel(Backward<T> op, const G* gain) {
  __shared__ float shared[2][32];
  const int64_t first = int64_t{threadIdx.x} * N, step = int64_t{kThreads} * N;
  const int64_t begin = blockIdx.x * op.block_rows, end = min(op.rows, begin + op.block_rows);
  float* const partial = op.partial ? op.partial + blockIdx.x * op.n : nullptr;
  for (int64_t row = begin; row < end; row++) {
    float dot = 0;
    for (int64_t col = first; col < op.n; col += step) {
      const auto factors = load_floats<N>(gain + col), d = load_floats<N>(op.dy.at(row, col));
      const auto x = load_floats<N>(op.x.at(row, col));
#pragma unroll
      for (int k = 0; k < N; k++) dot += (factors[k] + op.more) * d[k] * x[k];
    }
    const float r = op.rstd[row];
    const float slope = r * r * (block_sum(dot, shared[row % 2]) / static_cast<float>(op.n));
    for (int64_t col = first; col < op.n; col += step) {
      const auto factors = load_floats<N>(gain + col), d = load_floats<N>(op.dy.at(row, col));
      const auto x = load_floats<N>(op.x.at(row, col));
      Pack<float, N> result{};
      if (op.accumulate) result = load_floats<N>(op.dx.at(row, col));
#pragma unroll
      for (int k = 0; k < N; k++) result[k] += r * ((factors[k] + op.more) * d[k] - x[k] * slope);
      save_floats<N>(op.dx.at(row, col), result);
      if (op.restore) {
        Pack<float, N> y;
#pragma unroll
        for (int k = 0; k < N; k++) y[k] = x[k] * r * (factors[k] + op.more);
        save_floats<N>(op.dy.at(row, col), y);
      }
      if (!partial) continue;
      auto sums = row > begin ? load<N>(partial + col) : Pack<float, N>{};
#pragma unroll
      for (int k = 0; k < N; k++) sums[k] += d[k] * x[k] * r;
      save<N>(partial + col, sums);
    }
  }
}

// This is the number of rows on their way, in a kernel for dgain of rows of at most one group for each thread: it reads
// a row once, the rows after it are on their way to shared memory meanwhile, each thread's groups by that thread, and
// sums stay in registers.
template <int kRowThreads>
constexpr int kAhead = kRowThreads == 512 ? 4 : 2;  // rows; of 1024 threads two fill what a block has

template <class T>
struct RowGroup {
  Raw<T, kWide> dy, x, dx;
};

template <int kRowThreads, class T, class G>
__global__ void __launch_bounds__(kRowThreads, 1024 / kRowThreads)
    rms_norm_backward_gain_kernel(Backward<T> op, const G* gain) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  __shared__ float shared[2][32];
  const int64_t col = int64_t{threadIdx.x} * kWide, begin = blockIdx.x * op.block_rows;
  const int rows = static_cast<int>(min(op.block_rows, op.rows - begin));
  const bool inside = col < op.n;
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
  for (int slot = 0; slot < kAhead<kRowThreads>; slot++) fetch(slot);
  Pack<float, kWide> dgain{};
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float rstd = 0;  // lane l has that of row l, l + 32, ...: one that all fetch alike is waited for at once
  for (int row = 0; row < rows; row++) {
    if (row % 32 == 0) rstd = op.rstd[begin + min(row + lane, rows - 1)];
    const int slot = row % kAhead<kRowThreads>;
    wait_fetches<kAhead<kRowThreads> - 1>();
    RowGroup<T> group = {};
    if (inside) {
      const auto* const from = fetched + slot * 3 * kRowThreads;
      group.dy = from[0];
      group.x = from[kRowThreads];
      if (op.accumulate) group.dx = from[2 * kRowThreads];
    }
    float dot = 0;
#pragma unroll
    for (int k = 0; k < kWide; k++)
      dot += (to_float(gains[k]) + op.more) * to_float(group.dy[k]) * to_float(group.x[k]);
    fetch(slot);
    const float r = __shfl_sync(kAll, rstd, row % 32);
    const float slope = r * r * (block_sum(dot, shared[row % 2]) / static_cast<float>(op.n));
    if (inside) {
      group.dy.keep_words();
      group.x.keep_words();
      gains.keep_words();
      Pack<float, kWide> result, y;
#pragma unroll
      for (int k = 0; k < kWide; k++) {
        const float factor = to_float(gains[k]) + op.more, d = to_float(group.dy[k]), of_x = to_float(group.x[k]);
        result[k] = to_float(group.dx[k]) + r * (factor * d - of_x * slope);  // 0 where there is nothing to add to
        y[k] = of_x * r * factor;
        dgain[k] += d * of_x * r;
      }
      save_floats<kWide>(dx, result);
      if (op.restore) save_floats<kWide>(dy, y);
    }
    dy += op.dy.stride;
    dx += op.dx.stride;
  }
  if (inside) save<kWide>(op.partial + blockIdx.x * op.n + col, dgain);
}

template <int kRowThreads, class T>
constexpr int kFetched = kAhead<kRowThreads>* kRowThreads* static_cast<int>(sizeof(RowGroup<T>));  // bytes of a block

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

// ---- Heads: a warp for each head of a token, element by element
// ------------------------------------------------------

constexpr int kHeadWarps = 8;

// Says where a head is among all heads.
struct HeadPlace {
  __device__ HeadPlace(int64_t number, int64_t heads, int64_t n) : token(number / heads), column(number % heads * n) {}
  int64_t token, column;
};

template <class T, class G>
__global__ void __launch_bounds__(32 * kHeadWarps)
    head_norm_kernel(Rows<T> x, const G* gain, Rows<T> y, float* rstd, int64_t count, int64_t heads, int64_t n,
                     float epsilon, float more) {
  const int64_t number = int64_t{blockIdx.x} * kHeadWarps + threadIdx.x / 32;
  if (number >= count) return;
  const HeadPlace at(number, heads, n);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float squares = 0;
  for (int64_t i = lane; i < n; i += 32) {
    const float value = to_float(*x.at(at.token, at.column + i));
    squares += value * value;
  }
  const float r = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(n) + epsilon);
  if (lane == 0) rstd[number] = r;
  for (int64_t i = lane; i < n; i += 32)
    store(*y.at(at.token, at.column + i), to_float(*x.at(at.token, at.column + i)) * r * (to_float(gain[i]) + more));
}

template <class T, class G>
__global__ void __launch_bounds__(32 * kHeadWarps)
    head_norm_backward_kernel(Backward<T> op, const G* gain, int64_t heads) {
  const int64_t number = int64_t{blockIdx.x} * kHeadWarps + threadIdx.x / 32;
  if (number >= op.rows) return;
  const HeadPlace at(number, heads, op.n);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float dot = 0;
  for (int64_t i = lane; i < op.n; i += 32)
    dot += (to_float(gain[i]) + op.more) * to_float(*op.dy.at(at.token, at.column + i)) *
           to_float(*op.x.at(at.token, at.column + i));
  const float r = op.rstd[number], slope = r * r * (warp_sum(dot) / static_cast<float>(op.n));
  for (int64_t i = lane; i < op.n; i += 32) {
    T& dx = *op.dx.at(at.token, at.column + i);
    const float before = op.accumulate ? to_float(dx) : 0.0f;
    const float factor = (to_float(gain[i]) + op.more) * to_float(*op.dy.at(at.token, at.column + i));
    store(dx, before + r * (factor - to_float(*op.x.at(at.token, at.column + i)) * slope));
  }
}

// Sums the part of dgain of a block's heads, one after the other.
template <class T>
__global__ void __launch_bounds__(kThreads) head_gain_kernel(Backward<T> op, int64_t heads) {
  const int64_t begin = blockIdx.x * op.block_rows, end = min(op.rows, begin + op.block_rows);
  for (int64_t i = threadIdx.x; i < op.n; i += kThreads) {
    float sum = 0;
    for (int64_t number = begin; number < end; number++) {
      const HeadPlace at(number, heads, op.n);
      sum +=
          to_float(*op.dy.at(at.token, at.column + i)) * to_float(*op.x.at(at.token, at.column + i)) * op.rstd[number];
    }
    op.partial[blockIdx.x * op.n + i] = sum;
  }
}

// Returns the number of threads that have a group of a row each, up to a block's most.
unsigned threads_for(int64_t groups, int64_t most) {
  return static_cast<unsigned>(std::clamp<int64_t>(round_up(groups, 32), 32, most));
}

}  // namespace

Launch bind_rms_norm(const RmsNorm& norm, Operands operands, cudaStream_t stream) {
  const auto of = rms_norm_operands(operands);
  operands.done();
  const TensorView x = of.x, gain = of.gain, y = of.y;
  const int64_t count = of.size.rows, n = of.size.cols, heads = of.size.heads;
  float* const rstd = of.rstd;
  const float more = norm.plus_one ? 1.0f : 0.0f;
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_activation(gain.dtype, [&]<class G>() -> Launch {
      if (heads > 1)
        return [=](const RuntimeScalars&) {
          head_norm_kernel<<<blocks_of(count, kHeadWarps), 32 * kHeadWarps, 0, stream>>>(
              Rows<T>(x), gain.as<G>(), Rows<T>(y), rstd, count, heads, n, norm.epsilon, more);
          check_launch("rms_norm");
        };
      return dispatch_wide(wide({x, gain, y}), [&]<int N>() -> Launch {
        return [=](const RuntimeScalars&) {
          const unsigned threads = threads_for(ceil_div(x.cols() / N, kKept), kThreads);
          rms_norm_kernel<N><<<static_cast<unsigned>(x.rows()), threads, 0, stream>>>(
              Rows<T>(x), gain.as<G>(), Rows<T>(y), rstd, x.cols(), norm.epsilon, more);
          check_launch("rms_norm");
        };
      });
    });
  });
}

Launch bind_rms_norm_backward(const RmsNormBackward& norm, Operands operands, cudaStream_t stream) {
  const auto of = rms_norm_backward_operands(norm, operands);
  const TensorView dy = of.dy, x = of.x, gain = of.gain, dx = of.dx, dgain = of.dgain;
  const int64_t rows = of.size.rows, cols = of.size.cols, heads = of.size.heads;
  const float* const rstd = of.rstd;
  auto* const partial =
      reinterpret_cast<float*>(operands.scratch(rms_norm_backward_scratch_bytes(norm, dy.dtype, rows, cols)));
  operands.done();
  const int64_t block_rows = norm.gain_gradient ? norm_block_rows(rows, cols, dy.dtype) : 1,
                blocks = ceil_div(rows, block_rows);
  const auto sum_partials = [=] {
    const TensorView partials{reinterpret_cast<std::byte*>(partial), DType::F32, {blocks, cols}, cols};
    dispatch_activation(dgain.dtype, [&]<class D>() { sum_columns<float, D>(partials, dgain, stream); });
  };
  return dispatch_activation(dy.dtype, [&]<class T>() {
    return dispatch_activation(gain.dtype, [&]<class G>() -> Launch {
      const Backward<T> op{Rows<T>(dy),
                           Rows<T>(x),
                           Rows<T>(dx),
                           rstd,
                           partial,
                           rows,
                           cols,
                           block_rows,
                           norm.accumulate,
                           norm.restore,
                           norm.plus_one ? 1.0f : 0.0f};
      if (heads > 1)
        return [=](const RuntimeScalars&) {
          head_norm_backward_kernel<<<blocks_of(rows, kHeadWarps), 32 * kHeadWarps, 0, stream>>>(op, gain.as<G>(),
                                                                                                 heads);
          if (partial) head_gain_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(op, heads);
          check_launch("rms_norm_backward");
          if (partial) sum_partials();
        };
      return dispatch_wide(wide({dy, x, gain, dx}), [&]<int N>() -> Launch {
        constexpr bool kMayHold = N == kWide && sizeof(T) == 2;
        if constexpr (kMayHold)
          if (partial)
            with_row_threads(cols, [&]<int kRowThreads>() {
              allow_shared(rms_norm_backward_gain_kernel<kRowThreads, T, G>, kFetched<kRowThreads, T>);
            });
        return [=](const RuntimeScalars&) {
          const auto launch = [&](const auto& kernel, int threads, size_t shared) {
            kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared, stream>>>(op, gain.as<G>());
          };
          bool held = false;
          if constexpr (kMayHold)
            held = partial && with_row_threads(cols, [&]<int kRowThreads>() {
                     launch(rms_norm_backward_gain_kernel<kRowThreads, T, G>, kRowThreads, kFetched<kRowThreads, T>);
                   });
          if (!held) launch(rms_norm_backward_kernel<N, T, G>, kThreads, 0);
          check_launch("rms_norm_backward");
          if (partial) sum_partials();
        };
      });
    });
  });
}

}  // namespace snug::cuda
