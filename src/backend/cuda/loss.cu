// Computes cross-entropy over a vocabulary, row by row, and the sum of its losses.
//   loss = log(sum exp(x - m)) + m - x[target], m = max x       dx = (exp(x - m) / sum exp(x - m) - onehot) scale
// Both are multiplied by the row's weight. Label smoothing and z-loss add their terms (program/ops.h).
#include <cooperative_groups.h>

#include "backend/cuda/bulk.cuh"
#include "backend/cuda/launches.cuh"

namespace snug::cuda {
namespace {

constexpr int kLossThreads = 1024;

// Holds the largest number of a part of a row and the sum of exponentials relative to it.
struct Softmax {
  float maximum = -INFINITY, sum = 0;
};

template <class T>
__device__ Softmax merged(const Softmax& a, const Softmax& b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  if (maximum == -INFINITY) return {maximum, a.sum + b.sum};
  return {maximum, a.sum * exponential<T>(a.maximum - maximum) + b.sum * exponential<T>(b.maximum - maximum)};
}

template <class T>
__device__ Softmax warp_reduce(Softmax x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    x = merged<T>(x, {__shfl_down_sync(kAll, x.maximum, step), __shfl_down_sync(kAll, x.sum, step)});
  return x;
}

// Returns log(sum exp) - hit, times the row's weight.
__device__ inline float loss_of(const Softmax& all, float hit, float weight) {
  const double loss = log(static_cast<double>(all.sum)) + static_cast<double>(all.maximum) - static_cast<double>(hit);
  return static_cast<float>(static_cast<double>(weight) * loss);
}

// Takes a block for each row; the second walk over the row finds it in the L2 cache. `kTerms` says that there is label
// smoothing or z-loss.
template <int N, bool kTerms, class T>
__global__ void __launch_bounds__(kLossThreads)
    cross_entropy_kernel(Rows<T> logits, int64_t vocabulary, const int32_t* targets, const float* weights, float* loss,
                         int64_t active, float loss_scale, CrossEntropy op) {
  __shared__ Softmax shared[kLossThreads / 32];
  __shared__ float sums[kTerms ? 32 : 1];
  const float cap = op.cap;
  const bool gradient = op.gradient;
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * N, step = int64_t{kLossThreads} * N;
  T* const x = logits.at(row, 0);
  if (row >= active) {
    if (threadIdx.x == 0) loss[row] = 0;
    for (int64_t col = first; gradient && col < vocabulary; col += step) save<N>(x + col, Pack<T, N>{});
    return;
  }
  const int64_t target = targets[row];
  const bool known = 0 <= target && target < vocabulary;
  const float hit = known ? capped(to_float(x[target]), cap) : __int_as_float(0x7fffffff);

  Softmax mine;
  float logit_sum = 0;
#pragma unroll 4
  for (int64_t col = first; col < vocabulary; col += step) {
    auto values = load_floats<N>(x + col);
#pragma unroll
    for (int k = 0; k < N; k++) {
      values[k] = capped(values[k], cap);
      if (kTerms) logit_sum += values[k];
    }
    float maximum = mine.maximum;
#pragma unroll
    for (int k = 0; k < N; k++) maximum = fmaxf(maximum, values[k]);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < N; k++) sum += exponential<T>(values[k] - maximum);
    mine.sum = mine.sum * exponential<T>(mine.maximum - maximum) + sum;
    mine.maximum = maximum;
  }
  mine = warp_reduce<T>(mine);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();  // all have read the target's logit too
  if (threadIdx.x < 32) {
    mine = warp_reduce<T>(shared[threadIdx.x]);
    if (threadIdx.x == 0) shared[0] = mine;
  }
  __syncthreads();
  const float maximum = shared[0].maximum, total = shared[0].sum;
  float factor = 1, share = 0, rest = 1;
  if constexpr (kTerms) {
    const double lse = log(static_cast<double>(total)) + static_cast<double>(maximum);
    const double e = static_cast<double>(op.smoothing), z = static_cast<double>(op.z_loss);
    const double mean = static_cast<double>(block_sum(logit_sum, sums)) / static_cast<double>(vocabulary);
    const double terms = lse - (1 - e) * static_cast<double>(hit) - (e > 0 ? e * mean : 0) + z * lse * lse;
    if (threadIdx.x == 0) loss[row] = static_cast<float>(static_cast<double>(weights[row]) * terms);
    factor = 1.0f + 2.0f * op.z_loss * static_cast<float>(lse);
    share = op.smoothing / static_cast<float>(vocabulary);
    rest = 1.0f - op.smoothing;
  } else if (threadIdx.x == 0) {
    loss[row] = loss_of({maximum, total}, hit, weights[row]);
  }
  if (!gradient) return;
  const float inverse = 1.0f / total, scale = loss_scale * weights[row];
#pragma unroll 4
  for (int64_t col = first; col < vocabulary; col += step) {
    auto values = load_floats<N>(x + col);
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float y = capped(values[k], cap);
      float softmax = exponential<T>(y - maximum) * inverse;
      if (kTerms) softmax = softmax * factor - share;
      values[k] = (col + k == target ? softmax - rest : softmax) * scale * cap_slope(y, cap);
    }
    save_floats<N>(x + col, values);
  }
}

// ---- Rows of bf16 that a cluster of blocks holds in its registers, so that they are read once -----------------------

constexpr int kClusterThreads = 512, kGroupsPerThread = 8, kMaxClusterBlocks = 8;
constexpr uint32_t kNone = 0xff80ff80u;  // negative infinities
constexpr int64_t kElementsPerBlock = int64_t{kClusterThreads} * kGroupsPerThread * kWide;
constexpr int kBlockBytes = static_cast<int>(kElementsPerBlock * sizeof(BFloat16));

// Returns the larger of the upper and of the lower halves; it ignores NaN.
__device__ inline uint32_t larger_two(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
// Returns e^x; 0 below the normal numbers.
__device__ inline float fast_exp(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 0x1.715476p0f));
  return y;
}

using RegisterGroup = Raw<BFloat16, kWide>;

// Says which numbers of a row a block, and one of its threads, have: one chunk of every `step` numbers.
struct RowPart {
  static constexpr int kChunk = kClusterThreads * kWide;
  __device__ explicit RowPart(int vocabulary)
      : vocabulary(vocabulary),
        begin(static_cast<int>(blockIdx.y) * kChunk),
        first(begin + static_cast<int>(threadIdx.x) * kWide),
        step(static_cast<int>(gridDim.y) * kChunk) {}
  __device__ bool inside(int i) const { return first + i * step < vocabulary; }
  // Fetches the block's numbers into shared memory; called by one thread.
  __device__ void fetch(const BFloat16* row, uint32_t to, uint32_t barrier) const {
    int count = 0;
    for (int at = begin; at < vocabulary; at += step) count += min(kChunk, vocabulary - at);
    arrive_and_expect(barrier, count * 2);
    for (int at = begin; at < vocabulary; at += step, to += kChunk * 2)
      fetch_bytes(to, row + at, min(kChunk, vocabulary - at) * 2, barrier);
  }
  int vocabulary, begin, first, step;
};

// Returns the softmax of the numbers in a warp's registers.
__device__ inline Softmax warp_softmax(const RegisterGroup (&groups)[kGroupsPerThread]) {
  uint32_t largest = 0xff7fff7fu;  // the least numbers: of infinities too, so that nothing else in a part is no NaN
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; i++)
#pragma unroll
    for (int k = 0; k < RegisterGroup::kWords; k++) largest = larger_two(largest, groups[i].words[k]);
  const float maximum = warp_max(fmaxf(__uint_as_float(largest << 16), __uint_as_float(largest & 0xffff0000u)));
  float sums[2] = {};
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; i++) {
    const auto values = groups[i].floats();
#pragma unroll
    for (int k = 0; k < kWide; k++) sums[k % 2] += fast_exp(values[k] - maximum);
  }
  return {maximum, warp_sum(sums[0] + sums[1])};
}

__device__ inline void save_gradient(BFloat16* row, const RowPart& part,
                                     const RegisterGroup (&groups)[kGroupsPerThread], float maximum, float factor,
                                     int target, float scale) {
#pragma unroll
  for (int i = 0; i < kGroupsPerThread; i++) {
    if (!part.inside(i)) break;
    const int at = part.first + i * part.step, here = target - at;
    auto values = groups[i].floats();
#pragma unroll
    for (int k = 0; k < kWide; k++) values[k] = fast_exp(values[k] - maximum) * factor;
    if (0 <= here && here < kWide)
#pragma unroll
      for (int k = 0; k < kWide; k++) values[k] -= k == here ? scale : 0.0f;
    save_floats<kWide>(row + at, values);
  }
}

// Takes one row after the other in a column of blocks, which are a cluster: while it works on one, the next comes into
// shared memory. Maxima and sums are exchanged by barriers that wait for those of all blocks. There are two, one for
// every other row, as a block that has all maxima and sums of a row may send the next row's before another block has
// read.
__global__ void __launch_bounds__(kClusterThreads, 2)
    cluster_cross_entropy_kernel(Rows<BFloat16> logits, int rows, int vocabulary, const int32_t* targets,
                                 const float* weights, float* loss, int active, bool gradient, float loss_scale) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  __shared__ Softmax warp_softmaxes[kClusterThreads / 32], block_softmaxes[2][kMaxClusterBlocks];
  __shared__ uint64_t row_barrier, block_barriers[2];
  const int blocks = static_cast<int>(gridDim.y), rank = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), stride = static_cast<int>(gridDim.x);
  const RowPart part(vocabulary);
  for (int row = active + static_cast<int>(blockIdx.x); row < rows; row += stride) {
    if (rank == 0 && thread == 0) loss[row] = 0;
    for (int i = 0; gradient && part.inside(i); i++)
      save<kWide>(logits.at(row, part.first + i * part.step), Pack<BFloat16, kWide>{});
  }

  const auto* const fetched = reinterpret_cast<const BFloat16*>(shared_bytes);
  const uint32_t row_ready = shared_address(&row_barrier);
  const auto fetch = [&](int row) {
    if (thread == 0 && row < active) part.fetch(logits.at(row, 0), shared_address(fetched), row_ready);
  };
  if (thread == 0) {
    make_barrier(row_ready, 1);
    for (uint64_t& barrier : block_barriers) make_barrier(shared_address(&barrier), 1);
  }
  publish_barriers();
  fetch(static_cast<int>(blockIdx.x));
  cooperative_groups::this_cluster().sync();  // others may send to this block

  uint32_t rows_done = 0;  // number of the block's rows done
  for (int row = static_cast<int>(blockIdx.x); row < active; row += stride, rows_done++) {
    const int target = targets[row];
    const float weight = weights[row], scale = loss_scale * weight;
    const bool known = 0 <= target && target < vocabulary;
    const bool writes_loss = thread == 0 && rank == (known ? target / part.kChunk % blocks : 0);
    await(row_ready, rows_done % 2);
    RegisterGroup groups[kGroupsPerThread];
#pragma unroll
    for (int i = 0; i < kGroupsPerThread; i++) {
      groups[i].words = {{kNone, kNone, kNone, kNone}};
      if (part.inside(i)) groups[i].fetch(fetched + i * part.kChunk + thread * kWide);
    }
    float hit = __int_as_float(0x7fffffff);
    if (writes_loss && known) hit = to_float(fetched[target / part.step * part.kChunk + target % part.kChunk]);
    __syncthreads();
    fetch(row + stride);

    Softmax mine = warp_softmax(groups);
    if (thread % 32 == 0) warp_softmaxes[thread / 32] = mine;
    const uint32_t all_ready = shared_address(&block_barriers[rows_done % 2]);
    if (thread == 0 && blocks > 1) arrive_and_expect(all_ready, blocks * static_cast<int>(sizeof(Softmax)));
    __syncthreads();
    if (thread < 32) {
      mine = warp_reduce<BFloat16>(thread < kClusterThreads / 32 ? warp_softmaxes[thread] : Softmax{});
      mine = {__shfl_sync(kAll, mine.maximum, 0), __shfl_sync(kAll, mine.sum, 0)};
      if (blocks == 1 && thread == 0) block_softmaxes[rows_done % 2][0] = mine;
      if (blocks > 1 && thread < blocks)
        send(shared_address(&block_softmaxes[rows_done % 2][rank]), mine.maximum, mine.sum, all_ready, thread);
    }
    if (blocks > 1)
      await_cluster(all_ready, rows_done / 2 % 2);
    else
      __syncthreads();  // nothing may be sent in a cluster of one
    Softmax all = block_softmaxes[rows_done % 2][0];
    for (int block = 1; block < blocks; block++) all = merged<BFloat16>(all, block_softmaxes[rows_done % 2][block]);
    if (writes_loss) loss[row] = loss_of(all, hit, weight);
    if (gradient) save_gradient(logits.at(row, 0), part, groups, all.maximum, 1.0f / all.sum * scale, target, scale);
  }
#endif
}

ClusterKernel<Rows<BFloat16>, int, int, const int32_t*, const float*, float*, int, bool, float> cluster_kernel(
    unsigned blocks) {
  return {cluster_cross_entropy_kernel, {1, blocks, 1}, kClusterThreads, kBlockBytes};
}

// Returns the grid. Its columns are clusters: as many as are resident at a time, or as there are rows; none if the
// blocks of a cluster cannot hold a row.
dim3 cluster_grid(const TensorView& logits) {
  unsigned blocks = 1;
  while (blocks * kElementsPerBlock < logits.cols()) blocks *= 2;
  const bool fits = logits.dtype == DType::BF16 && wide({logits}) && blocks <= kMaxClusterBlocks;
  if (!fits || architecture_of(cluster_cross_entropy_kernel) < 90) return {0, 0};
  return {static_cast<unsigned>(std::min<int64_t>(cluster_kernel(blocks).resident_clusters(), logits.rows())), blocks};
}

__global__ void __launch_bounds__(kThreads) soft_cap_kernel(float* x, int64_t count, float cap) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) x[i] = capped(x[i], cap);
}

// Sums losses: one warp fetches, one thread adds in order.
__global__ void loss_sum_kernel(const float* loss, int64_t count, bool accumulate, float* sum) {
  __shared__ float tile[1024];
  double total = accumulate ? static_cast<double>(*sum) : 0;
  for (int64_t begin = 0; begin < count; begin += 1024) {
    const int width = static_cast<int>(min(int64_t{1024}, count - begin));
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < width) tile[threadIdx.x] = loss[begin + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0)
      for (int i = 0; i < width; i++) total += static_cast<double>(tile[i]);
  }
  if (threadIdx.x == 0) *sum = static_cast<float>(total);
}

}  // namespace

Launch bind_cross_entropy(const CrossEntropy& attrs, Operands operands, cudaStream_t stream) {
  const auto of = cross_entropy_operands(operands);
  const TensorView logits = of.logits;
  const int64_t rows = logits.rows(), vocabulary = logits.cols();
  const int32_t* const targets = of.targets;
  const float* const weights = of.weights;
  float* const loss = of.loss;
  const bool terms = attrs.smoothing > 0 || attrs.z_loss > 0;
  if (const dim3 grid = cluster_grid(logits); grid.x > 0 && attrs.cap == 0 && !terms)
    return [=, kernel = cluster_kernel(grid.y)](const RuntimeScalars& runtime) {
      const auto active = static_cast<int>(std::clamp<int64_t>(runtime.loss_rows - attrs.row_begin, 0, rows));
      kernel.launch(grid, stream, "cross_entropy", Rows<BFloat16>(logits), static_cast<int>(rows),
                    static_cast<int>(vocabulary), targets, weights, loss, active, attrs.gradient, runtime.loss_scale);
    };
  return dispatch_activation(logits.dtype, [&]<class T>() {
    return dispatch_wide(wide({logits}), [&]<int N>() -> Launch {
      return [=](const RuntimeScalars& runtime) {
        const int64_t active = std::clamp<int64_t>(runtime.loss_rows - attrs.row_begin, 0, rows);
        const auto kernel = terms ? cross_entropy_kernel<N, true, T> : cross_entropy_kernel<N, false, T>;
        kernel<<<static_cast<unsigned>(rows), kLossThreads, 0, stream>>>(Rows<T>(logits), vocabulary, targets, weights,
                                                                         loss, active, runtime.loss_scale, attrs);
        check_launch("cross_entropy");
      };
    });
  });
}

Launch bind_soft_cap(const SoftCap& attrs, Operands operands, cudaStream_t stream) {
  const TensorView x = operands.dense("x", {DType::F32});
  operands.done();
  return [=](const RuntimeScalars&) {
    soft_cap_kernel<<<blocks_of(x.count(), kThreads), kThreads, 0, stream>>>(x.as<float>(), x.count(), attrs.cap);
    check_launch("soft_cap");
  };
}

Launch bind_loss_sum(const LossSum& attrs, Operands operands, cudaStream_t stream) {
  const auto of = loss_sum_operands(operands);
  float* const sum = of.sum;
  return [=, loss = of.losses.as<float>(), all = of.losses.count()](const RuntimeScalars& runtime) {
    const int64_t count = loss_rows_of(runtime, all);
    loss_sum_kernel<<<1, 1024, 0, stream>>>(loss, count, attrs.accumulate, sum);
    check_launch("loss_sum");
  };
}

}  // namespace snug::cuda
