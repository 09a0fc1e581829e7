// Quantises numbers to 4 bits and back, as bitsandbytes does: the CPU's operations in the CPU's order.
#include "backend/cuda/quantize.cuh"
#include "tensor/codebook.h"

namespace snug::cuda {
namespace {

constexpr int64_t kBlock = kNf4Block, kScaleBlock = kNf4ScaleBlock;
constexpr float kLeastScale = 1e-38f;  // bitsandbytes' divisor if a block's scale is less

__constant__ const std::array<float, 16> nf4_codebook = kNf4Codebook;
__constant__ const std::array<float, 15> nf4_bounds = middles(kNf4Codebook);
__constant__ const std::array<float, 256> dynamic_codebook = kSignedMap;
__constant__ const std::array<float, 255> dynamic_bounds = middles(kSignedMap);

// Returns x over its block's scale, as bitsandbytes looks it up in a codebook.
__device__ inline float normalise(float x, float scale) {
  const float inverse = 1.0f / (scale < kLeastScale ? kLeastScale : scale);
  const float y = x * inverse;
  return y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y;
}

constexpr int kTogether = 8, kLanes = kBlock / kTogether;  // elements of a thread, threads of a block of 64

template <int N, class X>
__global__ void __launch_bounds__(kThreads)
    quantize_nf4_kernel(const std::byte* x, int64_t count, uint8_t* codes, float* scales) {
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kTogether;
  const bool inside = begin < count;  // whole blocks of 64 are, or are not
  float values[kTogether];
  uint32_t abs_max = 0;
#pragma unroll
  for (int i = 0; i < kTogether; i += N) {
    Pack<float, N> loaded{};
    if (inside) loaded = load_row<N, X>(x, begin + i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      values[i + k] = loaded[k];
      abs_max = max(abs_max, abs_bits(loaded[k]));
    }
  }
  const float scale = __uint_as_float(warp_max<kLanes>(abs_max));
  if (!inside) return;
  if (threadIdx.x % kLanes == 0) scales[begin / kBlock] = scale;
#pragma unroll
  for (int i = 0; i < kTogether; i += 2) {
    uint32_t pair = 0;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const float y = normalise(values[i + k], scale);
      uint32_t below = 0;
#pragma unroll
      for (int b = 0; b < 15; b++) below += nf4_bounds[b] < y ? 1u : 0u;
      pair = pair << 4 | below;
    }
    codes[(begin + i) / 2] = static_cast<uint8_t>(pair);
  }
}

struct Nf4Scales : Nf4ScaleViews {
  __device__ float operator[](int64_t block) const {
    return plain ? plain[block] : dynamic_codebook[codes[block]] * block_scales[block / kScaleBlock] + *offset;
  }
};

// Takes two codes at a time, or eight if x's rows hold whole groups of eight; all codes of kGroupsAhead groups are
// requested before the first is worked on.
constexpr int kGroupsAhead = 4;

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_nf4_kernel(const uint8_t* codes, Nf4Scales scales, int64_t count, Rows<T> x, int64_t cols) {
  __shared__ float numbers[16];
  if (threadIdx.x < 16) numbers[threadIdx.x] = nf4_codebook[threadIdx.x];
  __syncthreads();
  const int64_t first = (int64_t{blockIdx.x} * kThreads * kGroupsAhead + threadIdx.x) * N;
  Pack<uint8_t, N / 2> loaded_codes[kGroupsAhead];
  float scale[kGroupsAhead];
#pragma unroll
  for (int i = 0; i < kGroupsAhead; i++) {
    const int64_t begin = min(first + int64_t{i} * kThreads * N, count - N);
    loaded_codes[i] = load<N / 2>(codes + begin / 2);
    scale[i] = scales[begin / kBlock];
  }
#pragma unroll
  for (int i = 0; i < kGroupsAhead; i++) {
    const int64_t begin = first + int64_t{i} * kThreads * N;
    if (begin >= count) return;
    Pack<float, N> values;
#pragma unroll
    for (int k = 0; k < N; k += 2) {
      values[k] = numbers[loaded_codes[i][k / 2] >> 4] * scale[i];
      values[k + 1] = numbers[loaded_codes[i][k / 2] & 15] * scale[i];
    }
    if constexpr (N == 2) {
      store(*x.at(begin / cols, begin % cols), values[0]);
      store(*x.at((begin + 1) / cols, (begin + 1) % cols), values[1]);
    } else {
      save_floats<N>(x.stride == cols ? x.data + begin : x.at(begin / cols, begin % cols), values);
    }
  }
}

// Takes a block of threads for each 256 scales.
__global__ void __launch_bounds__(kScaleBlock)
    quantize_scales_kernel(const float* scales, int64_t count, const float* offset, uint8_t* codes,
                           float* block_scales) {
  __shared__ uint32_t shared[32];
  const int64_t i = blockIdx.x * kScaleBlock + threadIdx.x;
  const float centred = i < count ? scales[i] - *offset : 0.0f;
  const float scale = __uint_as_float(block_max(abs_bits(centred), shared, 0u));
  if (threadIdx.x == 0) block_scales[blockIdx.x] = scale;
  if (i >= count) return;
  const float y = normalise(centred, scale);
  uint32_t code = 0;  // number of bounds below y
#pragma unroll
  for (uint32_t step = 128; step > 0; step /= 2)
    if (dynamic_bounds[code + step - 1] < y) code += step;
  codes[i] = static_cast<uint8_t>(code);
}

}  // namespace

Launch quantize_nf4(Operands& operands, const TensorView& x, cudaStream_t stream) {
  operands.expect(x.dense(), "rows of 'x' lie {} elements apart, expected dense", x.row_stride);
  operands.expect(x.count() % kBlock == 0, "'x' has {} elements, expected a multiple of {}", x.count(), kBlock);
  uint8_t* const codes = operands.vector("codes", {DType::U8}, x.count() / 2).as<uint8_t>();
  float* const scales = operands.vector("scales", {DType::F32}, x.count() / kBlock).as<float>();
  operands.done();
  const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  return dispatch_float(x.dtype, [&]<class X>() {
    return dispatch_wide(aligned, [&]<int N>() -> Launch {
      return [=](const RuntimeScalars&) {
        quantize_nf4_kernel<N, X>
            <<<blocks_of(x.count(), kThreads * kTogether), kThreads, 0, stream>>>(x.data, x.count(), codes, scales);
        check_launch("quantize");
      };
    });
  });
}

Launch dequantize_nf4(const Dequantize& attrs, Operands& operands, cudaStream_t stream) {
  const auto [packed, count, views, x] = nf4_operands(attrs, operands);
  const Nf4Scales scales{views};
  const bool groups = wide({x}) && reinterpret_cast<uintptr_t>(packed.data) % (kWide / 2) == 0;
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_wide(groups, [&]<int N>() -> Launch {
      constexpr int kNumbers = N == 1 ? 2 : N;
      return [=, codes = packed.as<uint8_t>()](const RuntimeScalars&) {
        if (count == 0) return;
        dequantize_nf4_kernel<kNumbers><<<blocks_of(count, kThreads * kGroupsAhead * kNumbers), kThreads, 0, stream>>>(
            codes, scales, count, Rows<T>(x), x.cols());
        check_launch("dequantize");
      };
    });
  });
}

Launch bind_quantize_scales(Operands operands, cudaStream_t stream) {
  const auto of = quantize_scales_operands(operands, kScaleBlock);
  const int64_t count = of.scales.count(), groups = ceil_div(count, kScaleBlock);
  const float* const offset = of.offset;
  uint8_t* const codes = of.codes;
  float* const block_scales = of.block_scales;
  return [=, scales = of.scales.as<float>()](const RuntimeScalars&) {
    quantize_scales_kernel<<<static_cast<unsigned>(groups), kScaleBlock, 0, stream>>>(scales, count, offset, codes,
                                                                                      block_scales);
    check_launch("quantize_scales");
  };
}

}  // namespace snug::cuda
