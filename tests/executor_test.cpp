// Lanes with threads of their own leave the bytes that one thread leaves: programs with transfers to host and disk and
// an exchange between two ranks, run by a backend that mixes bytes. The thread sanitizer sees whether waits order all.
#include "exec/executor.h"

#include <gtest/gtest.h>

#include <latch>
#include <numeric>
#include <thread>

#include "comm/threads.h"
#include "packed.h"
#include "program_builder.h"
#include "temp_directory.h"

namespace snug {
namespace {

constexpr uint64_t kPage = kDirectAlignment;
constexpr int64_t kPages = 6;

// Writes to each byte what depends on all bytes read before it.
class MixingBackend : public Backend {
 public:
  std::byte* reserve(Space space, uint64_t bytes) override {
    std::vector<std::byte>& arena = arenas_[index(space)];
    arena.resize(bytes + kPage);
    const auto address = reinterpret_cast<uintptr_t>(arena.data());
    return arena.data() + (kPage - address % kPage) % kPage;
  }
  Launch bind(const Op& op, std::span<const TensorView> views) override {
    std::vector<std::span<uint8_t>> in, out;
    for (size_t i = 0; i < views.size(); i++) {
      const std::span bytes(views[i].as<uint8_t>(), static_cast<size_t>(views[i].count()));
      if (op.operands[i].reads()) in.push_back(bytes);
      if (op.operands[i].writes()) out.push_back(bytes);
    }
    return [in, out](const RuntimeScalars& runtime) {
      auto mixed = static_cast<uint32_t>(runtime.step);
      for (const auto& bytes : in)
        for (const uint8_t byte : bytes) mixed = mixed * 31 + byte;
      for (const auto& bytes : out)
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>((mixed = mixed * 1664525 + 1013904223) >> 24);
    };
  }

 private:
  PerSpace<std::vector<std::byte>> arenas_;
};

// "step", which may follow itself: pages come from the disk one ahead, are worked on and exchanged, and go back.
ProgramSet pages_round_the_ring() {
  ProgramBuilder p("step");
  const BufferId sum = p.buffer("sum", 64, Life::Persistent), seed = p.buffer("seed", 64, Life::Program, Space::Host);
  std::vector<BufferId> stored, device;
  for (int64_t i = 0; i < kPages; i++)
    stored.push_back(p.buffer(fmt::format("stored.{}", i), kPage, Life::Persistent, Space::Disk));
  auto bring = [&](int64_t i) {
    const BufferId host = p.buffer(fmt::format("in.{}", i), kPage, Life::Program, Space::Host);
    device.push_back(p.buffer(fmt::format("page.{}", i), kPage));
    p.op("read",
         {.lane = Lane::DiskIn, .reads = {stored[static_cast<size_t>(i)]}, .writes = {host}, .retire_after = 4});
    p.op("fetch", {.lane = Lane::CopyIn, .reads = {host}, .writes = {device.back()}, .retire_after = 4});
  };
  p.op("host", {.lane = Lane::Host, .writes = {seed}, .attrs = HostTask{}});
  bring(0);
  for (int64_t i = 0; i < kPages; i++) {
    if (i + 1 < kPages) bring(i + 1);
    const BufferId page = device[static_cast<size_t>(i)], parts = p.buffer(fmt::format("parts.{}", i), kPage),
                   out = p.buffer(fmt::format("out.{}", i), kPage, Life::Program, Space::Host);
    p.op("work", {.reads = {seed}, .updates = {page, sum}, .attrs = Accumulate{}});
    p.op("exchange",
         {.lane = Lane::Reduce, .reads = {page}, .writes = {parts}, .retire_after = 4, .attrs = Exchange{}});
    p.op("add", {.reads = {parts}, .updates = {page}, .attrs = Accumulate{}});
    p.op("store", {.lane = Lane::CopyOut, .reads = {page}, .writes = {out}, .retire_after = 4});
    p.op("write",
         {.lane = Lane::DiskOut, .reads = {out}, .writes = {stored[static_cast<size_t>(i)]}, .retire_after = 4});
  }
  p.follow(0, {0});
  ProgramSet set = p.build();
  for (Op& op : set.programs[0].ops)
    if (is_collective(op.attrs))
      for (Operand& operand : op.operands) operand.shape = {2, kPage / 2}, operand.row_stride = kPage / 2;
  return set;
}

// The sum on each rank after so many steps.
std::vector<std::vector<uint8_t>> run(LaneMode mode, int64_t steps) {
  const Packed packed = pack_and_sync(pages_round_the_ring());
  const TempDirectory directory;
  const auto comms = thread_ranks(2);
  std::vector<std::vector<uint8_t>> sums(2);
  {
    std::vector<std::jthread> ranks;
    for (size_t rank = 0; rank < 2; rank++)
      ranks.emplace_back([&, rank] {
        MixingBackend backend;
        Arena arena(backend, packed.plan, directory.path());
        auto host = [rank](const HostTask&, std::span<const TensorView> views, RuntimeScalars& runtime) {
          std::fill_n(views[0].as<uint8_t>(), views[0].count(),
                      static_cast<uint8_t>(static_cast<size_t>(runtime.step) + 7 * rank));
        };
        const auto executor = make_executor(packed.set, packed.plan, backend, arena, comms[rank].get(), host, mode, 1);
        Trace trace({0}, 1000);
        executor->note_in(&trace);
        for (int64_t step = 1; step <= steps; step++) executor->run(0, {.step = step});
        executor->finish();
        const TensorView sum = executor->view({0, Access::Read, DType::U8, {64}, 0, 64});
        sums[rank].assign(sum.as<uint8_t>(), sum.as<uint8_t>() + 64);
      });
  }
  return sums;
}

TEST(Executor, LanesLeaveTheBytesThatOneThreadLeaves) {
  for (const int64_t steps : {1, 2, 40}) {
    const auto expected = run(LaneMode::Inline, steps);
    EXPECT_NE(expected[0], expected[1]);
    EXPECT_EQ(run(LaneMode::Threads, steps), expected) << steps << " steps";
  }
}

// A rank that fails ends the other one too, wherever its lanes are, and before it has given back what it holds.
class ExecutorError : public testing::TestWithParam<LaneMode> {};

TEST_P(ExecutorError, EndsAllLanesOnAllRanks) {
  const Packed packed = pack_and_sync(pages_round_the_ring());
  const TempDirectory directory;
  const auto comms = thread_ranks(2);
  std::array<std::string, 2> said;
  {
    std::latch told(2);
    std::vector<std::jthread> ranks;
    for (size_t rank = 0; rank < 2; rank++)
      ranks.emplace_back([&, rank] {
        MixingBackend backend;
        Arena arena(backend, packed.plan, directory.path());
        auto host = [rank](const HostTask&, std::span<const TensorView>, RuntimeScalars& runtime) {
          if (rank == 1 && runtime.step == 5) device_error("no more");
        };
        const auto executor =
            make_executor(packed.set, packed.plan, backend, arena, comms[rank].get(), host, GetParam(), 1);
        try {
          for (int64_t step = 1; step <= 9; step++) executor->run(0, {.step = step});
          executor->finish();
        } catch (const DeviceError& error) {
          said[rank] = error.what();
        }
        told.arrive_and_wait();
      });
  }
  EXPECT_NE(said[0].find("rank 1 failed: no more"), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("no more"), std::string::npos) << said[1];
}

INSTANTIATE_TEST_SUITE_P(Modes, ExecutorError, testing::Values(LaneMode::Inline, LaneMode::Threads),
                         [](const auto& info) { return info.param == LaneMode::Inline ? "Inline" : "Threads"; });

}  // namespace
}  // namespace snug
