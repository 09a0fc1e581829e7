// What the CPU backend promises beyond the cases of op_cases.h.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/arena.h"
#include "backend/cpu/backend.h"
#include "expect_error.h"

namespace snug {
namespace {

template <class T>
TensorView view(std::vector<T>& x, const Shape& shape) {
  return {reinterpret_cast<std::byte*>(x.data()), dtype_of<T>(), shape, shape.cols()};
}

Launch bind(const Attrs& attrs, const std::vector<TensorView>& views) {
  Op op;
  op.attrs = attrs;
  op.site = "layer.3.fwd.op";
  return CpuBackend().bind(op, views);
}

TEST(CpuBackend, ReservesZeroedAlignedBytesOnceASpace) {
  CpuBackend backend;
  std::byte* const block = backend.reserve(Space::Device, 5000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 256, 0u);
  for (size_t i = 0; i < 5000; i++) ASSERT_EQ(block[i], std::byte{0});
  EXPECT_NE(backend.reserve(Space::Host, 100), nullptr);
  EXPECT_TRUE(fails_with<InternalError>([&] { backend.reserve(Space::Device, 7); }, "5000 bytes, then 7"));
}

TEST(CpuBackend, SaysHowManyBytesTheMachineHasNot) {
  CpuBackend backend;
  for (const char* part : {"reserving 1152921504606846976 bytes for the host space: found ", "--host-memory"})
    EXPECT_TRUE(fails_with<CapacityError>([&] { backend.reserve(Space::Host, uint64_t{1} << 60); }, part));
}

TEST(CpuBackend, NamesSiteOperandFoundAndExpected) {
  std::vector<float> x(12), gain(5), y(12), rstd(3);
  const auto wrong = [&] { bind(RmsNorm{}, {view(x, {3, 4}), view(gain, {5}), view(y, {3, 4}), view(rstd, {3})}); };
  EXPECT_TRUE(
      fails_with<InternalError>(wrong, "layer.3.fwd.op (rms_norm): 'gain' is [5], expected a divisor of 4 elements"));
  std::vector<int32_t> ids(3);
  const auto dtype = [&] { bind(SwiGlu{}, {view(ids, {1, 3}), view(y, {1, 1})}); };
  EXPECT_TRUE(fails_with<InternalError>(dtype, "'gate_up' is int32, expected fp32 or bf16"));
}

TEST(CpuBackend, LeavesToTheExecutorWhatIsItsOwn) {
  EXPECT_TRUE(fails_with<InternalError>([] { bind(HostTask{}, {}); }, "the executor's"));
}

TEST(CpuBackend, RefusesIndicesOutsideTheirTable) {
  std::vector<float> table(8), x(4), weight(1), losses(1);
  for (const int32_t id : {-1, 4}) {
    std::vector<int32_t> ids{0, id};
    const Launch embed = bind(Embedding{}, {view(ids, {2}), view(table, {4, 2}), view(x, {2, 2})});
    EXPECT_TRUE(fails_with<InternalError>([&] { embed({}); }, fmt::format("index {} at 1", id)));
    std::vector<int32_t> target{id};
    const Launch loss =
        bind(CrossEntropy{}, {view(x, {1, 4}), view(target, {1}), view(weight, {1}), view(losses, {1})});
    EXPECT_TRUE(fails_with<InternalError>([&] { loss({.loss_rows = 1}); }, fmt::format("target {}", id)));
  }
}

TEST(CpuBackend, ArenaGivesViewsByThePlan) {
  ProgramSet set;
  set.buffers = {{"a", 64}, {"b", 32, Space::Host}};
  MemoryPlan plan;
  plan.offset = {256, 0};
  plan.reserved_bytes = {512, 256, 0};
  CpuBackend backend;
  const Arena arena(backend, plan, ".");
  const Operand all{0, Access::Read, DType::F32, {2, 3}, 0, 8}, part{0, Access::Read, DType::F32, {2, 3}, 8, 8};
  EXPECT_EQ(arena.view(part, plan, set).data - arena.view(all, plan, set).data, 8);
  EXPECT_EQ(arena.view(part, plan, set).row_stride, 8);
  const Operand beyond{1, Access::Read, DType::F32, {9}, 0, 9};
  EXPECT_TRUE(fails_with<InternalError>([&] { arena.view(beyond, plan, set); }, "'b' ends at byte 36"));
}

// One step of torch.optim.AdamW (2.15, foreach and fused off) with the same numbers: bit for bit.
TEST(AdamW, RoundsAsTorchDoes) {
  std::vector<float> w{-0x1.868d74p+0f, -0x1.801e62p-1f, -0x1.4ed696p-1f, -0x1.9c0732p+0f,
                       -0x1.9a48e6p-4f, -0x1.37e79cp-1f, -0x1.f5a4b6p-1f, -0x1.9bedbcp+0f};
  std::vector<float> g{-0x1.a1d514p-6f, -0x1.05f8fep+0f, -0x1.313f2ep-1f, -0x1.016a76p+0f,
                       -0x1.af525cp-3f, -0x1.eea280p-8f, 0x1.ac65bap+0f,  0x1.52e9f4p-7f};
  std::vector<float> m{0x1.23c8d6p-4f,  -0x1.6bd426p-3f, 0x1.21e2c8p-5f, 0x1.eb5c90p-4f,
                       -0x1.f06e54p-6f, -0x1.68d33ep-3f, 0x1.040848p-4f, -0x1.49772ap-4f};
  std::vector<float> v{0x1.b26e94p-6f, 0x1.b0cc7ep-5f, 0x1.610de6p-4f, 0x1.e5e91ap-7f,
                       0x1.2cf9b2p-4f, 0x1.505f3cp-4f, 0x1.952282p-4f, 0x1.eba21ap-7f};
  std::vector<float> clip{3, 1, 1};
  bind(AdamW{0.875f, 0.96875f, 0x1p-20f, 0.0625f}, {view(g, {8}), view(w, {8}), view(m, {8}), view(v, {8}),
                                                    view(clip, {3})})({.step = 3, .learning_rate = 0.0078125f});
  EXPECT_EQ(w, (std::vector<float>{-0x1.870918p+0f, -0x1.7c5ba4p-1f, -0x1.4e2850p-1f, -0x1.9ba680p+0f, -0x1.945a5cp-4f,
                                   -0x1.35be6ep-1f, -0x1.f7a824p-1f, -0x1.9aae58p+0f}));
  EXPECT_EQ(m, (std::vector<float>{0x1.e48224p-5f, -0x1.222950p-2f, -0x1.64d7ecp-5f, -0x1.538fc0p-6f, -0x1.b0d974p-5f,
                                   -0x1.3da778p-3f, 0x1.0f14acp-2f, -0x1.1afc9cp-4f}));
  EXPECT_EQ(v, (std::vector<float>{0x1.a5305ep-6f, 0x1.57ade2p-4f, 0x1.83846ap-4f, 0x1.788562p-5f, 0x1.293f50p-4f,
                                   0x1.45de20p-4f, 0x1.7775cap-3f, 0x1.dc6114p-7f}));
}

}  // namespace
}  // namespace snug
