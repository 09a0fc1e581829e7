// Quantises numbers to 8 and 4 bits and back. Every step is one fp32 operation, in bitsandbytes' order; the result is
// rounded once to its dtype. No code that a file may hold and no number leads out of a table.
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "base/rounding.h"
#include "tensor/codebook.h"

namespace snug::cpu {
namespace {

constexpr int64_t kBlock = kNf4Block, kScaleBlock = kNf4ScaleBlock;
constexpr float kLeastScale = 1e-38f;  // bitsandbytes' divisor if a block's scale is less

// Returns the largest absolute value of value(0..n - 1), NaN if one is NaN, by comparing bits, whose order is that of
// the absolute values.
template <class Value>
float abs_max(int64_t n, const Value& value) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < n; i++) {
    const uint32_t bits = std::bit_cast<uint32_t>(value(i)) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return std::bit_cast<float>(largest);
}
template <class X>
float abs_max(const std::byte* x, int64_t n) {
  return abs_max(n, [x](int64_t i) { return load<X>(x, i); });
}

// ---- Rows of 8 bits -------------------------------------------------------------------------------------------------

template <class X>
void int8_row(const std::byte* x, int64_t n, int8_t* codes, float& scale) {
  constexpr float kRound = 0x1.8p23f;  // added and subtracted again: rounds to a whole number, to even
  scale = abs_max<X>(x, n);
  const float factor = 1.0f / scale * 127.0f;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float y = load<X>(x, i) * factor;
    y = y > 127.0f ? 127.0f : y;
    y = y < -127.0f ? -127.0f : y;
    y = y == y ? y : 0.0f;  // 0 times infinity in a row of zeros, and rows that are not finite
    codes[i] = static_cast<int8_t>(std::bit_cast<int32_t>(y + kRound) - std::bit_cast<int32_t>(kRound));
  }
}

template <class Value>
void fp8_codes(int64_t n, const Value& value, uint8_t* codes, float scale) {
  if (scale == 0) return static_cast<void>(std::memset(codes, 0, static_cast<size_t>(n)));
#pragma omp simd
  for (int64_t i = 0; i < n; i++) codes[i] = fp8_from_float(value(i) / scale);
}

template <class Value>
void fp8_row(int64_t n, const Value& value, uint8_t* codes, float& scale) {
  scale = abs_max(n, value) / kFp8Largest;
  fp8_codes(n, value, codes, scale);
}

// Writes the scales that the columns of x have if they are quantized as rows are.
template <class X>
void fp8_column_scales(const TensorView& x, float* scales) {
  const int64_t rows = x.rows(), bytes = x.row_stride * static_cast<int64_t>(sizeof(X));
  share_rows(x.cols(), rows, [&](int64_t c) {
    scales[c] = abs_max(rows, [&](int64_t i) { return load<X>(x.data + i * bytes, c); }) / kFp8Largest;
  });
}

template <class X, class Code, class Row>
Launch quantize_rows(const Quantize& quantize, Operands& operands, const TensorView& x, DType code, Row row) {
  const int64_t rows = x.rows(), cols = x.cols();
  const TensorView codes = operands.matrix("codes", {code}, rows, cols);
  float* const scales = operands.vector("scales", {DType::F32}, rows).as<float>();
  float* const column_scales =
      quantize.column_scales ? operands.vector("column_scales", {DType::F32}, cols).as<float>() : nullptr;
  operands.done();
  return [=, to = Rows<Code>(codes)](const RuntimeScalars&) {
    const int64_t bytes = x.row_stride * static_cast<int64_t>(element_bytes(x.dtype));
    share_rows(rows, cols, [&](int64_t r) { row(x.data + r * bytes, cols, to[r], scales[r]); });
    if (column_scales) fp8_column_scales<X>(x, column_scales);
  };
}

// With `known`, the scales are there already.
template <class X>
Launch quantize_columns(Operands& operands, const TensorView& x, bool known) {
  const int64_t rows = x.rows(), cols = x.cols();
  const TensorView codes = operands.matrix("codes", {DType::U8}, cols, rows);
  float* const scales = operands.vector("scales", {DType::F32}, cols).as<float>();
  operands.done();
  return [=, to = Rows<uint8_t>(codes)](const RuntimeScalars&) {
    const int64_t bytes = x.row_stride * static_cast<int64_t>(element_bytes(x.dtype));
    if (!known) fp8_column_scales<X>(x, scales);
    share_rows(cols, rows, [&](int64_t c) {
      fp8_codes(
          rows, [&](int64_t i) { return load<X>(x.data + i * bytes, c); }, to[c], scales[c]);
    });
  };
}

template <class Code, class Value>
Launch dequantize_rows(Operands& operands, DType code, const Value& value) {
  const TensorView codes = operands.take("codes", {code});
  const int64_t rows = codes.rows(), cols = codes.cols();
  const float* const scales = operands.vector("scales", {DType::F32}, rows).as<float>();
  const TensorView x = operands.matrix("x", kActivation, rows, cols);
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=, from = Rows<Code>(codes), to = Rows<T>(x)](const RuntimeScalars&) {
      share_rows(rows, cols, [&](int64_t r) {
        const Code* source = from[r];
        T* target = to[r];
        const float scale = scales[r];
#pragma omp simd
        for (int64_t i = 0; i < cols; i++) store(target[i], value(source[i], scale));
      });
    };
  });
}

// ---- Blocks of 4 bits -----------------------------------------------------------------------------------------------

// Returns x over its block's scale, as bitsandbytes looks it up in a codebook.
inline float normalise(float x, float scale) {
  const float inverse = 1.0f / (scale < kLeastScale ? kLeastScale : scale);
  const float y = x * inverse;
  return y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y;
}

template <class X>
void nf4_block(const std::byte* x, uint8_t* codes, float& scale) {
  static constexpr auto kBounds = middles(kNf4Codebook);
  scale = abs_max<X>(x, kBlock);
  int32_t code[kBlock];
#pragma omp simd
  for (int64_t i = 0; i < kBlock; i++) {
    const float y = normalise(load<X>(x, i), scale);
    int32_t below = 0;
    for (const float bound : kBounds) below += bound < y ? 1 : 0;
    code[i] = below;
  }
  for (int64_t i = 0; i < kBlock / 2; i++) codes[i] = static_cast<uint8_t>(code[2 * i] << 4 | code[2 * i + 1]);
}

// Writes the kBlock numbers of a block: each is one of 16 values, rounded once a block, in the place of its code.
template <class T>
void decode_block(const uint8_t* codes, float scale, T* x) {
  alignas(64) T values[16];
#pragma omp simd
  for (size_t i = 0; i < 16; i++) store(values[i], kNf4Codebook[i] * scale);
#if defined(__AVX512F__)
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  __m512i table;
  if constexpr (sizeof(T) == 2)
    table = _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(values)));
  else
    table = _mm512_load_si512(values);
  for (int64_t i = 0; i < kBlock / 2; i += 16) {
    const __m512i pair = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    // A permutation uses the lowest 4 bits of an index.
    const __m512i first = _mm512_permutexvar_epi32(_mm512_srli_epi32(pair, 4), table);
    const __m512i second = _mm512_permutexvar_epi32(pair, table);
    if constexpr (sizeof(T) == 2) {
      _mm512_storeu_si512(x + 2 * i, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
    } else {
      _mm512_storeu_si512(x + 2 * i, _mm512_permutex2var_epi32(first, low, second));
      _mm512_storeu_si512(x + 2 * i + 16, _mm512_permutex2var_epi32(first, high, second));
    }
  }
#else
  for (int64_t i = 0; i < kBlock / 2; i++) {
    x[2 * i] = values[codes[i] >> 4];
    x[2 * i + 1] = values[codes[i] & 15];
  }
#endif
}

// Writes numbers begin .. begin + kBlock of a matrix in row order, wherever its rows lie.
template <class T>
void put_block(const T* block, const Rows<T>& x, int64_t cols, int64_t begin) {
  for (int64_t done = 0; done < kBlock;) {
    const int64_t row = (begin + done) / cols, col = (begin + done) % cols, count = std::min(kBlock - done, cols - col);
    std::copy_n(block + done, count, x[row] + col);
    done += count;
  }
}

struct Nf4Scales : Nf4ScaleViews {
  float operator[](int64_t i) const {
    return plain ? plain[i] : kSignedMap[codes[i]] * block_scales[i / kScaleBlock] + *offset;
  }
};

Launch quantize_nf4(Operands& operands, const TensorView& x) {
  operands.expect(x.dense(), "rows of 'x' lie {} elements apart, expected dense", x.row_stride);
  operands.expect(x.count() % kBlock == 0, "'x' has {} elements, expected a multiple of {}", x.count(), kBlock);
  const int64_t blocks = x.count() / kBlock;
  uint8_t* const codes = operands.vector("codes", {DType::U8}, x.count() / 2).as<uint8_t>();
  float* const scales = operands.vector("scales", {DType::F32}, blocks).as<float>();
  operands.done();
  return dispatch_float(x.dtype, [&]<class X>() -> Launch {
    return [=](const RuntimeScalars&) {
      share_rows(blocks, kBlock, [&](int64_t b) {
        nf4_block<X>(x.data + b * kBlock * static_cast<int64_t>(sizeof(X)), codes + b * kBlock / 2, scales[b]);
      });
    };
  });
}

Launch dequantize_nf4(const Dequantize& attrs, Operands& operands) {
  const Nf4Operands nf4 = nf4_operands(attrs, operands);
  const Nf4Scales scales{nf4.scales};
  const int64_t blocks = nf4.count / kBlock;
  return dispatch_activation(nf4.x.dtype, [&]<class T>() -> Launch {
    return [=, codes = nf4.packed.as<uint8_t>(), x = nf4.x, to = Rows<T>(nf4.x)](const RuntimeScalars&) {
      const bool dense = x.dense();
      share_rows(blocks, kBlock, [&](int64_t b) {
        if (dense) return decode_block(codes + b * kBlock / 2, scales[b], to.data + b * kBlock);
        T block[kBlock];
        decode_block(codes + b * kBlock / 2, scales[b], block);
        put_block(block, to, x.cols(), b * kBlock);
      });
    };
  });
}

}  // namespace

Launch bind_quantize(const Quantize& quantize, Operands operands) {
  const TensorView x = operands.take("x", kFloat);
  expect_fp8_extras(quantize, operands);
  if (quantize.format == BaseFormat::Nf4) return quantize_nf4(operands, x);
  return dispatch_float(x.dtype, [&]<class X>() {
    if (quantize.format == BaseFormat::Int8)
      return quantize_rows<X, int8_t>(quantize, operands, x, DType::I8, int8_row<X>);
    operands.expect(quantize.format == BaseFormat::Fp8, "found format plain, expected one with fewer bits");
    if (quantize.columns) return quantize_columns<X>(operands, x, quantize.column_scales);
    if (!quantize.factors)
      return quantize_rows<X, uint8_t>(quantize, operands, x, DType::U8,
                                       [](const std::byte* row, int64_t n, uint8_t* codes, float& scale) {
                                         fp8_row(
                                             n, [row](int64_t i) { return load<X>(row, i); }, codes, scale);
                                       });
    const float* const factors = operands.vector("factors", {DType::F32}, x.cols()).as<float>();
    return quantize_rows<X, uint8_t>(
        quantize, operands, x, DType::U8, [factors](const std::byte* row, int64_t n, uint8_t* codes, float& scale) {
          fp8_row(
              n, [row, factors](int64_t i) { return load<X>(row, i) * factors[i]; }, codes, scale);
        });
  });
}

Launch bind_quantize_scales(Operands operands) {
  const auto of = quantize_scales_operands(operands, kScaleBlock);
  const int64_t count = of.scales.count(), groups = ceil_div(count, kScaleBlock);
  const float* const offset = of.offset;
  uint8_t* const codes = of.codes;
  float* const block_scales = of.block_scales;
  return [=, scales = of.scales.as<float>()](const RuntimeScalars&) {
    static constexpr auto kBounds = middles(kSignedMap);
    share(groups, [&](int64_t group) {
      const int64_t begin = group * kScaleBlock, n = std::min(count - begin, kScaleBlock);
      float centred[kScaleBlock];
      for (int64_t i = 0; i < n; i++) centred[i] = scales[begin + i] - *offset;
      const float scale = abs_max<float>(reinterpret_cast<const std::byte*>(centred), n);
      block_scales[group] = scale;
      for (int64_t i = 0; i < n; i++) {
        const float* bound = std::lower_bound(kBounds.begin(), kBounds.end(), normalise(centred[i], scale));
        codes[begin + i] = static_cast<uint8_t>(bound - kBounds.begin());
      }
    });
  };
}

Launch bind_dequantize(const Dequantize& dequantize, Operands operands) {
  operands.expect(!dequantize.plain_scales || dequantize.format == BaseFormat::Nf4,
                  "found plain scales of another format than nf4, whose scales are always plain");
  switch (dequantize.format) {
    case BaseFormat::Int8: {
      constexpr float kUnit8 = 7.874015718698502e-3f;  // 1 / 127
      return dequantize_rows<int8_t>(operands, DType::I8, [](const int8_t& code, float scale) {
        return static_cast<float>(code) * scale * kUnit8;
      });
    }
    case BaseFormat::Fp8:
      return dequantize_rows<uint8_t>(operands, DType::U8,
                                      [](const uint8_t& code, float scale) { return float_from_fp8(code) * scale; });
    case BaseFormat::Nf4:
      return dequantize_nf4(dequantize, operands);
    case BaseFormat::Plain:
      break;
  }
  operands.expect(false, "found format plain, expected one with fewer bits");
  return {};
}

}  // namespace snug::cpu
