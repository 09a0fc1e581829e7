// Numbers in 8 and 4 bits and back: the CPU's operations in the CPU's order, so that codes are the same.
#include "backend/cuda/device.cuh"
#include "backend/cuda/turn.cuh"
#include "tensor/codebook.h"

namespace snug::cuda {
namespace {

constexpr int64_t kBlock = kNf4Block, kScaleBlock = kNf4ScaleBlock;
constexpr float kLeastScale = 1e-38f;  // what bitsandbytes divides by where a block's own is less

__constant__ const std::array<float, 16> nf4_codebook = kNf4Codebook;
__constant__ const std::array<float, 15> nf4_bounds = middles(kNf4Codebook);
__constant__ const std::array<float, 256> dynamic_codebook = kDynamicCodebook;
__constant__ const std::array<float, 255> dynamic_bounds = middles(kDynamicCodebook);

__device__ inline uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// ---- Rows of 8 bits -------------------------------------------------------------------------------------------------

struct Int8 {
  using Code = int8_t;
  __device__ static float scale(float largest) { return largest; }
  __device__ static float factor(float scale) { return 1.0f / scale * 127.0f; }
  template <int N>
  __device__ static Pack<Code, N> codes(const Pack<float, N>& x, float, float factor) {
    constexpr float kRound = 0x1.8p23f;  // added and taken away again: rounds to a whole number, to even
    Pack<Code, N> codes;
#pragma unroll
    for (int k = 0; k < N; k++) {
      float y = x[k] * factor;
      y = y > 127.0f ? 127.0f : y;
      y = y < -127.0f ? -127.0f : y;
      y = y == y ? y : 0.0f;  // 0 times infinity in a row of zeros, and rows that are not finite
      codes[k] = static_cast<Code>(__float_as_int(y + kRound) - __float_as_int(kRound));
    }
    return codes;
  }
  __device__ static float value(Code code, float scale) {
    return static_cast<float>(code) * scale * 7.874015718698502e-3f;  // 1 / 127
  }
};

struct Fp8 {
  using Code = uint8_t;
  __device__ static float scale(float largest) { return largest / kFp8Largest; }
  // 0 where elements must be divided one by one: rows of zeros, and of what is not finite or far from 1.
  __device__ static float factor(float scale) { return scale >= 0x1p-60f && scale <= 0x1p60f ? 1.0f / scale : 0.0f; }
  template <int N>
  __device__ static Pack<Code, N> codes(const Pack<float, N>& x, float scale, float factor) {
    Pack<Code, N> codes;
#if __CUDA_ARCH__ >= 890
    if (factor != 0) {
#pragma unroll
      for (int k = 0; k < N; k += 2) {
        const int next = k + 1 < N ? k + 1 : k;
        const uint16_t two = rounded(quotient(x[k], scale, factor), quotient(x[next], scale, factor));
        codes[k] = static_cast<Code>(two);
        if (k + 1 < N) codes[k + 1] = static_cast<Code>(two >> 8);
      }
      return codes;
    }
#endif
#pragma unroll 1
    for (int k = 0; k < N; k++) codes[k] = divided(x[k], scale);
    return codes;
  }
  __device__ static Code code(float x, float scale) { return codes<1>({{x}}, scale, factor(scale))[0]; }
  // Of x and y, x's in the lower byte, each with a scale of its own.
  __device__ static uint16_t pair(float x, float x_scale, float x_factor, float y, float y_scale, float y_factor) {
#if __CUDA_ARCH__ >= 890
    if (x_factor != 0 && y_factor != 0) return rounded(quotient(x, x_scale, x_factor), quotient(y, y_scale, y_factor));
#endif
    return static_cast<uint16_t>(divided(x, x_scale) | divided(y, y_scale) << 8);
  }
  __device__ static float value(Code code, float scale) { return float_from_fp8(code) * scale; }

 private:
#if __CUDA_ARCH__ >= 890
  __device__ static uint16_t rounded(float x, float y) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(y), "f"(x));
    return pair;
  }
#endif
  // x / scale, rounded as division rounds (Markstein, IBM J. Res. Dev. 34(1), 1990): factor is 1 / scale, rounded, and
  // remainders are exact.
  __device__ static float quotient(float x, float scale, float factor) {
    float y = x * factor;
    y = fmaf(fmaf(-y, scale, x), factor, y);
    y = fmaf(fmaf(-y, scale, x), factor, y);
    return copysignf(y, x);
  }
  __device__ static Code divided(float x, float scale) {
    if (scale == 0) return 0;
    const float y = x / scale;
    if (y == y) return fp8_from_float(y);
    // No number: with the sign that x86's division gives it, negative for infinity by infinity.
    return static_cast<Code>(x == x ? (isinf(scale) ? 0xff : 0x7f) : 0x7f | (__float_as_uint(x) >> 24 & 0x80u));
  }
};

// A block a row, which stays in its threads' registers, kHeld groups of N elements in each; 0: it is read twice.
template <int N, class Format, class X, bool kFactors, int kHeld, int kRowThreads>
__global__ void __launch_bounds__(kRowThreads, 1024 / kRowThreads)
    quantize_rows_kernel(ByteRows x, const float* factors, int64_t cols, Rows<typename Format::Code> codes,
                         float* scales) {
  __shared__ uint32_t shared[32];
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * N;
  constexpr int64_t kStep = int64_t{kRowThreads} * N;
  const auto times_factors = [&](Pack<float, N> values, int64_t col) {
    if constexpr (kFactors) {
      const auto by = load<N>(factors + col);
#pragma unroll
      for (int k = 0; k < N; k++) values[k] *= by[k];
    }
    return values;
  };
  uint32_t largest = 0;
  const auto take_largest = [&](const Pack<float, N>& values) {
#pragma unroll
    for (int k = 0; k < N; k++) largest = max(largest, magnitude(values[k]));
  };
  const auto write = [&](const Pack<float, N>& values, float scale, float factor, int64_t col) {
    save<N>(codes.at(row, col), Format::template codes<N>(values, scale, factor));
  };
  const auto finish_scale = [&] {
    const float scale = Format::scale(__uint_as_float(block_max(largest, shared, 0u)));
    if (threadIdx.x == 0) scales[row] = scale;
    return scale;
  };
  if constexpr (kHeld > 0) {
    const auto* const start = reinterpret_cast<const X*>(x.at(row));
    Pack<X, N> held[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; i++)
      if (first + i * kStep < cols) held[i] = load<N>(start + first + i * kStep);
    const auto values = [&](int i) {
      Pack<float, N> floats;
#pragma unroll
      for (int k = 0; k < N; k++) floats[k] = to_float(held[i][k]);
      return times_factors(floats, first + i * kStep);
    };
#pragma unroll
    for (int i = 0; i < kHeld; i++)
      if (first + i * kStep < cols) take_largest(values(i));
    const float scale = finish_scale(), factor = Format::factor(scale);
#pragma unroll
    for (int i = 0; i < kHeld; i++)
      if (first + i * kStep < cols) write(values(i), scale, factor, first + i * kStep);
  } else {
    for (int64_t col = first; col < cols; col += kStep)
      take_largest(times_factors(load_row<N, X>(x.at(row), col), col));
    const float scale = finish_scale(), factor = Format::factor(scale);
    for (int64_t col = first; col < cols; col += kStep)
      write(times_factors(load_row<N, X>(x.at(row), col), col), scale, factor, col);
  }
}

// ---- Columns of 8 bits ----------------------------------------------------------------------------------------------

constexpr int kColumnGroups = 32, kColumnSteps = 64;  // of a block: threads side by side, rows that each takes

// The largest magnitude of each column, as bits: whichever block comes first, the largest is the same.
template <int N, class X>
__global__ void __launch_bounds__(kThreads)
    column_largest_kernel(ByteRows x, int64_t rows, int64_t cols, uint32_t* largest) {
  constexpr int kLines = kThreads / kColumnGroups;
  __shared__ uint32_t shared[kLines][kColumnGroups * N];
  const int group = static_cast<int>(threadIdx.x) % kColumnGroups, line = static_cast<int>(threadIdx.x) / kColumnGroups;
  const int64_t first = int64_t{blockIdx.x} * kColumnGroups * N, col = first + group * N;
  const int64_t begin = int64_t{blockIdx.y} * kLines * kColumnSteps, end = min(rows, begin + kLines * kColumnSteps);
  uint32_t found[N] = {};
  if (col < cols)
#pragma unroll 4
    for (int64_t row = begin + line; row < end; row += kLines) {
      const Pack<float, N> values = load_row<N, X>(x.at(row), col);
#pragma unroll
      for (int k = 0; k < N; k++) found[k] = max(found[k], magnitude(values[k]));
    }
#pragma unroll
  for (int k = 0; k < N; k++) shared[line][group * N + k] = found[k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kColumnGroups * N && first + i < cols; i += kThreads) {
    uint32_t of_column = 0;
#pragma unroll
    for (int l = 0; l < kLines; l++) of_column = max(of_column, shared[l][i]);
    atomicMax(largest + first + i, of_column);
  }
}

__global__ void column_scales_kernel(int64_t cols, float* scales) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < cols) scales[i] = Fp8::scale(scales[i]);
}

// 16 codes of a row, each with its column's scale.
template <class X>
struct ColumnCodes {
  ByteRows x;
  const float* scales;
  struct Columns {
    ByteRows x;
    int64_t col;
    Pack<float, 16> scale, factor;
    __device__ Pack<uint8_t, 16> operator()(int64_t row) const {
      Pack<uint8_t, 16> codes;
#pragma unroll
      for (int half = 0; half < 16; half += kWide) {
        const auto values = load_row<kWide, X>(x.at(row), col + half);
#pragma unroll
        for (int k = 0; k < kWide; k += 2) {
          const int i = half + k;
          const uint16_t pair = Fp8::pair(values[k], scale[i], factor[i], values[k + 1], scale[i + 1], factor[i + 1]);
          codes[i] = static_cast<uint8_t>(pair);
          codes[i + 1] = static_cast<uint8_t>(pair >> 8);
        }
      }
      return codes;
    }
  };
  __device__ Columns from(int64_t col) const {
    Columns columns{x, col, load<16>(scales + col), {}};
#pragma unroll
    for (int i = 0; i < 16; i++) columns.factor[i] = Fp8::factor(columns.scale[i]);
    return columns;
  }
};

// Sizes of any kind: element (row, col) of the codes is x's (col, row).
template <class X>
struct ColumnCodesBody {
  ByteRows x;
  const float* scales;
  Rows<uint8_t> codes;
  template <int>
  __device__ void operator()(int64_t row, int64_t col) const {
    *codes.at(row, col) = Fp8::code(load_any_byte<X>(x.at(col), row), scales[row]);
  }
};

Launch quantize_columns(Operands& operands, const TensorView& x, cudaStream_t stream) {
  const TensorView codes = operands.matrix("codes", {DType::U8}, x.cols(), x.rows());
  float* const scales = operands.vector("scales", {DType::F32}, x.cols()).as<float>();
  operands.done();
  const bool tiles =
      wide({x}) && x.cols() % 16 == 0 && in_sixteens(codes) && reinterpret_cast<uintptr_t>(scales) % 16 == 0;
  return dispatch_float(x.dtype, [&]<class X>() -> Launch {
    return [=](const PassFacts&) {
      const int64_t rows = x.rows(), cols = x.cols();
      check_cuda(cudaMemsetAsync(scales, 0, static_cast<size_t>(cols) * sizeof(float), stream), "quantize");
      const auto largest = [&]<int N>() {
        const dim3 grid(blocks_of(cols, kColumnGroups * N), blocks_of(rows, kThreads / kColumnGroups * kColumnSteps));
        column_largest_kernel<N, X>
            <<<grid, kThreads, 0, stream>>>(ByteRows(x), rows, cols, reinterpret_cast<uint32_t*>(scales));
      };
      tiles ? largest.template operator()<kWide>() : largest.template operator()<1>();
      column_scales_kernel<<<blocks_of(cols, kThreads), kThreads, 0, stream>>>(cols, scales);
      if (tiles)
        turn_kernel<<<turned_tiles(x), kThreads, 0, stream>>>(ColumnCodes<X>{ByteRows(x), scales}, rows, cols,
                                                              Rows<uint8_t>(codes));
      else
        launch_elements(stream, Extent(cols, rows), false,
                        ColumnCodesBody<X>{ByteRows(x), scales, Rows<uint8_t>(codes)});
      check_launch("quantize");
    };
  });
}

template <class Format, class T>
struct DequantizeRowsBody {
  Rows<typename Format::Code> codes;
  const float* scales;
  Rows<T> x;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    const auto source = load<N>(codes.at(row, col));
    const float scale = scales[row];
    Pack<float, N> values;
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = Format::value(source[k], scale);
    save_floats<N>(x.at(row, col), values);
  }
};

template <class Format, bool kFactors = false>
Launch quantize_rows(Operands& operands, const TensorView& x, DType code, cudaStream_t stream) {
  const float* factors = nullptr;
  if constexpr (kFactors) factors = operands.vector("factors", {DType::F32}, x.cols()).as<float>();
  const TensorView codes = operands.matrix("codes", {code}, x.rows(), x.cols());
  float* const scales = operands.vector("scales", {DType::F32}, x.rows()).as<float>();
  operands.done();
  return dispatch_float(x.dtype, [&]<class X>() {
    const bool aligned = wide({x, codes}) && reinterpret_cast<uintptr_t>(factors) % 16 == 0;
    const auto launch = [=]<int N, int kHeld, int kRowThreads>() -> Launch {
      return [=](const PassFacts&) {
        quantize_rows_kernel<N, Format, X, kFactors, kHeld, kRowThreads>
            <<<static_cast<unsigned>(x.rows()), kRowThreads, 0, stream>>>(ByteRows(x), factors, x.cols(),
                                                                          Rows<typename Format::Code>(codes), scales);
        check_launch("quantize");
      };
    };
    if (!aligned) return launch.template operator()<1, 0, kThreads>();
    const int64_t groups = x.cols() / kWide;
    if (groups <= 2 * kThreads) return launch.template operator()<kWide, 2, kThreads>();
    if constexpr (sizeof(X) == 2) {
      if (groups <= 7 * kThreads) return launch.template operator()<kWide, 7, kThreads>();
      if (groups <= 14 * kThreads) return launch.template operator()<kWide, 7, 2 * kThreads>();
    }
    return launch.template operator()<kWide, 0, kThreads>();
  });
}

template <class Format>
Launch dequantize_rows(Operands& operands, DType code, cudaStream_t stream) {
  const TensorView codes = operands.take("codes", {code});
  const int64_t rows = codes.rows(), cols = codes.cols();
  const float* const scales = operands.vector("scales", {DType::F32}, rows).as<float>();
  const TensorView x = operands.matrix("x", kActivation, rows, cols);
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=](const PassFacts&) {
      launch_elements(stream, Extent(rows, cols), wide({codes, x}),
                      DequantizeRowsBody<Format, T>{Rows<typename Format::Code>(codes), scales, Rows<T>(x)});
    };
  });
}

// ---- Blocks of 4 bits -----------------------------------------------------------------------------------------------

// What bitsandbytes looks up in a codebook: x over its block's scale.
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
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kTogether; i += N) {
    Pack<float, N> loaded{};
    if (inside) loaded = load_row<N, X>(x, begin + i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      values[i + k] = loaded[k];
      largest = max(largest, magnitude(loaded[k]));
    }
  }
  const float scale = __uint_as_float(warp_max<kLanes>(largest));
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

// Where the scale of a block of 64 comes from.
struct Nf4Scales {
  const float* plain = nullptr;  // or
  const uint8_t* codes = nullptr;
  const float *block_scales = nullptr, *offset = nullptr;

  __device__ float operator[](int64_t block) const {
    return plain ? plain[block] : dynamic_codebook[codes[block]] * block_scales[block / kScaleBlock] + *offset;
  }
};

// Two codes a thread, or eight where x's rows hold whole groups of eight.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_nf4_kernel(const uint8_t* codes, Nf4Scales scales, int64_t count, Rows<T> x, int64_t cols) {
  __shared__ float numbers[16];
  if (threadIdx.x < 16) numbers[threadIdx.x] = nf4_codebook[threadIdx.x];
  __syncthreads();
  const int64_t begin = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (begin >= count) return;
  const auto pairs = load<N / 2>(codes + begin / 2);
  const float scale = scales[begin / kBlock];
  Pack<float, N> values;
#pragma unroll
  for (int k = 0; k < N; k += 2) {
    values[k] = numbers[pairs[k / 2] >> 4] * scale;
    values[k + 1] = numbers[pairs[k / 2] & 15] * scale;
  }
  if constexpr (N == 2) {
    store(*x.at(begin / cols, begin % cols), values[0]);
    store(*x.at((begin + 1) / cols, (begin + 1) % cols), values[1]);
  } else {
    save_floats<N>(x.stride == cols ? x.data + begin : x.at(begin / cols, begin % cols), values);
  }
}

Launch quantize_nf4(Operands& operands, const TensorView& x, cudaStream_t stream) {
  operands.expect(x.dense(), "rows of 'x' lie {} elements apart, expected dense", x.row_stride);
  operands.expect(x.count() % kBlock == 0, "'x' has {} elements, expected a multiple of {}", x.count(), kBlock);
  uint8_t* const codes = operands.vector("codes", {DType::U8}, x.count() / 2).as<uint8_t>();
  float* const scales = operands.vector("scales", {DType::F32}, x.count() / kBlock).as<float>();
  operands.done();
  const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  return dispatch_float(x.dtype, [&]<class X>() {
    return dispatch_wide(aligned, [&]<int N>() -> Launch {
      return [=](const PassFacts&) {
        quantize_nf4_kernel<N, X>
            <<<blocks_of(x.count(), kThreads * kTogether), kThreads, 0, stream>>>(x.data, x.count(), codes, scales);
        check_launch("quantize");
      };
    });
  });
}

Launch dequantize_nf4(const Dequantize& attrs, Operands& operands, cudaStream_t stream) {
  const TensorView packed = operands.dense("codes", {DType::U8});
  const int64_t count = 2 * packed.count(), blocks = count / kBlock;
  operands.expect(count % kBlock == 0, "'codes' has {} bytes, expected a multiple of {}", packed.count(), kBlock / 2);
  Nf4Scales scales;
  if (attrs.plain_scales) {
    scales.plain = operands.vector("scales", {DType::F32}, blocks).as<float>();
  } else {
    scales.codes = operands.vector("scale codes", {DType::U8}, blocks).as<uint8_t>();
    const int64_t groups = (blocks + kScaleBlock - 1) / kScaleBlock;
    scales.block_scales = operands.vector("block scales", {DType::F32}, groups).as<float>();
    scales.offset = operands.vector("offset", {DType::F32}, 1).as<float>();
  }
  const TensorView x = operands.take("x", kActivation);
  operands.expect(x.count() == count, "'x' is {}, expected {} elements", to_string(x.shape), count);
  operands.expect(x.rows() <= 1 || x.row_stride >= x.cols(), "rows of 'x' lie {} elements apart, expected at least {}",
                  x.row_stride, x.cols());
  operands.done();
  const bool groups = wide({x}) && reinterpret_cast<uintptr_t>(packed.data) % (kWide / 2) == 0;
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_wide(groups, [&]<int N>() -> Launch {
      constexpr int kNumbers = N == 1 ? 2 : N;
      return [=, codes = packed.as<uint8_t>()](const PassFacts&) {
        dequantize_nf4_kernel<kNumbers><<<blocks_of(count, kThreads * kNumbers), kThreads, 0, stream>>>(
            codes, scales, count, Rows<T>(x), x.cols());
        check_launch("dequantize");
      };
    });
  });
}

// A block of threads for each 256 scales.
__global__ void __launch_bounds__(kScaleBlock)
    quantize_scales_kernel(const float* scales, int64_t count, const float* offset, uint8_t* codes,
                           float* block_scales) {
  __shared__ uint32_t shared[32];
  const int64_t i = blockIdx.x * kScaleBlock + threadIdx.x;
  const float centred = i < count ? scales[i] - *offset : 0.0f;
  const float scale = __uint_as_float(block_max(magnitude(centred), shared, 0u));
  if (threadIdx.x == 0) block_scales[blockIdx.x] = scale;
  if (i >= count) return;
  const float y = normalise(centred, scale);
  uint32_t code = 0;  // how many bounds lie below y
#pragma unroll
  for (uint32_t step = 128; step > 0; step /= 2)
    if (dynamic_bounds[code + step - 1] < y) code += step;
  codes[i] = static_cast<uint8_t>(code);
}

}  // namespace

Launch bind_quantize(const Quantize& quantize, Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kFloat);
  expect_fp8_extras(quantize, operands);
  if (quantize.format == BaseFormat::Nf4) return quantize_nf4(operands, x, stream);
  if (quantize.format == BaseFormat::Int8) return quantize_rows<Int8>(operands, x, DType::I8, stream);
  operands.expect(quantize.format == BaseFormat::Fp8, "found format plain, expected one with fewer bits");
  if (quantize.columns) return quantize_columns(operands, x, stream);
  return quantize.factors ? quantize_rows<Fp8, true>(operands, x, DType::U8, stream)
                          : quantize_rows<Fp8>(operands, x, DType::U8, stream);
}

Launch bind_quantize_scales(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.dense("scales", {DType::F32});
  const int64_t count = x.count(), groups = (count + kScaleBlock - 1) / kScaleBlock;
  const float* const offset = operands.vector("offset", {DType::F32}, 1).as<float>();
  uint8_t* const codes = operands.vector("codes", {DType::U8}, count).as<uint8_t>();
  float* const block_scales = operands.vector("block scales", {DType::F32}, groups).as<float>();
  operands.done();
  return [=, scales = x.as<float>()](const PassFacts&) {
    quantize_scales_kernel<<<static_cast<unsigned>(groups), kScaleBlock, 0, stream>>>(scales, count, offset, codes,
                                                                                      block_scales);
    check_launch("quantize_scales");
  };
}

Launch bind_dequantize(const Dequantize& dequantize, Operands operands, cudaStream_t stream) {
  operands.expect(!dequantize.plain_scales || dequantize.format == BaseFormat::Nf4,
                  "found plain scales of another format than nf4, whose scales are always plain");
  operands.expect(dequantize.format != BaseFormat::Plain, "found format plain, expected one with fewer bits");
  if (dequantize.format == BaseFormat::Int8) return dequantize_rows<Int8>(operands, DType::I8, stream);
  if (dequantize.format == BaseFormat::Fp8) return dequantize_rows<Fp8>(operands, DType::U8, stream);
  return dequantize_nf4(dequantize, operands, stream);
}

}  // namespace snug::cuda
