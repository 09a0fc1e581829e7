// Quantises numbers to 8 and 4 bits and back: the CPU's operations in the CPU's order, so that codes are equal.
#include "backend/cuda/fp8.cuh"
#include "backend/cuda/transpose.cuh"

namespace snug::cuda {
namespace {

// ---- Rows of 8 bits -------------------------------------------------------------------------------------------------

struct Int8 {
  using Code = int8_t;
  __device__ static float scale(float abs_max) { return abs_max; }
  __device__ static float factor(float scale) { return 1.0f / scale * 127.0f; }
  template <int N>
  __device__ static void put(Code* to, const Pack<float, N>& x, float, float factor) {
    constexpr float kRound = 0x1.8p23f;  // added and subtracted again: rounds to a whole number, to even
    Pack<Code, N> codes;
#pragma unroll
    for (int k = 0; k < N; k++) {
      float y = x[k] * factor;
      y = y > 127.0f ? 127.0f : y;
      y = y < -127.0f ? -127.0f : y;
      y = y == y ? y : 0.0f;  // 0 times infinity in a row of zeros, and rows that are not finite
      codes[k] = static_cast<Code>(__float_as_int(y + kRound) - __float_as_int(kRound));
    }
    save<N>(to, codes);
  }
  __device__ static float value(Code code, float scale) {
    return static_cast<float>(code) * scale * 7.874015718698502e-3f;  // 1 / 127
  }
};

// Takes row after row in a block of threads, which holds a row in registers, kGroupsPerThread groups of N elements in
// each thread, and fetches the next one meanwhile. Factors of columns, if there are any, stay in shared memory. With
// kColumns it finds the largest absolute values of columns as well: each thread has the same columns of all its rows.
template <int N, class Format, class X, bool kFactors, bool kColumns, int kGroupsPerThread, int kRowThreads>
__global__ void __launch_bounds__(kRowThreads, 1024 / kRowThreads)
    quantize_rows_kernel(ByteRows x, const float* factors, int64_t rows, int64_t cols,
                         Rows<typename Format::Code> codes, float* scales, float* column_max) {
  extern __shared__ __align__(16) float cached_factors[];
  __shared__ uint32_t shared[2][32];
  constexpr int64_t kStride = int64_t{kRowThreads} * N;
  const int64_t first = int64_t{threadIdx.x} * N;
  const auto inside = [&](int i) { return first + i * kStride < cols; };
  if constexpr (kFactors)
    for (int64_t i = threadIdx.x; i < cols; i += kRowThreads) cached_factors[i] = factors[i];
  if constexpr (kFactors) __syncthreads();

  Raw<X, N> current[kGroupsPerThread] = {}, next[kGroupsPerThread] = {};
  ColumnMax<N> largest[kColumns ? kGroupsPerThread : 1];
  const auto fetch = [&](int64_t row) {
    const auto* const start = reinterpret_cast<const X*>(x.at(row));
#pragma unroll
    for (int i = 0; i < kGroupsPerThread; i++)
      if (inside(i)) next[i].fetch(start + first + i * kStride);
  };
  const auto values = [&](int i) {
    Pack<float, N> floats = current[i].floats();
    if constexpr (kFactors) {
      const auto by = load<N>(cached_factors + first + i * kStride);
#pragma unroll
      for (int k = 0; k < N; k++) floats[k] *= by[k];
    }
    return floats;
  };
  fetch(blockIdx.x);
  int buffer = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x, buffer = 1 - buffer) {
#pragma unroll
    for (int i = 0; i < kGroupsPerThread; i++) current[i] = next[i];
    if (row + gridDim.x < rows) fetch(row + gridDim.x);
    if constexpr (kColumns)
#pragma unroll
      for (int i = 0; i < kGroupsPerThread; i++) largest[i].add(current[i].words);
    uint32_t abs_max = 0;
    if constexpr (sizeof(X) == 2 && !kFactors) {
      abs_max = abs_max_bits(current);
    } else {
#pragma unroll
      for (int i = 0; i < kGroupsPerThread; i++) {
        if (!inside(i)) continue;
        const Pack<float, N> floats = values(i);
#pragma unroll
        for (int k = 0; k < N; k++) abs_max = max(abs_max, abs_bits(floats[k]));
      }
    }
    const float scale = Format::scale(__uint_as_float(block_max(abs_max, shared[buffer], 0u)));
    if (threadIdx.x == 0) scales[row] = scale;
    const float factor = Format::factor(scale);
#pragma unroll
    for (int i = 0; i < kGroupsPerThread; i++)
      if (inside(i)) Format::template put<N>(codes.at(row, first + i * kStride), values(i), scale, factor);
  }
  if constexpr (kColumns) {
    __syncthreads();  // all have read the factors
    auto* const found = reinterpret_cast<uint32_t*>(cached_factors);
#pragma unroll
    for (int i = 0; i < kGroupsPerThread; i++)
      if (inside(i)) largest[i].put(found + first + i * kStride);
    __syncthreads();
    add_column_max(found, cols, column_max);
  }
}

// Takes a block for each row of any length and place, and reads the row twice.
template <int N, class Format, class X, bool kFactors>
__global__ void __launch_bounds__(kThreads) quantize_any_rows_kernel(ByteRows x, const float* factors, int64_t cols,
                                                                     Rows<typename Format::Code> codes, float* scales) {
  __shared__ uint32_t shared[32];
  const int64_t row = blockIdx.x, first = int64_t{threadIdx.x} * N;
  constexpr int64_t kStride = int64_t{kThreads} * N;
  const auto values = [&](int64_t col) {
    auto floats = load_row<N, X>(x.at(row), col);
    if constexpr (kFactors) {
      const auto by = load<N>(factors + col);
#pragma unroll
      for (int k = 0; k < N; k++) floats[k] *= by[k];
    }
    return floats;
  };
  uint32_t abs_max = 0;
  for (int64_t col = first; col < cols; col += kStride) {
    const Pack<float, N> floats = values(col);
#pragma unroll
    for (int k = 0; k < N; k++) abs_max = max(abs_max, abs_bits(floats[k]));
  }
  const float scale = Format::scale(__uint_as_float(block_max(abs_max, shared, 0u)));
  if (threadIdx.x == 0) scales[row] = scale;
  const float factor = Format::factor(scale);
  for (int64_t col = first; col < cols; col += kStride)
    Format::template put<N>(codes.at(row, col), values(col), scale, factor);
}

// ---- Columns of 8 bits ----------------------------------------------------------------------------------------------

constexpr int kColumnGroups = 32, kColumnSteps = 64;  // of a block: threads side by side, and rows that each takes

// Finds the largest absolute value of each column, as bits: the order of blocks does not change it.
template <int N, class X>
__global__ void __launch_bounds__(kThreads)
    column_abs_max_kernel(ByteRows x, int64_t rows, int64_t cols, uint32_t* abs_max) {
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
      for (int k = 0; k < N; k++) found[k] = max(found[k], abs_bits(values[k]));
    }
#pragma unroll
  for (int k = 0; k < N; k++) shared[line][group * N + k] = found[k];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kColumnGroups * N && first + i < cols; i += kThreads) {
    uint32_t column_max = 0;
#pragma unroll
    for (int l = 0; l < kLines; l++) column_max = max(column_max, shared[l][i]);
    atomicMax(abs_max + first + i, column_max);
  }
}

__global__ void column_scales_kernel(int64_t cols, float* scales) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < cols) scales[i] = Fp8::scale(scales[i]);
}

// Gives 16 codes of a row, each with its column's scale.
template <class X>
struct ColumnCodes {
  ByteRows x;
  const float* scales;
  struct Columns {
    ByteRows x;
    int64_t col;
    Pack<float, 16> scale, factor;
    bool fast;
    __device__ Raw<X, 16> fetch(int64_t row) const {
      Raw<X, 16> raw;
      raw.fetch(reinterpret_cast<const X*>(x.at(row)) + col);
      return raw;
    }
    __device__ void put(const Raw<X, 16>& raw, uint8_t* to) const {
      Fp8::put<16>(to, raw.floats(), scale.x, factor.x, fast);
    }
  };
  __device__ Columns from(int64_t col) const {
    Columns columns{x, col, load<16>(scales + col), {}, true};
#pragma unroll
    for (int i = 0; i < 16; i++) {
      columns.factor[i] = Fp8::factor(columns.scale[i]);
      columns.fast = columns.fast && columns.factor[i] != 0;
    }
    return columns;
  }
};

// Takes any sizes: element (row, col) of the codes is x's (col, row).
template <class X>
struct ColumnCodesBody {
  ByteRows x;
  const float* scales;
  Rows<uint8_t> codes;
  template <int>
  __device__ void operator()(int64_t row, int64_t col) const {
    const Pack<float, 1> value{{load_any_byte<X>(x.at(col), row)}};
    Fp8::put<1>(codes.at(row, col), value, scales[row], Fp8::factor(scales[row]));
  }
};

// Enqueues the search for the scales of x's columns; `aligned` says that rows can be read kWide elements at a time.
template <class X>
void launch_column_scales(const TensorView& x, bool aligned, float* scales, cudaStream_t stream) {
  const int64_t rows = x.rows(), cols = x.cols();
  clear_column_max(scales, cols, stream);
  dispatch_wide(aligned, [&]<int N>() {
    const dim3 grid(blocks_of(cols, kColumnGroups * N), blocks_of(rows, kThreads / kColumnGroups * kColumnSteps));
    column_abs_max_kernel<N, X>
        <<<grid, kThreads, 0, stream>>>(ByteRows(x), rows, cols, reinterpret_cast<uint32_t*>(scales));
  });
  scale_columns_by_max(scales, cols, stream);
}

// With `known`, the scales are there already.
Launch quantize_columns(Operands& operands, const TensorView& x, bool known, cudaStream_t stream) {
  const TensorView codes = operands.matrix("codes", {DType::U8}, x.cols(), x.rows());
  float* const scales = operands.vector("scales", {DType::F32}, x.cols()).as<float>();
  operands.done();
  const bool tiles =
      wide({x}) && x.cols() % 16 == 0 && in_sixteens(codes) && reinterpret_cast<uintptr_t>(scales) % 16 == 0;
  return dispatch_float(x.dtype, [&]<class X>() -> Launch {
    return [=](const RuntimeScalars&) {
      const int64_t rows = x.rows(), cols = x.cols();
      if (!known) launch_column_scales<X>(x, tiles, scales, stream);
      if (tiles)
        transpose_kernel<<<transpose_grid(x), kThreads, 0, stream>>>(ColumnCodes<X>{ByteRows(x), scales}, rows, cols,
                                                                     Rows<uint8_t>(codes));
      else
        launch_elements(stream, Extent(cols, rows), false,
                        ColumnCodesBody<X>{ByteRows(x), scales, Rows<uint8_t>(codes)});
      check_launch("quantize");
    };
  });
}

// A thread requests this many rows of its column before it works on the first.
constexpr int kRowsAhead = 8;

template <class Format, class T, int N>
__global__ void __launch_bounds__(kThreads)
    dequantize_rows_kernel(Rows<typename Format::Code> codes, const float* scales, int64_t rows, int64_t cols,
                           Rows<T> x) {
  const int64_t col = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N, step = int64_t{gridDim.y} * kRowsAhead;
  if (col >= cols) return;
  for (int64_t first = int64_t{blockIdx.y} * kRowsAhead; first < rows; first += step) {
    Pack<typename Format::Code, N> loaded_codes[kRowsAhead];
    float scale[kRowsAhead];
#pragma unroll
    for (int i = 0; i < kRowsAhead; i++) {
      const int64_t row = min(first + i, rows - 1);
      loaded_codes[i] = load<N>(codes.at(row, col));
      scale[i] = scales[row];
    }
#pragma unroll
    for (int i = 0; i < kRowsAhead; i++) {
      if (first + i >= rows) return;
      Pack<float, N> values;
#pragma unroll
      for (int k = 0; k < N; k++) values[k] = Format::value(loaded_codes[i][k], scale[i]);
      save_floats<N>(x.at(first + i, col), values);
    }
  }
}

// Where rows are quantized, and with what.
struct RowCodes {
  TensorView x;
  const float* factors;
  TensorView codes;
  float *scales, *column_scales;
};

// Returns a launch of the kernel that holds a row of kGroupsPerThread groups in each of kRowThreads threads; none if
// the device lacks the shared memory.
template <class Format, class X, bool kFactors, bool kColumns, int kGroupsPerThread, int kRowThreads>
std::optional<Launch> register_rows(const RowCodes& of, cudaStream_t stream) {
  const auto kernel = quantize_rows_kernel<kWide, Format, X, kFactors, kColumns, kGroupsPerThread, kRowThreads>;
  const int64_t rows = of.x.rows(), cols = of.x.cols();
  const size_t shared = kFactors || kColumns ? static_cast<size_t>(cols) * sizeof(float) : 0;
  const int64_t blocks = std::min(rows, resident_blocks(kernel, kRowThreads, shared));
  if (blocks == 0) return std::nullopt;
  return [=](const RuntimeScalars&) {
    if constexpr (kColumns) clear_column_max(of.column_scales, cols, stream);
    kernel<<<static_cast<unsigned>(blocks), kRowThreads, shared, stream>>>(
        ByteRows(of.x), of.factors, rows, cols, Rows<typename Format::Code>(of.codes), of.scales, of.column_scales);
    if constexpr (kColumns) scale_columns_by_max(of.column_scales, cols, stream);
    check_launch("quantize");
  };
}

// Returns a launch of the kernel whose threads hold rows of so many groups, if there is one.
template <class Format, class X, bool kFactors>
std::optional<Launch> register_rows(const RowCodes& of, cudaStream_t stream) {
  const int64_t groups = of.x.cols() / kWide;
  constexpr bool kNarrow = sizeof(X) == 2;
  if constexpr (std::is_same_v<Format, Fp8> && std::is_same_v<X, BFloat16>) {
    // Threads have registers for the largest values of two groups.
    if (of.column_scales && groups <= 2 * kThreads)
      return register_rows<Format, X, kFactors, true, 2, kThreads>(of, stream);
    if (of.column_scales && groups <= 4 * kThreads)
      return register_rows<Format, X, kFactors, true, 2, 2 * kThreads>(of, stream);
    if (of.column_scales && groups <= 8 * kThreads)
      return register_rows<Format, X, kFactors, true, 2, 4 * kThreads>(of, stream);
  }
  if (of.column_scales) return std::nullopt;
  if (groups <= 2 * kThreads) return register_rows<Format, X, kFactors, false, 2, kThreads>(of, stream);
  if constexpr (kNarrow) {
    if (groups <= 4 * kThreads) return register_rows<Format, X, kFactors, false, 4, kThreads>(of, stream);
    if (groups <= 8 * kThreads) return register_rows<Format, X, kFactors, false, 4, 2 * kThreads>(of, stream);
    if (groups <= 16 * kThreads) return register_rows<Format, X, kFactors, false, 4, 4 * kThreads>(of, stream);
  }
  return std::nullopt;
}

template <class Format, bool kFactors = false>
Launch quantize_rows(const Quantize& quantize, Operands& operands, const TensorView& x, DType code,
                     cudaStream_t stream) {
  RowCodes of{.x = x, .factors = nullptr, .codes = {}, .scales = nullptr, .column_scales = nullptr};
  if constexpr (kFactors) of.factors = operands.vector("factors", {DType::F32}, x.cols()).as<float>();
  of.codes = operands.matrix("codes", {code}, x.rows(), x.cols());
  of.scales = operands.vector("scales", {DType::F32}, x.rows()).as<float>();
  if (quantize.column_scales) of.column_scales = operands.vector("column_scales", {DType::F32}, x.cols()).as<float>();
  operands.done();
  return dispatch_float(x.dtype, [&]<class X>() -> Launch {
    const bool rows_aligned = wide({x}),
               aligned = rows_aligned && wide({of.codes}) && reinterpret_cast<uintptr_t>(of.factors) % 16 == 0;
    if (aligned)
      if (const std::optional<Launch> launch = register_rows<Format, X, kFactors>(of, stream)) return *launch;
    return dispatch_wide(aligned, [&]<int N>() -> Launch {
      return [=](const RuntimeScalars&) {
        if (of.column_scales) launch_column_scales<X>(of.x, rows_aligned, of.column_scales, stream);
        if (of.x.rows() == 0) return;
        quantize_any_rows_kernel<N, Format, X, kFactors><<<static_cast<unsigned>(of.x.rows()), kThreads, 0, stream>>>(
            ByteRows(of.x), of.factors, of.x.cols(), Rows<typename Format::Code>(of.codes), of.scales);
        check_launch("quantize");
      };
    });
  });
}

template <class Format>
Launch dequantize_rows(Operands& operands, DType code, cudaStream_t stream) {
  const TensorView codes = operands.take("codes", {code});
  const int64_t rows = codes.rows(), cols = codes.cols();
  const float* const scales = operands.vector("scales", {DType::F32}, rows).as<float>();
  const TensorView x = operands.matrix("x", kActivation, rows, cols);
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_wide(wide({codes, x}), [&]<int N>() -> Launch {
      return [=](const RuntimeScalars&) {
        if (rows == 0 || cols == 0) return;
        const dim3 grid(blocks_of(cols, N * kThreads), grid_rows(blocks_of(rows, kRowsAhead)));
        dequantize_rows_kernel<Format, T, N>
            <<<grid, kThreads, 0, stream>>>(Rows<typename Format::Code>(codes), scales, rows, cols, Rows<T>(x));
        check_launch("dequantize");
      };
    });
  });
}

}  // namespace

Launch bind_quantize(const Quantize& quantize, Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kFloat);
  expect_fp8_extras(quantize, operands);
  if (quantize.format == BaseFormat::Nf4) return quantize_nf4(operands, x, stream);
  if (quantize.format == BaseFormat::Int8) return quantize_rows<Int8>(quantize, operands, x, DType::I8, stream);
  operands.expect(quantize.format == BaseFormat::Fp8, "found format plain, expected one with fewer bits");
  if (quantize.columns) return quantize_columns(operands, x, quantize.column_scales, stream);
  return quantize.factors ? quantize_rows<Fp8, true>(quantize, operands, x, DType::U8, stream)
                          : quantize_rows<Fp8>(quantize, operands, x, DType::U8, stream);
}

void clear_column_max(float* column_max, int64_t cols, cudaStream_t stream) {
  check_cuda(cudaMemsetAsync(column_max, 0, static_cast<size_t>(cols) * sizeof(float), stream), "quantize");
}

void scale_columns_by_max(float* column_max, int64_t cols, cudaStream_t stream) {
  if (cols > 0) column_scales_kernel<<<blocks_of(cols, kThreads), kThreads, 0, stream>>>(cols, column_max);
  check_launch("quantize");
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
