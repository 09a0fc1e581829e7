// What planning knows of the CUDA backend, on any machine.
#include <gtest/gtest.h>

#include "backend/cuda/expect.h"
#include "backend/cuda/facts.h"
#include "dense_operand.h"
#include "expect_error.h"
#include "op_cases.h"

namespace snug {
namespace {

uint64_t scratch(const Attrs& attrs, const Shape& first) {
  const Operand operand{0, Access::Read, DType::BF16, first, 0, first.cols()};
  return CudaFacts().scratch_bytes(attrs, std::span(&operand, 1));
}

TEST(CudaFacts, ProductsShareOneCap) { EXPECT_EQ(scratch(Gemm{}, {4096, 4096}), uint64_t{32} << 20); }

// Of three heads each row is three.
TEST(CudaFacts, AGainsGradientNeedsARowOfSumsForEveryEightRows) {
  const auto of_rows = [](bool trained, int64_t heads) {
    const Operand x{0, Access::Read, DType::BF16, {17, heads * 5}, 0, heads * 5},
        gain{1, Access::Read, DType::BF16, {5}};
    return CudaFacts().scratch_bytes(RmsNormBackward{false, trained}, std::array{x, x, gain});
  };
  EXPECT_EQ(of_rows(true, 1), 3 * 5 * sizeof(float));
  EXPECT_EQ(of_rows(true, 3), 7 * 5 * sizeof(float));
  EXPECT_EQ(of_rows(false, 1), 0);
}

TEST(CudaFacts, AttentionNeedsCountersAndItsBackwardANumberForEveryTokenAndHead) {
  EXPECT_EQ(scratch(AttentionBackward{{{32, 8, 128}}}, {4096, 4096}), 256 + 4096 * 32 * sizeof(float));
  EXPECT_EQ(scratch(Attention{{32, 8, 128}}, {4096, 4096}), 256);
}

TEST(CudaFacts, AttentionIsByTilesForHeadsThatFourDivides) {
  using cuda::attention_kernel, cuda::AttentionKernel;
  for (const int64_t dim : {8, 32, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256}) {
    EXPECT_EQ(attention_kernel(DType::BF16, dim, 90), AttentionKernel::ByWarpgroups) << dim;
    for (const int capability : {80, 86, 89, 100, 120})
      EXPECT_EQ(attention_kernel(DType::BF16, dim, capability), AttentionKernel::ByTiles) << dim;
    EXPECT_EQ(attention_kernel(DType::F32, dim, 90), AttentionKernel::ByToken) << dim;
  }
  EXPECT_EQ(attention_kernel(DType::BF16, 100, 90), AttentionKernel::ByTiles);
  for (const int64_t dim : {7, 98, 260}) EXPECT_EQ(attention_kernel(DType::BF16, dim, 90), AttentionKernel::ByToken);
  EXPECT_EQ(attention_kernel(DType::BF16, 128, 75), AttentionKernel::ByToken);
  EXPECT_EQ(name(AttentionKernel::ByWarpgroups), "by warpgroups");
}

// 2 and 1 column blocks of 1024; 44 ranges each fill 132 multiprocessors, of 64 rows in 2 stages there are 2.
// 8,192 tokens, 16 heads of 128: an H200 takes 838 us with one head of keys; 448 are planned with eight.
TEST(CudaFacts, TheBackwardTakesLongerWhereHeadsOfKeysAreFew) {
  const auto stretch = [](int64_t kv_heads, int64_t keys, int64_t longest, bool bidirectional = false) {
    AttentionBackward op;
    op.shape = {16, kv_heads, 128};
    op.longest = longest;
    op.bidirectional = bidirectional;
    return cuda::few_tiles_stretch(op, keys);
  };
  EXPECT_NEAR(stretch(1, 8192, 2048), 838.0 / 448, 0.02);
  for (const int64_t kv_heads : {2, 4, 8, 16}) EXPECT_EQ(stretch(kv_heads, 8192, 2048), 1) << kv_heads;
  EXPECT_EQ(stretch(1, 65536, 2048), 1);
  EXPECT_LT(stretch(1, 8192, 2048, true), stretch(1, 8192, 2048)) << "all keys are seen as often";
}

TEST(CudaFacts, AnAdaptersGradientsNeedPartialSumsOfEveryColumnBlockAndRange) {
  const AdaptedParts parts{{0, 2048}, {2048, 3072}};
  EXPECT_EQ(cuda::adapter_column_blocks(parts), 3);
  EXPECT_EQ(cuda::adapter_ranges(16384, 3), 44);
  EXPECT_EQ(cuda::adapter_ranges(64, 3), 2);
  EXPECT_EQ(cuda::adapter_backward_scratch_bytes({1, parts}, 64, 16), (3 * 64 + 2 * 3072) * 16 * sizeof(float));
  EXPECT_EQ(cuda::adapter_backward_scratch_bytes({1, parts}, 64, 32), 0);
}

// Operands of a case at addresses of their own, and scratch, if there is any.
std::vector<TensorView> views_of(const OpCase& c) {
  std::vector<TensorView> views;
  std::vector<Operand> operands;
  uintptr_t next = 0;
  const auto address = [&] { return reinterpret_cast<std::byte*>(next += uintptr_t{1} << 30); };
  for (const CaseOperand& operand : c.operands) {
    views.push_back({address(), operand.dtype, operand.shape, operand.shape.cols() + operand.tail});
    operands.push_back({.dtype = operand.dtype, .shape = operand.shape});
  }
  const auto scratch = static_cast<int64_t>(CudaFacts().scratch_bytes(c.attrs, operands));
  if (scratch > 0) views.push_back({address(), DType::U8, Shape{scratch}, scratch});
  return views;
}

template <class Kind>
int check_cases_of() {
  int count = 0;
  for (const OpCase& c : op_cases()) {
    const auto* op = std::get_if<Kind>(&c.attrs);
    if (!op) continue;
    SCOPED_TRACE(c.name);
    count++;
    const std::vector<TensorView> views = views_of(c);
    EXPECT_NO_THROW(cuda::expect_fused(*op, views));
    EXPECT_TRUE(
        fails_with<InternalError>([&] { cuda::expect_fused(*op, std::span(views).first(views.size() - 1)); }, ""));
    for (size_t i = 0; i < c.operands.size(); i++) {
      auto wrong = views;
      wrong[i].dtype = DType::I32;
      EXPECT_TRUE(fails_with<InternalError>([&] { cuda::expect_fused(*op, wrong); }, "")) << c.operands[i].name;
      wrong = views;
      const Shape& shape = views[i].shape;
      wrong[i].shape = shape.rank == 1 ? Shape{shape[0] + 1} : Shape{shape[0] + 1, shape[1] + 1};
      wrong[i].row_stride = wrong[i].cols();
      EXPECT_TRUE(fails_with<InternalError>([&] { cuda::expect_fused(*op, wrong); }, "")) << c.operands[i].name;
    }
  }
  return count;
}

TEST(CudaFacts, OperandsOfOneKernelAreThoseOfAllItIsMadeOf) {
  EXPECT_GT(check_cases_of<AdaptedGemm>(), 0);
  EXPECT_GT(check_cases_of<AdapterBackward>(), 0);
  EXPECT_GT(check_cases_of<SwiGluGemm>(), 0);
  EXPECT_GT(check_cases_of<SwiGluGemmBackward>(), 0);
  EXPECT_GT(check_cases_of<SwiGluQuantize>(), 0);
  EXPECT_GT(check_cases_of<SwiGluBackwardQuantize>(), 0);
}

// x, w, u, v, d of a linear of 4,096 in and out with an adapter of this rank.
std::vector<Operand> adapted(int64_t rows, int64_t rank, DType t = DType::BF16) {
  return {dense(t, {rows, 4096}), dense(t, {4096, 4096}), dense(t, {rows, rank}), dense(t, {4096, rank}),
          dense(t, {rows, 4096})};
}

TEST(CudaFacts, WhatIsNotOnItsFastKernelSaysWhy) {
  const AdaptedGemm op{true, {{0}, {4096}}};
  const auto kernel = [&](int capability, const std::vector<Operand>& operands) {
    return CudaFacts(capability).kernel(op, operands);
  };
  EXPECT_FALSE(kernel(90, adapted(2048, 16)).composed);
  EXPECT_EQ(kernel(90, adapted(2048, 16)).slow, "");
  EXPECT_TRUE(kernel(90, adapted(2048, 12)).composed);
  EXPECT_EQ(kernel(90, adapted(2048, 12)).slow, "rows do not begin and end at multiples of 16 bytes");
  EXPECT_EQ(kernel(90, adapted(64, 16)).slow, "there are fewer than 128 rows");
  EXPECT_EQ(kernel(90, adapted(2048, 16, DType::F32)).slow, "numbers are not bf16");
  EXPECT_TRUE(kernel(89, adapted(2048, 16)).composed);
  EXPECT_EQ(kernel(89, adapted(2048, 16)).slow, "") << "such cards have no faster one";
}

TEST(CudaFacts, CodeRunsOnLaterCardsOfItsGenerationAndIfTheDriverCompilesItOnAll) {
  const auto runs = [](std::string_view code, std::initializer_list<int> on) {
    for (const int capability : {80, 86, 89, 90, 100, 120, 130})
      if (cuda::has_code(code, capability) != (std::ranges::find(on, capability) != on.end())) return false;
    return true;
  };
  EXPECT_TRUE(runs("", {}));
  EXPECT_TRUE(runs("80", {80, 86, 89}));
  EXPECT_TRUE(runs("86", {86, 89}));
  EXPECT_TRUE(runs("80,90a", {80, 86, 89, 90}));
  EXPECT_TRUE(runs("90a", {90}));
  EXPECT_TRUE(runs("90-virtual", {90, 100, 120, 130}));
  EXPECT_TRUE(runs("100,120,120-virtual", {100, 120, 130}));
}

TEST(CudaFacts, ProductsOfOddRowsAreSlow) {
  const auto slow = [](int64_t columns) {
    const DType t = DType::BF16;
    return CudaFacts()
        .kernel(Gemm{.transpose_b = true},
                std::array{dense(t, {512, columns}), dense(t, {64, columns}), dense(t, {512, 64})})
        .slow;
  };
  EXPECT_EQ(slow(1024), "");
  EXPECT_EQ(slow(1023), "rows do not begin and end at multiples of 16 bytes");
}

// Of what begins well a large product over an odd side is two; where rows begin anywhere, or little is done, it is not.
TEST(CudaFacts, LargeProductsOverOddSidesAreTwo) {
  const auto name = [](int64_t m, int64_t n, int64_t k, int64_t stride) {
    const DType t = DType::BF16;
    std::array operands{dense(t, {m, k}), dense(t, {k, n}), dense(t, {m, n})};
    operands[0].row_stride = stride;
    return CudaFacts().kernel(Gemm{}, operands).name;
  };
  EXPECT_EQ(name(2048, 2048, 4096, 4096), "cuBLASLt");
  EXPECT_EQ(name(2048, 2048, 4095, 4096), "cuBLASLt, twice");
  EXPECT_EQ(name(2048, 2048, 4095, 4095), "cuBLASLt");
  EXPECT_EQ(name(64, 64, 4095, 4096), "cuBLASLt");
}

}  // namespace
}  // namespace snug
