// Every case of op_cases.h on the CPU backend.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "backend/cpu/math.h"
#include "base/parallel.h"
#include "count_allocations.h"
#include "op_runner.h"

namespace snug {
namespace {

struct OpTest : testing::TestWithParam<OpCase> {
  OpTest() : runner(backend, facts, [](void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }) {}
  ~OpTest() override { set_threads(1); }

  CpuBackend backend;
  CpuFacts facts;
  OpRunner runner;
};

TEST_P(OpTest, GivesTheReferenceInPlaceAndAlikeOnAnyNumberOfThreads) {
  OpRunner::Images first;
  for (const int threads : {1, 2, 3}) {
    set_threads(threads);
    OpRunner::Images images;
    ASSERT_EQ(runner.run(GetParam(), &images), "") << threads << " threads";
    if (threads == 1) first = images;
    EXPECT_TRUE(images == first) << threads << " threads give other bits than one";
  }
}

TEST_P(OpTest, AllocatesNothingInALaunch) {
#ifdef SNUG_PLAIN_THREADS
  GTEST_SKIP() << "the team's threads are made anew for every launch";
#endif
  set_threads(2);
  runner.run(GetParam());  // the team comes to life
  // oneDNN takes a few small blocks in every execution and gives them back; all else takes none.
  const auto is = [](auto... kinds) { return (std::holds_alternative<decltype(kinds)>(GetParam().attrs) || ...); };
  const bool library = is(Gemm{}, Fp8Gemm{}, AdaptedGemm{}, AdapterBackward{}, SwiGluGemm{}, SwiGluGemmBackward{});
  const auto count = library ? live_allocations : allocations;
  int64_t before = 0, after = 0;
  runner.before_launch = [&] { before = count(); };
  runner.after_launch = [&] { after = count(); };
  runner.run(GetParam());
  EXPECT_EQ(after - before, 0);
}

TEST_P(OpTest, RefusesOperandsThatAreNotItsKinds) { EXPECT_EQ(runner.bind_wrongly(GetParam()), ""); }

struct OpCodesTest : OpTest {};
TEST_P(OpCodesTest, GivesTheBitsOfSwiGluAndOfQuantize) { EXPECT_EQ(codes_wrongly(runner, GetParam()), ""); }
INSTANTIATE_TEST_SUITE_P(Cpu, OpCodesTest, testing::ValuesIn(codes_cases()), name_of);

INSTANTIATE_TEST_SUITE_P(Cpu, OpTest, testing::ValuesIn(op_cases()), name_of);

TEST(OpRestore, GivesTheForwardsBits) {
  CpuBackend backend;
  const CpuFacts facts;
  OpRunner runner(backend, facts, std::memcpy);
  EXPECT_EQ(restore_wrongly(runner), "");
}

TEST(OpEmbedding, RunsOfEqualIdsAreAddedInTheirOrder) {
  CpuBackend backend;
  const CpuFacts facts;
  OpRunner runner(backend, facts, std::memcpy);
  EXPECT_EQ(runs_wrongly(runner), "");
}

TEST(OpAdapter, FaintResultsAreNotLostInRounding) {
  CpuBackend backend;
  const CpuFacts facts;
  OpRunner runner(backend, facts, std::memcpy);
  EXPECT_EQ(faint_adapter_wrongly(runner, false), "");
}

TEST(OpCases, CoverEveryKindThatABackendRuns) {
  std::vector<bool> covered(std::variant_size_v<Attrs>, false);
  for (const OpCase& c : op_cases()) covered[c.attrs.index()] = true;
  for (const Attrs& executors :
       {Attrs(AllGather{}), Attrs(Exchange{}), Attrs(HostTask{}), Attrs(ReadFile{}), Attrs(WriteFile{})})
    covered[executors.index()] = true;
  for (size_t i = 0; i < covered.size(); i++) EXPECT_TRUE(covered[i]) << "kind " << i << " of Attrs";
}

TEST(Exp, IsWithinAUnitInTheLastPlace) {
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 997) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const float got = cpu::exp(x);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(got));
      continue;
    }
    const double want = std::exp(static_cast<double>(x));
    const auto nearest = static_cast<float>(want);
    if (std::isinf(nearest)) {
      EXPECT_TRUE(got == nearest) << x;
      continue;
    }
    const double unit = std::max(static_cast<double>(std::nextafter(nearest, 3.4e38f) - nearest), 0x1p-149);
    ASSERT_TRUE(std::abs(static_cast<double>(got) - want) <= unit)
        << x << ": " << got << " found, " << want << " expected";
  }
}

TEST(Exp, HasItsLimits) {
  EXPECT_EQ(cpu::exp(0), 1);
  EXPECT_EQ(cpu::exp(-std::numeric_limits<float>::infinity()), 0);
  EXPECT_EQ(cpu::exp(std::numeric_limits<float>::infinity()), std::numeric_limits<float>::infinity());
  EXPECT_EQ(cpu::exp(89), std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace snug
