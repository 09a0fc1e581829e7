#include "backend/cpu/matmul.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rounding.h"

namespace snug::cpu {
namespace {

constexpr int64_t kSliceMost = 512;

uint64_t floats(int64_t count) { return (static_cast<uint64_t>(count) * sizeof(float) + 63) / 64 * 64; }

// Says where widened factors, the sums and the library's own scratch lie in the scratch.
struct SumsScratch {
  SumsScratch(const MatmulSpec& spec, const PlainSums& plain)
      : b(plain.widen ? floats(spec.m * plain.slice_k) : 0),
        sums(b + (plain.widen ? floats(plain.slice_k * spec.n) : 0)),
        library(sums + floats(spec.m * spec.n)) {}
  uint64_t b, sums, library;
};

// Returns the product of the spec's own factors, whose sums have no gaps, without what comes after them.
MatmulSpec sums_spec(const MatmulSpec& spec) {
  return {.m = spec.m,
          .n = spec.n,
          .k = spec.k,
          .factors = spec.factors,
          .a_strides = spec.a_strides,
          .b_strides = spec.b_strides,
          .c_stride = spec.n,
          .d_stride = spec.n};
}

// Returns the fp32 product of one slice: its factors have no gaps, and the order of the spec's.
MatmulSpec slice_spec(const MatmulSpec& spec, int64_t k, bool add) {
  const auto dense = [](std::array<int64_t, 2> strides, int64_t rows, int64_t cols) {
    return strides[1] == 1 ? std::array<int64_t, 2>{cols, 1} : std::array<int64_t, 2>{1, rows};
  };
  MatmulSpec slice = sums_spec(spec);
  slice.k = k;
  slice.factors = DType::F32;
  slice.a_strides = dense(spec.a_strides, spec.m, k);
  slice.b_strides = dense(spec.b_strides, k, spec.n);
  if (add) slice.addend = MatmulSpec::Addend::InPlace;
  return slice;
}

// Widens a matrix of rows x cols elements to fp32, without gaps between its lines (rows, or columns if those are
// adjacent).
void widen(const BFloat16* from, std::array<int64_t, 2> strides, int64_t rows, int64_t cols, float* to) {
  const bool by_rows = strides[1] == 1;
  const int64_t lines = by_rows ? rows : cols, length = by_rows ? cols : rows, stride = strides[by_rows ? 0 : 1];
  for (int64_t line = 0; line < lines; line++) {
    const BFloat16* source = from + line * stride;
    float* target = to + line * length;
#pragma omp simd
    for (int64_t i = 0; i < length; i++) target[i] = static_cast<float>(source[i]);
  }
}

template <class T>
void add_row(const T* values, int64_t count, float* row) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) row[i] += static_cast<float>(values[i]);
}

void add_row(DType dtype, const std::byte* values, int64_t first, int64_t count, float* row) {
  if (dtype == DType::F32) return add_row(reinterpret_cast<const float*>(values) + first, count, row);
  add_row(reinterpret_cast<const BFloat16*>(values) + first, count, row);
}

// Computes d from the sums: alpha, addend and bias, in this order, in fp32.
void finish(const MatmulSpec& s, float* sums, const std::byte* c, const std::byte* bias, std::byte* d) {
  for (int64_t i = 0; i < s.m; i++) {
    float* row = sums + i * s.n;
    if (s.alpha != 1) std::transform(row, row + s.n, row, [&](float sum) { return s.alpha * sum; });
    if (s.addend == MatmulSpec::Addend::Separate) add_row(s.c, c, i * s.c_stride, s.n, row);
    if (s.addend == MatmulSpec::Addend::InPlace) add_row(s.d, d, i * s.d_stride, s.n, row);
    if (s.bias) add_row(s.bias_dtype, bias, 0, s.n, row);
    if (s.d == DType::F32)
      std::copy_n(row, s.n, reinterpret_cast<float*>(d) + i * s.d_stride);
    else
      std::transform(row, row + s.n, reinterpret_cast<BFloat16*>(d) + i * s.d_stride,
                     [](float value) { return BFloat16(value); });
  }
}

// Returns whether the library multiplies bf16 on this processor at all. It asks once, since refusals take long.
bool library_multiplies_bf16() {
  static const bool does = LibraryMatmul::make({.m = 32,
                                                .n = 32,
                                                .k = 32,
                                                .factors = DType::BF16,
                                                .a_strides = {32, 1},
                                                .b_strides = {32, 1},
                                                .d_stride = 32})
                               .has_value();
  return does;
}

}  // namespace

std::optional<Matmul> Matmul::make(const MatmulSpec& spec) {
  Matmul made(spec);
  PlainSums& sums = made.sums_;
  if (spec.factors != DType::BF16 || library_multiplies_bf16()) {
    const auto usable = [](const std::optional<LibraryMatmul>& product) { return product && !product->is_reference(); };
    const auto whole = LibraryMatmul::make(spec);
    const auto plain = usable(whole) ? std::nullopt : LibraryMatmul::make(sums_spec(spec));
    if (usable(plain))
      sums.first = plain;
    else if (whole)
      made.whole_ = whole;
    else
      return std::nullopt;
    return made;
  }
  sums.widen = true;
  sums.slices = ceil_div(spec.k, kSliceMost);
  sums.slice_k = std::min(spec.k, kSliceMost);
  sums.first_k = spec.k - (sums.slices - 1) * sums.slice_k;
  sums.first = LibraryMatmul::make(slice_spec(spec, sums.first_k, false));
  sums.next = LibraryMatmul::make(slice_spec(spec, sums.slice_k, true));
  if (!sums.first || !sums.next) return std::nullopt;
  return made;
}

uint64_t Matmul::scratch_bytes() const {
  if (whole_) return whole_->scratch_bytes();
  const uint64_t next = sums_.next ? sums_.next->scratch_bytes() : 0;
  return SumsScratch(spec_, sums_).library + std::max(sums_.first->scratch_bytes(), next);
}

std::string Matmul::implementation() const {
  if (whole_) return std::string(whole_->implementation());
  return fmt::format("{}, {}", sums_.widen ? "widened" : "sums", sums_.first->implementation());
}

MatmulCall::MatmulCall(const Matmul& matmul) : matmul_(std::make_shared<const Matmul>(matmul)) {
  if (matmul.whole_) {
    calls_.emplace_back(*matmul.whole_);
  } else {
    calls_.emplace_back(*matmul.sums_.first);
    if (matmul.sums_.next) calls_.emplace_back(*matmul.sums_.next);
  }
}

void MatmulCall::operator()(const std::byte* a, const std::byte* b, const std::byte* c, const std::byte* bias,
                            std::byte* d, std::byte* scratch) {
  if (matmul_->whole_) return calls_[0](a, b, c, bias, d, scratch);
  run_sums(a, b, scratch);
  const MatmulSpec& spec = matmul_->spec_;
  finish(spec, reinterpret_cast<float*>(scratch + SumsScratch(spec, matmul_->sums_).sums), c, bias, d);
}

void MatmulCall::run_sums(const std::byte* a, const std::byte* b, std::byte* scratch) {
  const MatmulSpec& spec = matmul_->spec_;
  const PlainSums& plain = matmul_->sums_;
  const SumsScratch at(spec, plain);
  if (!plain.widen) return calls_[0](a, b, nullptr, nullptr, scratch + at.sums, scratch + at.library);
  const auto *a_from = reinterpret_cast<const BFloat16*>(a), *b_from = reinterpret_cast<const BFloat16*>(b);
  for (int64_t slice = 0, begin = 0; slice < plain.slices; slice++) {
    const int64_t size = slice == 0 ? plain.first_k : plain.slice_k;
    widen(a_from + begin * spec.a_strides[1], spec.a_strides, spec.m, size, reinterpret_cast<float*>(scratch));
    widen(b_from + begin * spec.b_strides[0], spec.b_strides, size, spec.n, reinterpret_cast<float*>(scratch + at.b));
    calls_[slice == 0 ? 0 : 1](scratch, scratch + at.b, nullptr, nullptr, scratch + at.sums, scratch + at.library);
    begin += size;
  }
}

MatmulCalls::Lanes MatmulCalls::of(const MatmulSpec& spec, const Matmul& matmul, uint64_t lanes) {
  Lanes& calls = by_spec_[spec];
  if (!calls) calls = std::make_shared<std::vector<MatmulCall>>();
  while (calls->size() < lanes) calls->emplace_back(matmul);
  return calls;
}

}  // namespace snug::cpu
