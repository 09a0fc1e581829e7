// Every case of op_cases.h on the CUDA backend.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "backend/cuda/backend.h"
#include "backend/cuda/facts.h"
#include "op_runner.h"

namespace snug {
namespace {

void copy_bytes(void* to, const void* from, size_t bytes) {
  cudaError_t status = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
  if (status == cudaSuccess) status = cudaStreamSynchronize(cudaStreamLegacy);  // lanes do not wait for it
  check(status == cudaSuccess, "copying {} bytes: {}", bytes, cudaGetErrorString(status));
}

// One backend for all cases: a context takes longer than all of them.
struct Device {
  CudaBackend backend{0};
  CudaFacts facts;
  OpRunner runner{backend, facts, copy_bytes};
};

struct CudaOpTest : testing::TestWithParam<OpCase> {
  static void SetUpTestSuite() { device = new Device; }
  static void TearDownTestSuite() { delete device; }
  OpRunner& runner() {
    device->runner.after_launch = [] { device->backend.streams()->finish(); };
    return device->runner;
  }
  static inline Device* device = nullptr;
};

TEST_P(CudaOpTest, GivesTheReferenceInPlaceAndAlikeEveryTime) {
  OpRunner::Images first, second;
  ASSERT_EQ(runner().run(GetParam(), &first), "");
  ASSERT_EQ(runner().run(GetParam(), &second), "");
  EXPECT_TRUE(first == second) << "a second run gives other bits";
}

TEST_P(CudaOpTest, RefusesOperandsThatAreNotItsKinds) { EXPECT_EQ(runner().bind_wrongly(GetParam()), ""); }

struct CudaFusedTest : CudaOpTest {};
TEST_P(CudaFusedTest, GivesTheBitsOfSwiGlu) { EXPECT_EQ(fused_wrongly(runner(), GetParam()), ""); }

TEST(CudaOpRestore, GivesTheForwardsBits) {
  Device device;
  device.runner.after_launch = [&] { device.backend.streams()->finish(); };
  EXPECT_EQ(restore_wrongly(device.runner), "");
}

TEST(CudaOpEmbedding, RunsOfEqualIdsAreAddedInTheirOrder) {
  Device device;
  device.runner.after_launch = [&] { device.backend.streams()->finish(); };
  EXPECT_EQ(runs_wrongly(device.runner), "");
}

// cuBLASLt rounds a product before it adds a matrix in bf16.
TEST(CudaOpAdapter, FaintResultsAreNotLostInRoundingTheAddend) {
  Device device;
  device.runner.after_launch = [&] { device.backend.streams()->finish(); };
  EXPECT_EQ(faint_adapter_wrongly(device.runner, true), "");
}

// Large products over a side that 8 does not divide are two. cuBLASLt rounds a product before it adds a matrix or a
// bias in bf16, so that these are rounded twice.
TEST(CudaOpProducts, SidesThat8DoesNotDivideGiveTheReference) {
  Device device;
  device.runner.after_launch = [&] { device.backend.streams()->finish(); };
  const DType t = DType::BF16, f32 = DType::F32;
  const int64_t even = 1024, odd = 1029, tail = 3;
  OpCases cases{
      {"k",
       Gemm{.alpha = 0.5f},
       {in("a", t, {even, odd}, uniform(), tail), in("b", t, {odd, even}), out("d", t, {even, even})},
       {}},
      {"k of both",
       Gemm{.transpose_b = true, .bias = true},
       {in("a", t, {even, odd}, uniform(), tail), in("b", t, {even, odd}, uniform(), tail), in("bias", t, {even}),
        out("d", t, {even, even})},
       {}},
      {"n",
       Gemm{.transpose_b = true, .bias = true},
       {in("a", t, {even, even}), in("b", t, {odd, even}), in("bias", t, {odd}), out("d", t, {even, odd}, tail)},
       {}},
      {"m",
       Gemm{.transpose_a = true, .addend = true},
       {in("a", t, {even, odd}, uniform(), tail), in("b", t, {even, even}), in("c", f32, {odd, even}),
        out("d", f32, {odd, even})},
       {}},
      {"k and n",
       Gemm{.addend = true},
       {in("a", t, {even, odd}, uniform(), tail), in("b", t, {odd, odd}, uniform(), tail),
        in("c", t, {even, odd}, uniform(), tail), out("d", t, {even, odd}, tail)},
       {}}};
  for (OpCase& c : cases) {
    c.relative = 0x1p-8;
    c.absolute = 0.02;
    device.runner.run(c);  // finds algorithms, which overwrites operands
    EXPECT_EQ(device.runner.run(c), "") << c.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaOpTest, testing::ValuesIn(op_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaFusedTest, testing::ValuesIn(fused_cases()), name_of);

}  // namespace
}  // namespace snug
