// What planning knows of the CUDA backend, on any machine.
#include <gtest/gtest.h>

#include "backend/cuda/facts.h"

namespace snug {
namespace {

uint64_t scratch(const Attrs& attrs, const Shape& first) {
  const Operand operand{0, Access::Read, DType::BF16, first, 0, first.cols()};
  return CudaFacts().scratch_bytes(attrs, std::span(&operand, 1));
}

TEST(CudaFacts, ProductsShareOneCap) { EXPECT_EQ(scratch(Gemm{}, {4096, 4096}), uint64_t{32} << 20); }

TEST(CudaFacts, AGainsGradientNeedsARowOfSumsForEveryEightRows) {
  EXPECT_EQ(scratch(RmsNormBackward{false, true}, {17, 5}), 3 * 5 * sizeof(float));
  EXPECT_EQ(scratch(RmsNormBackward{false, false}, {17, 5}), 0);
}

TEST(CudaFacts, AttentionNeedsCountersAndItsBackwardANumberForEveryTokenAndHead) {
  EXPECT_EQ(scratch(AttentionBackward{{32, 8, 128}}, {4096, 4096}), 256 + 4096 * 32 * sizeof(float));
  EXPECT_EQ(scratch(Attention{{32, 8, 128}}, {4096, 6144}), 256);
}

}  // namespace
}  // namespace snug
