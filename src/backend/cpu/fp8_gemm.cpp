// Computes products of fp8 codes: every code is a bf16 number, so a bf16 product with fp32 sums is exact for them.
#include <array>

#include "backend/cpu/matmul.h"
#include "backend/cpu/products.h"
#include "backend/cpu/runs.h"
#include "backend/product.h"
#include "base/rounding.h"
#include "tensor/codebook.h"

namespace snug::cpu {
namespace {

constexpr uint64_t kAlignment = 64;

uint64_t aligned(uint64_t bytes) { return round_up(bytes, kAlignment); }

// Lays out the scratch: both factors and the sums, one after the other; the product's own scratch follows.
struct Inner {
  std::array<Operand, 3> operands;
  uint64_t bytes = 0;

  explicit Inner(const Shape& a, const Shape& b) {
    const std::array shapes{a, b, Shape{a.rows(), b.rows()}};
    for (size_t i = 0; i < shapes.size(); i++) {
      const DType dtype = i < 2 ? DType::BF16 : DType::F32;
      operands[i] = {0, i < 2 ? Access::Read : Access::Write, dtype, shapes[i], bytes, shapes[i].cols()};
      bytes = aligned(bytes + operands[i].extent());
    }
  }
};

void decode(const TensorView& codes, const TensorView& numbers) {
  share_rows(codes.rows(), codes.cols(),
             [from = Rows<uint8_t>(codes), to = Rows<BFloat16>(numbers), cols = codes.cols()](int64_t row) {
               const uint8_t* source = from[row];
               BFloat16* target = to[row];
#pragma omp simd
               for (int64_t i = 0; i < cols; i++)
                 target[i].bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(float_from_fp8(source[i])) >> 16);
             });
}

}  // namespace

uint64_t fp8_gemm_scratch_bytes(std::span<const Operand> operands, const GemmScratch& gemm_scratch) {
  check(operands.size() >= 5, "fp8_gemm: {} operands, expected 5 or more", operands.size());
  const Inner inner(operands[0].shape, operands[2].shape);
  return inner.bytes + gemm_scratch(Gemm{.transpose_b = true}, inner.operands);
}

Launch bind_fp8_gemm(const Fp8Gemm& gemm, std::span<const TensorView> views, MatmulCalls& calls) {
  const Product p = product_of(gemm, views);
  const size_t last = views.size() - 1;
  const Inner inner(views[0].shape, views[2].shape);
  const TensorView& scratch = views[last];
  check(last == 5u + gemm.addend + gemm.bias && static_cast<uint64_t>(scratch.count()) >= inner.bytes,
        "fp8_gemm: {} bytes of scratch expected", inner.bytes);
  std::vector<TensorView> product;
  for (const Operand& operand : inner.operands)
    product.push_back({scratch.data + operand.offset, operand.dtype, operand.shape, operand.row_stride});
  if (const auto left = scratch.count() - static_cast<int64_t>(inner.bytes); left > 0)
    product.push_back({scratch.data + inner.bytes, DType::U8, {left}, left});
  const Launch multiply = bind_gemm(Gemm{.transpose_b = true}, product, calls);
  const auto bound = std::make_shared<std::vector<TensorView>>(views.begin(), views.end());
  return [=, a = product[0], b = product[1], sums = Rows<float>(product[2]), rows = p.m,
          cols = p.n](const RuntimeScalars& runtime) {
    const std::vector<TensorView>& v = *bound;
    decode(v[0], a);
    decode(v[2], b);
    multiply(runtime);
    const float *a_scales = v[1].as<float>(), *b_scales = v[3].as<float>();
    const BFloat16* bias = gemm.bias ? v[4u + gemm.addend].as<BFloat16>() : nullptr;
    const Rows<BFloat16> addend(v[4]), d(v[last - 1]);
    share_rows(rows, cols, [&](int64_t row) {
      const float* sum = sums[row];
      BFloat16* result = d[row];
      const BFloat16* c = gemm.addend ? addend[row] : nullptr;
      for (int64_t i = 0; i < cols; i++) {
        float value = a_scales[row] * b_scales[i] * sum[i];
        if (c) value += static_cast<float>(c[i]);
        if (bias) value += static_cast<float>(bias[i]);
        result[i] = BFloat16(value);
      }
    });
  };
}

}  // namespace snug::cpu
