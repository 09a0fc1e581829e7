// Cross-entropy over a vocabulary, row by row, and the sum of its losses.
//   loss = log(sum exp(x - m)) + m - x[target], m = max x       dx = (exp(x - m) / sum exp(x - m) - onehot) scale
#include <cooperative_groups.h>

#include "backend/cuda/device.cuh"

namespace snug::cuda {
namespace {

constexpr int kLossThreads = 1024;

// The largest number of a part of a row and the sum of exponentials relative to it.
struct Softmax {
  float maximum = -INFINITY, sum = 0;
};

template <class T>
__device__ Softmax joined(const Softmax& a, const Softmax& b) {
  const float maximum = fmaxf(a.maximum, b.maximum);
  if (maximum == -INFINITY) return {maximum, a.sum + b.sum};
  return {maximum, a.sum * exponential<T>(a.maximum - maximum) + b.sum * exponential<T>(b.maximum - maximum)};
}

template <class T>
__device__ Softmax warp_joined(Softmax x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    x = joined<T>(x, {__shfl_down_sync(kAll, x.maximum, step), __shfl_down_sync(kAll, x.sum, step)});
  return x;
}

// A block a row; what the first walk over it brings in, the second finds in the L2 cache.
template <int N, class T>
__global__ void __launch_bounds__(kLossThreads)
    cross_entropy_kernel(Rows<T> logits, int64_t vocabulary, const int32_t* targets, float* loss, int64_t active,
                         bool gradient, float scale) {
  __shared__ Softmax shared[kLossThreads / 32];
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * N, step = int64_t{kLossThreads} * N;
  T* const x = logits.at(row, 0);
  if (row >= active) {
    if (threadIdx.x == 0) loss[row] = 0;
    for (int64_t col = first; gradient && col < vocabulary; col += step) save<N>(x + col, Pack<T, N>{});
    return;
  }
  const int64_t target = targets[row];
  const bool known = 0 <= target && target < vocabulary;
  const float hit = known ? to_float(x[target]) : __int_as_float(0x7fffffff);

  Softmax mine;
#pragma unroll 4
  for (int64_t col = first; col < vocabulary; col += step) {
    const auto values = load_floats<N>(x + col);
    float maximum = mine.maximum;
#pragma unroll
    for (int k = 0; k < N; k++) maximum = fmaxf(maximum, values[k]);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < N; k++) sum += exponential<T>(values[k] - maximum);
    mine.sum = mine.sum * exponential<T>(mine.maximum - maximum) + sum;
    mine.maximum = maximum;
  }
  mine = warp_joined<T>(mine);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();  // all have read the target's logit too
  if (threadIdx.x < 32) {
    mine = warp_joined<T>(shared[threadIdx.x]);
    if (threadIdx.x == 0) shared[0] = mine;
  }
  __syncthreads();
  const float maximum = shared[0].maximum, total = shared[0].sum;
  if (threadIdx.x == 0)
    loss[row] =
        static_cast<float>(log(static_cast<double>(total)) + static_cast<double>(maximum) - static_cast<double>(hit));
  if (!gradient) return;
  const float inverse = 1.0f / total;
#pragma unroll 4
  for (int64_t col = first; col < vocabulary; col += step) {
    auto values = load_floats<N>(x + col);
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float softmax = exponential<T>(values[k] - maximum) * inverse;
      values[k] = (col + k == target ? softmax - 1.0f : softmax) * scale;
    }
    save_floats<N>(x + col, values);
  }
}

// ---- Rows of bf16 that a cluster of blocks holds in its registers, so that they are read once -----------------------

constexpr int kHeldThreads = 512, kHeldGroups = 8, kMostBlocks = 8;
constexpr int64_t kHeldByBlock = int64_t{kHeldThreads} * kHeldGroups * kWide;

// Of the upper and of the lower halves; what is no number is passed over.
__device__ inline uint32_t larger_two(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
// e^x; 0 below the normal numbers.
__device__ inline float quick_exp(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 0x1.715476p0f));
  return y;
}

// A column of blocks, which are a cluster, takes a row.
__global__ void __launch_bounds__(kHeldThreads, 2)
    held_cross_entropy_kernel(Rows<BFloat16> logits, int vocabulary, const int32_t* targets, float* loss,
                              int64_t active, bool gradient, float scale) {
#if __CUDA_ARCH__ >= 900
  using Group = Raw<BFloat16, kWide>;
  constexpr uint32_t kLowest = 0xff7fff7fu, kNone = 0xff80ff80u;  // the least numbers, negative infinities
  __shared__ Softmax of_warp[kHeldThreads / 32], of_block[kMostBlocks];
  const int64_t row = blockIdx.x;
  const int blocks = static_cast<int>(gridDim.y), rank = static_cast<int>(blockIdx.y);
  const int thread = static_cast<int>(threadIdx.x), step = blocks * kHeldThreads * kWide;
  const int first = (rank * kHeldThreads + thread) * kWide;
  BFloat16* const x = logits.at(row, first);
  const auto inside = [&](int i) { return first + i * step < vocabulary; };
  if (row >= active) {
    if (rank == 0 && thread == 0) loss[row] = 0;
    for (int i = 0; gradient && inside(i); i++) save<kWide>(x + i * step, Pack<BFloat16, kWide>{});
    return;
  }
  const auto cluster = cooperative_groups::this_cluster();
  cluster.barrier_arrive();  // this block runs: others may write what they found into its memory
  Group held[kHeldGroups];
#pragma unroll
  for (int i = 0; i < kHeldGroups; i++) {
    held[i].words = {{kNone, kNone, kNone, kNone}};
    if (inside(i)) held[i].fetch(x + i * step);
  }
  const int target = targets[row];
  const bool known = 0 <= target && target < vocabulary;
  const float hit = known ? to_float(*logits.at(row, target)) : __int_as_float(0x7fffffff);

  uint32_t largest = kLowest;  // of infinities too, so that a part of a row that has nothing else is no NaN
#pragma unroll
  for (int i = 0; i < kHeldGroups; i++)
#pragma unroll
    for (int k = 0; k < Group::kWords; k++) largest = larger_two(largest, held[i].words[k]);
  Softmax mine{warp_max(fmaxf(__uint_as_float(largest << 16), __uint_as_float(largest & 0xffff0000u))), 0};
  float sums[2] = {};
#pragma unroll
  for (int i = 0; i < kHeldGroups; i++) {
    const auto values = held[i].floats();
#pragma unroll
    for (int k = 0; k < kWide; k++) sums[k % 2] += quick_exp(values[k] - mine.maximum);
  }
  mine.sum = warp_sum(sums[0] + sums[1]);
  if (thread % 32 == 0) of_warp[thread / 32] = mine;
  __syncthreads();
  cluster.barrier_wait();
  if (thread < 32) {
    mine = warp_joined<BFloat16>(thread < kHeldThreads / 32 ? of_warp[thread] : Softmax{});
    mine = {__shfl_sync(kAll, mine.maximum, 0), __shfl_sync(kAll, mine.sum, 0)};
    if (thread < blocks) *cluster.map_shared_rank(&of_block[rank], static_cast<unsigned>(thread)) = mine;
  }
  cluster.sync();  // all have read the target's logit too
  Softmax all = of_block[0];
  for (int block = 1; block < blocks; block++) all = joined<BFloat16>(all, of_block[block]);
  if (rank == 0 && thread == 0)
    loss[row] = static_cast<float>(log(static_cast<double>(all.sum)) + static_cast<double>(all.maximum) -
                                   static_cast<double>(hit));
  if (!gradient) return;
  const float factor = 1.0f / all.sum * scale;
#pragma unroll
  for (int i = 0; i < kHeldGroups; i++) {
    if (!inside(i)) break;
    auto values = held[i].floats();
    const int here = target - (first + i * step);
#pragma unroll
    for (int k = 0; k < kWide; k++) values[k] = quick_exp(values[k] - all.maximum) * factor;
    if (0 <= here && here < kWide)
#pragma unroll
      for (int k = 0; k < kWide; k++) values[k] -= k == here ? scale : 0.0f;
    save_floats<kWide>(x + i * step, values);
  }
#endif
}

// How many blocks hold a row together; 0 where they cannot.
int blocks_that_hold(const TensorView& logits) {
  int blocks = 1;
  while (blocks * kHeldByBlock < logits.cols()) blocks *= 2;
  const bool fits = logits.dtype == DType::BF16 && wide({logits}) && blocks <= kMostBlocks;
  return fits && of_device(cudaDevAttrClusterLaunch) != 0 ? blocks : 0;
}

// One warp fetches, one thread adds in order.
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
  const TensorView logits = operands.take("logits", kActivation);
  const int64_t rows = logits.rows(), vocabulary = logits.cols();
  const int32_t* const targets = operands.vector("targets", {DType::I32}, rows).as<int32_t>();
  float* const loss = operands.vector("loss", {DType::F32}, rows).as<float>();
  operands.done();
  if (const int blocks = blocks_that_hold(logits))
    return [=](const PassFacts& facts) {
      if (rows == 0) return;
      cudaLaunchAttribute cluster{};
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim = {1, static_cast<unsigned>(blocks), 1};
      cudaLaunchConfig_t config{};
      config.gridDim = {static_cast<unsigned>(rows), static_cast<unsigned>(blocks)};
      config.blockDim = kHeldThreads;
      config.stream = stream;
      config.attrs = &cluster;
      config.numAttrs = 1;
      const int64_t active = std::clamp<int64_t>(facts.loss_rows - attrs.row_begin, 0, rows);
      check_cuda(
          cudaLaunchKernelEx(&config, held_cross_entropy_kernel, Rows<BFloat16>(logits), static_cast<int>(vocabulary),
                             targets, loss, active, attrs.gradient, facts.loss_scale),
          "cross_entropy");
    };
  return dispatch_activation(logits.dtype, [&]<class T>() {
    return dispatch_wide(wide({logits}), [&]<int N>() -> Launch {
      return [=](const PassFacts& facts) {
        const int64_t active = std::clamp<int64_t>(facts.loss_rows - attrs.row_begin, 0, rows);
        cross_entropy_kernel<N><<<static_cast<unsigned>(rows), kLossThreads, 0, stream>>>(
            Rows<T>(logits), vocabulary, targets, loss, active, attrs.gradient, facts.loss_scale);
        check_launch("cross_entropy");
      };
    });
  });
}

Launch bind_loss_sum(const LossSum& attrs, Operands operands, cudaStream_t stream) {
  const TensorView losses = operands.dense("loss", {DType::F32});
  float* const sum = operands.vector("sum", {DType::F32}, 1).as<float>();
  operands.done();
  return [=, loss = losses.as<float>()](const PassFacts& facts) {
    check(0 <= facts.loss_rows && facts.loss_rows <= losses.count(), "loss_sum: {} loss rows of {}", facts.loss_rows,
          losses.count());
    loss_sum_kernel<<<1, 1024, 0, stream>>>(loss, facts.loss_rows, attrs.accumulate, sum);
    check_launch("loss_sum");
  };
}

}  // namespace snug::cuda
