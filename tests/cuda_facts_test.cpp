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

// 2 and 1 column blocks of 1024; 44 ranges each fill 132 multiprocessors, of 64 rows in 2 stages there are 2.
TEST(CudaFacts, AnAdaptersGradientsNeedPartialSumsOfEveryColumnBlockAndRange) {
  const AdaptedParts parts{{0, 2048}, {2048, 3072}};
  EXPECT_EQ(cuda::adapter_column_blocks(parts), 3);
  EXPECT_EQ(cuda::adapter_ranges(16384, 3), 44);
  EXPECT_EQ(cuda::adapter_ranges(64, 3), 2);
  EXPECT_EQ(cuda::adapter_backward_scratch_bytes({1, parts}, 64, 16), (3 * 64 + 2 * 3072) * 16 * sizeof(float));
  EXPECT_EQ(cuda::adapter_backward_scratch_bytes({1, parts}, 64, 32), 0);
}

}  // namespace
}  // namespace snug
