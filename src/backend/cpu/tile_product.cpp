#include "backend/cpu/tile_product.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__AVX512F__) || defined(__AMX_BF16__)
#include <immintrin.h>
#endif
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace snug::cpu {
namespace {

// ---- The matrix unit (AMX: eight tiles of 16 rows of 64 bytes) ------------------------------------------------------

#if defined(__AMX_BF16__)
// Asks Linux for the tiles, which a process may use once it has asked; asking again is harmless.
bool ask_for_matrix_unit() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_matrix_unit() {
  static const bool granted = ask_for_matrix_unit();
  return granted;
}

// Configures all eight tiles at their full size.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0;
  std::array<uint8_t, 14> reserved{};
  std::array<uint16_t, 8> bytes_per_row{64, 64, 64, 64, 64, 64, 64, 64};
  std::array<uint16_t, 8> unused_bytes{};
  std::array<uint8_t, 8> rows{16, 16, 16, 16, 16, 16, 16, 16};
  std::array<uint8_t, 8> unused_rows{};
};
static_assert(sizeof(TileConfiguration) == 64);
constexpr TileConfiguration kTileConfiguration;

// Tiles 0 to 3 are a block of 32 x 32 sums, 4 and 5 its rows of A, 6 and 7 its columns of B.
void matrix_unit_product(const BFloat16* a, int64_t a_stride, const BFloat16* b, int64_t b_width, float* c,
                         int64_t c_stride, int64_t m, int64_t n, int64_t k, bool accumulate) {
  const auto a_bytes = static_cast<size_t>(a_stride) * 2, b_bytes = static_cast<size_t>(b_width) * 4,
             c_bytes = static_cast<size_t>(c_stride) * 4;
  for (int64_t j = 0; j < n; j += 32) {
    for (int64_t i = 0; i < m; i += 32) {
      float* c0 = c + i * c_stride + j;
      float* c1 = c0 + 16 * c_stride;
      if (accumulate) {
        _tile_loadd(0, c0, c_bytes);
        _tile_loadd(1, c0 + 16, c_bytes);
        _tile_loadd(2, c1, c_bytes);
        _tile_loadd(3, c1 + 16, c_bytes);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int64_t p = 0; p < k; p += 32) {
        const BFloat16* a0 = a + i * a_stride + p;
        const BFloat16* b0 = b + p * b_width + 2 * j;
        _tile_loadd(4, a0, a_bytes);
        _tile_loadd(6, b0, b_bytes);
        _tile_loadd(5, a0 + 16 * a_stride, a_bytes);
        _tile_loadd(7, b0 + 32, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, c0, c_bytes);
      _tile_stored(1, c0 + 16, c_bytes);
      _tile_stored(2, c1, c_bytes);
      _tile_stored(3, c1 + 16, c_bytes);
    }
  }
}
#endif

// ---- Vectors: 8 rows x 32 columns of sums in registers --------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int64_t kRows = 8;

// `step(sum, a, b)` adds one group of the summed dimension; a is broadcast, both are 16 times 32 bits.
template <class T, class Step>
void vector_product(const T* a, int64_t a_stride, const T* b, int64_t b_width, float* c, int64_t c_stride, int64_t m,
                    int64_t n, int64_t k, bool accumulate, Step step) {
  for (int64_t j = 0; j < n; j += 32) {
    for (int64_t i = 0; i < m; i += kRows) {
      __m512 sums[kRows][2];
      for (int64_t r = 0; r < kRows; r++)
        for (int64_t h = 0; h < 2; h++)
          sums[r][h] = accumulate ? _mm512_loadu_ps(c + (i + r) * c_stride + j + 16 * h) : _mm512_setzero_ps();
      for (int64_t p = 0; p < k; p += kGroup<T>) {
        const T* row = b + p * b_width + j * kGroup<T>;
        const __m512i b0 = _mm512_loadu_si512(row), b1 = _mm512_loadu_si512(row + 16 * kGroup<T>);
#pragma GCC unroll 8
        for (int64_t r = 0; r < kRows; r++) {
          const __m512i broadcast = _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(a + (i + r) * a_stride + p));
          sums[r][0] = step(sums[r][0], broadcast, b0);
          sums[r][1] = step(sums[r][1], broadcast, b1);
        }
      }
      for (int64_t r = 0; r < kRows; r++)
        for (int64_t h = 0; h < 2; h++) _mm512_storeu_ps(c + (i + r) * c_stride + j + 16 * h, sums[r][h]);
    }
  }
}
#endif

// ---- Any processor: 4 rows x 16 columns of sums in registers --------------------------------------------------------

using Floats = float __attribute__((vector_size(32)));
using Words = uint32_t __attribute__((vector_size(32)));
constexpr int64_t kLanes = 8, kPlainRows = 4;

template <class Vector>
Vector load(const void* from) {
  Vector values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}

// Returns one group of B's rows as fp32: a word holds two bf16 numbers, the one of the first row in its lower half.
[[maybe_unused]] inline std::array<Floats, 1> group_of(const float* b) { return {load<Floats>(b)}; }
inline std::array<Floats, 2> group_of(const BFloat16* b) {
  const auto words = load<Words>(b);
  return {std::bit_cast<Floats>(words << 16), std::bit_cast<Floats>(words & 0xffff0000u)};
}

template <class T>
[[maybe_unused]] void plain_product(const T* a, int64_t a_stride, const T* b, int64_t b_width, float* c,
                                    int64_t c_stride, int64_t m, int64_t n, int64_t k, bool accumulate) {
  for (int64_t j = 0; j < n; j += 2 * kLanes) {
    for (int64_t i = 0; i < m; i += kPlainRows) {
      Floats sums[kPlainRows][2] = {};
      float* const first = c + i * c_stride + j;
      if (accumulate)
        for (int64_t r = 0; r < kPlainRows; r++)
          for (int64_t h = 0; h < 2; h++) sums[r][h] = load<Floats>(first + r * c_stride + h * kLanes);
      for (int64_t p = 0; p < k; p += kGroup<T>) {
        const T* group = b + p * b_width + j * kGroup<T>;
        const auto left = group_of(group), right = group_of(group + kLanes * kGroup<T>);
#pragma GCC unroll 4
        for (int64_t r = 0; r < kPlainRows; r++) {
#pragma GCC unroll 2
          for (int64_t g = 0; g < kGroup<T>; g++) {
            const auto factor = static_cast<float>(a[(i + r) * a_stride + p + g]);
            sums[r][0] += factor * left[static_cast<size_t>(g)];
            sums[r][1] += factor * right[static_cast<size_t>(g)];
          }
        }
      }
      for (int64_t r = 0; r < kPlainRows; r++)
        for (int64_t h = 0; h < 2; h++) std::memcpy(first + r * c_stride + h * kLanes, &sums[r][h], sizeof(Floats));
    }
  }
}

}  // namespace

#if defined(__AMX_BF16__)
TileUnit::TileUnit() {
  if (has_matrix_unit()) _tile_loadconfig(&kTileConfiguration);
}
TileUnit::~TileUnit() {
  if (has_matrix_unit()) _tile_release();
}
#else
TileUnit::TileUnit() = default;
TileUnit::~TileUnit() = default;
#endif

const char* tile_unit_name() {
#if defined(__AMX_BF16__)
  if (has_matrix_unit()) return "amx_bf16";
#endif
#if defined(__AVX512BF16__)
  if (has_avx512_bf16()) return "avx512_bf16";
#endif
  return "plain";
}

template <>
void tile_product<BFloat16>(const BFloat16* a, int64_t a_stride, const BFloat16* b, int64_t b_width, float* c,
                            int64_t c_stride, int64_t m, int64_t n, int64_t k, bool accumulate) {
#if defined(__AMX_BF16__)
  if (has_matrix_unit()) return matrix_unit_product(a, a_stride, b, b_width, c, c_stride, m, n, k, accumulate);
#endif
#if defined(__AVX512BF16__)
  if (has_avx512_bf16()) {
    const auto step = [](__m512 sum, __m512i x, __m512i y) {
      return _mm512_dpbf16_ps(sum, std::bit_cast<__m512bh>(x), std::bit_cast<__m512bh>(y));
    };
    return vector_product(a, a_stride, b, b_width, c, c_stride, m, n, k, accumulate, step);
  }
#endif
  plain_product(a, a_stride, b, b_width, c, c_stride, m, n, k, accumulate);
}

template <>
void tile_product<float>(const float* a, int64_t a_stride, const float* b, int64_t b_width, float* c, int64_t c_stride,
                         int64_t m, int64_t n, int64_t k, bool accumulate) {
#if defined(__AVX512F__)
  vector_product(a, a_stride, b, b_width, c, c_stride, m, n, k, accumulate, [](__m512 sum, __m512i x, __m512i y) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y), sum);
  });
#else
  plain_product(a, a_stride, b, b_width, c, c_stride, m, n, k, accumulate);
#endif
}

}  // namespace snug::cpu
