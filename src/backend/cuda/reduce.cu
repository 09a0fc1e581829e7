// Sums down columns and over ranks, and computes the global norm of all gradients.
#include "backend/cuda/columns.cuh"
#include "tensor/step_scalars.h"

namespace snug::cuda {
namespace {

template <class T, class S>
struct SumRanksBody {
  Rows<T> parts;
  int64_t rows;
  S* sum;
  bool accumulate;
  template <int N>
  __device__ void operator()(int64_t, int64_t i) const {
    auto total = load_floats<N>(parts.at(0, i));
#pragma unroll 4
    for (int64_t row = 1; row < rows; row++) {
      const auto values = load_floats<N>(parts.at(row, i));
#pragma unroll
      for (int k = 0; k < N; k++) total[k] += values[k];
    }
    if (accumulate) {
      const auto before = load_floats<N>(sum + i);
#pragma unroll
      for (int k = 0; k < N; k++) total[k] = before[k] + total[k];
    }
    save_floats<N>(sum + i, total);
  }
};

// Holds the gradients of a launch.
template <class T>
struct Gradients {
  const T* g[NormPartials::kMost];
  int64_t n[NormPartials::kMost], first[NormPartials::kMost];  // elements; the first unit
  int count;
  int64_t units;  // of all
};

// Sums squares in the CPU's order (cpu/math.h), which has 32 lanes: lane l adds elements l, l + 32, ...; then l and l +
// 16, ... Here a thread is N neighbouring lanes, so that it reads words, a warp has N units, and enough loads are on
// their way to make up for their small size.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    norm_partials_kernel(const __grid_constant__ Gradients<T> all, float* partial) {
  constexpr int kAcross = 32 / N, kTogether = 16;
  const int64_t unit = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kAcross;
  const int lane = static_cast<int>(threadIdx.x) % kAcross * N;
  int which = 0;
  while (which + 1 < all.count && unit >= all.first[which + 1]) which++;
  const int64_t begin = (unit - all.first[which]) * kUnit;
  const int count = static_cast<int>(max(int64_t{0}, min(kUnit, all.n[which] - begin)));
  const T* const x = all.g[which] + begin + lane;
  Pack<float, N> total{};
  const auto add = [&](const Pack<T, N>& values) {
#pragma unroll
    for (int k = 0; k < N; k++) total[k] += to_float(values[k]) * to_float(values[k]);
  };
  int i = 0;
  for (; i + 32 * kTogether <= count; i += 32 * kTogether) {
    Pack<T, N> values[kTogether];
#pragma unroll
    for (int t = 0; t < kTogether; t++) values[t] = load<N>(x + i + 32 * t);
#pragma unroll
    for (int t = 0; t < kTogether; t++) add(values[t]);
  }
  for (; i < count; i += 32) {
    Pack<T, N> values{};
#pragma unroll
    for (int k = 0; k < N; k++)
      if (i + lane + k < count) values[k] = x[i + k];
    add(values);
  }
#pragma unroll
  for (int step = kAcross / 2; step > 0; step /= 2)
#pragma unroll
    for (int k = 0; k < N; k++) total[k] += __shfl_down_sync(kAll, total[k], step);
#pragma unroll
  for (int step = N / 2; step > 0; step /= 2)
#pragma unroll
    for (int k = 0; k < step; k++) total[k] += total[k + step];
  if (lane == 0 && unit < all.units) partial[unit] = total[0];
}

// ---- A tree over many values: neighbours in pairs, their sums in pairs, and so on; an odd one goes up as it is ------

constexpr int kTreeThreads = 1024, kChunk = 1024, kMaxChunks = kChunk * 8;

// Returns the tree's sum of the values of the first `count` lanes, in lane 0.
__device__ inline float warp_tree(float x, int64_t count) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float other = __shfl_down_sync(kAll, x, step);
    if (lane + step < count) x += other;
  }
  return x;
}

// Returns the tree's sum of the first `count` of some nodes; the others may be anything.
template <int kCount>
__device__ float tree_of(float (&nodes)[kCount], int count) {
#pragma unroll
  for (int step = 1; step < kCount; step *= 2)
#pragma unroll
    for (int i = 0; i + step < kCount; i += 2 * step)
      if (i + step < count) nodes[i] += nodes[i + step];
  return nodes[0];
}

// Returns the tree's sum of value(0 .. count - 1), at most kChunk of them, by a warp, each lane of which takes kEach
// neighbours at a time.
template <class Value>
__device__ float chunk_tree(const Value& value, int64_t count) {
  constexpr int kEach = 4, kTogether = 32 * kEach, kSteps = kChunk / kTogether;
  const int lane = static_cast<int>(threadIdx.x) % 32, all = static_cast<int>(count);
  float tops[kSteps];
#pragma unroll
  for (int step = 0; step < kSteps; step++) {
    const int first = step * kTogether + lane * kEach, there = all - first;
    float nodes[kEach] = {};
#pragma unroll
    for (int i = 0; i < kEach; i++)
      if (i < there) nodes[i] = value(first + i);
    tops[step] = warp_tree(tree_of(nodes, there), (all - step * kTogether + kEach - 1) / kEach);
  }
  return tree_of(tops, (all + kTogether - 1) / kTogether);
}

// Returns the tree's sum of value(0 .. count - 1), by one block of kTreeThreads: chunks of a power of two of values end
// in one node each, as in the tree of all of them. Every thread of the first warp gets it.
template <class Value>
__device__ float tree_sum(const Value& value, int64_t count) {
  __shared__ float nodes[kMaxChunks], tops[kMaxChunks / kChunk];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto level = [&](const auto& of, int64_t n, float* to) {
    for (int64_t chunk = warp; chunk * kChunk < n; chunk += kTreeThreads / 32) {
      const auto chunk_value = [&](int64_t i) { return of(chunk * kChunk + i); };
      const float sum = chunk_tree(chunk_value, min(int64_t{kChunk}, n - chunk * kChunk));
      if (lane == 0) to[chunk] = sum;
    }
    __syncthreads();
    return (n + kChunk - 1) / kChunk;
  };
  const auto node = [&](int64_t i) { return nodes[i]; };
  const int64_t chunks = level(value, count, nodes);
  const int64_t last = level(node, chunks, tops);
  return __shfl_sync(kAll, warp_tree(lane < last ? tops[lane] : 0.0f, last), 0);
}

// Takes a block of threads for each block of values. kDense says that rows have no gaps.
template <bool kDense>
__global__ void __launch_bounds__(kTreeThreads)
    tree_sum_kernel(Rows<float> x, int64_t cols, int64_t count, int64_t block, float scale, float* sums) {
  const int64_t begin = blockIdx.x * block;
  const auto value = [&](int64_t i) {
    if constexpr (kDense) return x.data[begin + i];
    return *x.at((begin + i) / cols, (begin + i) % cols);
  };
  const float total = tree_sum(value, min(block, count - begin));
  if (threadIdx.x == 0) sums[blockIdx.x] = total * scale;
}

__global__ void __launch_bounds__(kTreeThreads)
    clip_factor_kernel(const float* partial, int64_t count, const float* loss, float max_norm, StepScalars* step) {
  const float norm = sqrtf(tree_sum([&](int64_t i) { return partial[i]; }, count));
  if (threadIdx.x != 0) return;
  const float factor = max_norm / (norm + 1e-6f);
  step->norm = norm;
  step->factor = max_norm > 0 && factor < 1.0f ? factor : 1.0f;
  step->finite = isfinite(norm) && isfinite(*loss) ? 1.0f : 0.0f;
}

void expect_tree(const Operands& operands, int64_t count) {
  constexpr int64_t kMost = int64_t{kChunk} * kMaxChunks;
  operands.expect(count <= kMost, "{} values, at most {} are supported", count, kMost);
}

}  // namespace

Launch bind_column_sum(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView y = operands.vector("sum", kActivation, x.cols());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_activation(
        y.dtype, [&]<class S>() -> Launch { return [=](const RuntimeScalars&) { sum_columns<T, S>(x, y, stream); }; });
  });
}

Launch bind_sum_ranks(const SumRanks& attrs, Operands operands, cudaStream_t stream) {
  const auto of = sum_ranks_operands(operands);
  const TensorView parts = of.parts, y = of.sum;
  return dispatch_activation(parts.dtype, [&]<class T>() {
    return dispatch_activation(y.dtype, [&]<class S>() -> Launch {
      return [=, accumulate = attrs.accumulate](const RuntimeScalars&) {
        launch_elements(stream, Extent(1, parts.cols()), wide({parts, y}),
                        SumRanksBody<T, S>{Rows<T>(parts), parts.rows(), y.as<S>(), accumulate});
      };
    });
  });
}

Launch bind_norm_partials(Operands operands, cudaStream_t stream) {
  const NormPartialsOperands of = norm_partials_operands(operands);
  return dispatch_activation(of.gradients[0].dtype, [&]<class T>() {
    Gradients<T> all{.g = {}, .n = {}, .first = {}, .count = static_cast<int>(of.gradients.size()), .units = of.units};
    bool words = true;
    for (size_t i = 0; i < of.gradients.size(); i++) {
      all.g[i] = of.gradients[i].as<T>();
      all.n[i] = of.gradients[i].count();
      all.first[i] = of.first[i];
      words = words && reinterpret_cast<uintptr_t>(of.gradients[i].data) % 4 == 0;
    }
    const auto launch = [all, partial = of.partial, stream]<int N>() -> Launch {
      return [=](const RuntimeScalars&) {
        norm_partials_kernel<N><<<blocks_of(all.units * (32 / N), kThreads), kThreads, 0, stream>>>(all, partial);
        check_launch("norm_partials");
      };
    };
    constexpr int kInWord = 4 / sizeof(T);
    return words ? launch.template operator()<kInWord>() : launch.template operator()<1>();
  });
}

Launch bind_tree_sum(const TreeSum& attrs, Operands operands, cudaStream_t stream) {
  const auto of = tree_sum_operands(attrs, operands);
  const TensorView x = of.x;
  const int64_t count = attrs.count, block = of.block, blocks = of.blocks;
  float* const sums = of.sums;
  expect_tree(operands, block);
  return [=, scale = attrs.scale](const RuntimeScalars&) {
    if (blocks == 0) return;
    const auto kernel = x.dense() ? tree_sum_kernel<true> : tree_sum_kernel<false>;
    kernel<<<static_cast<unsigned>(blocks), kTreeThreads, 0, stream>>>(Rows<float>(x), x.cols(), count, block, scale,
                                                                       sums);
    check_launch("tree_sum");
  };
}

Launch bind_clip_factor(const ClipFactor& attrs, Operands operands, cudaStream_t stream) {
  const TensorView partials = operands.dense("partial", {DType::F32});
  const float* const loss = operands.vector("loss", {DType::F32}, 1).as<float>();
  StepScalars* const step = step_scalars(operands.vector("scalars", {DType::F32}, kStepScalars));
  expect_tree(operands, partials.count());
  operands.done();
  return [=, max_norm = attrs.max_norm](const RuntimeScalars&) {
    clip_factor_kernel<<<1, kTreeThreads, 0, stream>>>(partials.as<float>(), partials.count(), loss, max_norm, step);
    check_launch("clip_factor");
  };
}

}  // namespace snug::cuda
