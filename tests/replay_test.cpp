// Programs run on tags, in orders that lanes and waits allow: with sync()'s waits no read finds foreign bytes, with
// fewer waits some do.
#include "program/replay.h"

#include <gtest/gtest.h>

#include <chrono>
#include <iostream>

#include "expect_error.h"
#include "packed.h"
#include "training_programs.h"

namespace snug {
namespace {

// A plan in which no two buffers share bytes: waits derived from it are those of the data alone.
MemoryPlan apart(const ProgramSet& set) {
  MemoryPlan plan;
  uint64_t end = 0;
  for (const Buffer& buffer : set.buffers) {
    plan.offset.push_back(end);
    end += buffer.bytes;
  }
  return plan;
}

std::vector<ProgramId> random_walk(const ProgramSet& set, ProgramId start, size_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<ProgramId> sequence{start};
  while (sequence.size() < length) {
    const std::vector<ProgramId>& next = set.programs[sequence.back()].next;
    sequence.push_back(next[random() % next.size()]);
  }
  return sequence;
}

bool verified(const ProgramSet& set, const MemoryPlan& plan) {
  try {
    verify(set, plan);
  } catch (const InternalError&) {
    return false;
  }
  return true;
}

// Ops of any lanes on parts of any buffers, in programs that form a ring with short cuts.
class RandomPrograms {
 public:
  explicit RandomPrograms(uint64_t seed) : random_(seed), p_("p0") {
    const auto programs = static_cast<ProgramId>(1 + below(4));
    for (int i = 0; i < 3; i++) persistent_.push_back(buffer(Life::Persistent));
    for (int i = 0; i < 4; i++) carried_.push_back({buffer(Life::Carried), below(programs), below(kOps)});
    for (ProgramId p = 0; p < programs; p++) {
      if (p > 0) p_.begin_program(fmt::format("p{}", p));
      add_ops(p);
      p_.follow(p, {(p + 1) % programs});
      if (programs > 2 && below(2)) p_.follow(p, {(p + 2) % programs});
    }
  }

  ProgramSet build() const { return p_.build(); }

 private:
  static constexpr uint64_t kOps = 40;
  struct Carried {
    BufferId buffer = 0;
    uint64_t program = 0, op = 0;  // which certainly makes it
  };

  uint64_t below(uint64_t n) { return random_() % n; }

  BufferId buffer(Life life) {
    return p_.buffer("b", 1 + below(8) * below(40), life, below(4) ? Space::Device : Space::Host);
  }

  Part part(BufferId b) {
    const uint64_t bytes = p_.bytes(b), begin = below(bytes);
    return below(2) ? Part(b) : Part(b, begin, begin + 1 + below(bytes - begin));
  }

  BufferId outer() {
    return below(2) ? persistent_[below(persistent_.size())] : carried_[below(carried_.size())].buffer;
  }

  void add_ops(ProgramId program) {
    std::vector<BufferId> made;
    for (uint64_t i = 0; i < kOps; i++) {
      OpDraft op{.lane = static_cast<Lane>(below(kLanes)), .retire_after = static_cast<OpId>(below(7))};
      for (uint64_t n = below(3); n > 0; n--)
        op.reads.push_back(part(
            made.empty() || below(4) == 0 ? outer() : made[made.size() - 1 - below(std::min<size_t>(6, made.size()))]));
      if (!made.empty() && below(4) == 0) op.updates.push_back(part(made[below(made.size())]));
      if (below(4) == 0) op.writes.push_back(part(outer()));
      for (const Carried& carried : carried_)
        if (carried.program == program && carried.op == i) op.writes.emplace_back(carried.buffer);
      if (below(3)) {
        const BufferId fresh = buffer(Life::Program);
        op.writes.emplace_back(fresh);
        made.push_back(fresh);
      }
      p_.op(fmt::format("op{}", i), op);
    }
  }

  std::mt19937_64 random_;
  ProgramBuilder p_;
  std::vector<BufferId> persistent_;
  std::vector<Carried> carried_;
};

TrainingShape random_shape(uint64_t seed) {
  std::mt19937_64 random(seed);
  auto one_of = [&](std::initializer_list<uint64_t> values) { return values.begin()[random() % values.size()]; };
  TrainingShape shape;
  shape.layers = one_of({1, 2, 3, 5, 8});
  shape.tokens = one_of({16, 48, 120});
  shape.hidden = one_of({24, 72, 128});
  shape.ffn = one_of({40, 200, 512});
  shape.head_chunks = one_of({1, 2, 4});
  shape.tile_bytes = one_of({1000, 4096, 20000});
  shape.gather = random() % 2;
  shape.recompute = random() % 2;
  shape.offload = random() % 2;
  shape.stream_states = random() % 2;
  shape.deferred_update = random() % 2;
  shape.retire_after = static_cast<OpId>(one_of({0, 3, 12, 30}));
  return shape;
}

// ---- The replay itself ----------------------------------------------------------------------------------------------

// x, copied out, shares its bytes with y.
ProgramSet overwriting() {
  ProgramBuilder p("p");
  const BufferId x = p.buffer("x", 8), y = p.buffer("y", 8), host = p.buffer("host", 8, Life::Program, Space::Host);
  p.op("make x", {.writes = {x}});
  p.op("copy x", {.lane = Lane::CopyOut, .reads = {x}, .writes = {host}});
  p.op("make y", {.writes = {y}});
  return p.build();
}

TEST(Replay, FindsAReadOfBytesThatAnotherBufferHasWrittenOver) {
  Packed p = pack_and_sync(overwriting());
  p.set.programs[0].ops[2].waits.clear();
  int64_t found = 0;
  for (uint64_t seed = 0; seed < 20; seed++) {
    const ReplayResult result = replay(p.set, p.plan, {0}, seed);
    found += result.corrupted_reads;
    if (result.corrupted_reads > 0) {
      EXPECT_EQ(result.first, "program 0 of the sequence, 'p', op 1 'copy x', buffer 'x'");
    }
  }
  EXPECT_GT(found, 0);
}

TEST(Replay, FindsAReadOfAnOlderVersion) {
  ProgramBuilder builder("p");
  const BufferId w = builder.buffer("w", 8, Life::Persistent);
  builder.op("write", {.writes = {w}});
  builder.op("read", {.lane = Lane::Gather, .reads = {w}});
  Packed p = pack_and_sync(builder.build());
  p.set.programs[0].ops[1].waits.clear();
  int64_t found = 0;
  for (uint64_t seed = 0; seed < 20; seed++) found += replay(p.set, p.plan, {0}, seed).corrupted_reads;
  EXPECT_GT(found, 0);
}

TEST(Replay, FindsLiveBuffersPackedOnTheSameBytesInAnyOrder) {
  ProgramBuilder builder("p");
  const BufferId x = builder.buffer("x", 8), y = builder.buffer("y", 8);
  builder.op("make", {.writes = {x}});
  builder.op("other", {.writes = {{y, 0, 1}}});
  builder.op("use", {.reads = {{y, 0, 1}, x}});
  Packed p = pack_and_sync(builder.build());
  EXPECT_EQ(replay(p.set, p.plan, {0}, 0).corrupted_reads, 0);
  p.plan.offset[y] = p.plan.offset[x];
  EXPECT_EQ(replay(p.set, p.plan, {0}, 0).corrupted_reads, 1);
}

// clang-format off
//   a: write w, read w on another lane      b: something else      a b a b ...
// clang-format on
// The read of one `a` may still be to come while `b` runs, but not when the next `a` begins: no wait is needed for
// that.
TEST(Replay, HoldsBackAProgramUntilTheOneBeforeThePreviousHasFinished) {
  ProgramBuilder builder("a");
  const BufferId w = builder.buffer("w", 8, Life::Persistent), x = builder.buffer("x", 8);
  builder.op("write", {.writes = {w}});
  builder.op("read", {.lane = Lane::Gather, .reads = {w}});
  builder.begin_program("b");
  builder.op("else", {.writes = {x}});
  builder.follow(0, {1});
  builder.follow(1, {0});
  const Packed p = pack_and_sync(builder.build());
  EXPECT_TRUE(p.set.programs[0].ops[0].waits.empty());
  for (uint64_t seed = 0; seed < 50; seed++)
    EXPECT_EQ(replay(p.set, p.plan, {0, 1, 0, 1, 0, 1}, seed).corrupted_reads, 0);
}

TEST(Replay, AWaitForAnOpThatDoesNotExistIsAnError) {
  Packed p = pack_and_sync(overwriting());
  p.set.programs[0].ops[0].waits = {{0, 3}};
  EXPECT_TRUE(fails_with<InternalError>([&] { replay(p.set, p.plan, {0}, 0); },
                                        "op 'make x' waits for op 3 of program 'p', which has 3"));
}

TEST(Replay, RefusesASequenceThatCannotHappen) {
  const Packed p = pack_and_sync(overwriting());
  EXPECT_TRUE(fails_with<InternalError>([&] { replay(p.set, p.plan, {0, 0}, 0); }, "program 'p' may not follow 'p'"));
}

// ---- Waits hold in every order --------------------------------------------------------------------------------------

TEST(ReplayRandom, NoReadFindsForeignBytes) {
  for (uint64_t seed = 0; seed < 300; seed++) {
    const Packed p = pack_and_sync(RandomPrograms(seed).build());
    for (uint64_t order = 0; order < 20; order++) {
      const ReplayResult result = replay(p.set, p.plan, random_walk(p.set, 0, 5, order), order);
      ASSERT_EQ(result.corrupted_reads, 0) << "seed " << seed << ", order " << order << ": " << result.first;
    }
  }
}

TEST(ReplayTraining, NoReadFindsForeignBytes) {
  for (uint64_t seed = 0; seed < 60; seed++) {
    const TrainingPrograms programs(random_shape(seed));
    const Packed p = pack_and_sync(programs.build());
    for (uint64_t order = 0; order < 20; order++) {
      const ReplayResult result = replay(p.set, p.plan, programs.walk(8, order), order);
      ASSERT_EQ(result.corrupted_reads, 0) << "seed " << seed << ", order " << order << ": " << result.first;
    }
  }
}

TEST(ReplayTraining, WaitsForDataAloneAreNotEnough) {
  for (uint64_t seed = 0; seed < 20; seed++) {
    TrainingShape shape = random_shape(seed);
    shape.layers = 4;
    shape.offload = true;  // without a lane beside Compute there is nothing to go wrong
    shape.retire_after = 0;
    const TrainingPrograms programs(shape);
    Packed p = pack_and_sync(programs.build());
    sync(p.set, apart(p.set));
    int64_t corrupted = 0;
    for (uint64_t order = 0; order < 20; order++)
      corrupted += replay(p.set, p.plan, programs.walk(8, order), order).corrupted_reads;
    EXPECT_GT(corrupted, 0) << "seed " << seed;
    EXPECT_FALSE(verified(p.set, p.plan));
  }
}

// ---- Every wait matters ---------------------------------------------------------------------------------------------

TEST(DroppedWait, VerifyCatchesEveryOne) {
  std::vector<ProgramSet> sets;
  for (uint64_t seed = 0; seed < 20; seed++) sets.push_back(RandomPrograms(seed).build());
  for (uint64_t seed = 0; seed < 6; seed++) {
    TrainingShape shape = random_shape(seed);
    shape.layers = 2;
    shape.tile_bytes = 20000;
    sets.push_back(TrainingPrograms(shape).build());
  }
  int64_t dropped = 0;
  for (ProgramSet& set : sets) {
    Packed p = pack_and_sync(std::move(set));
    for_each_dropped_wait(p.set, [&](ProgramId, const Op& op, const Wait& wait) {
      dropped++;
      EXPECT_FALSE(verified(p.set, p.plan))
          << op.site << " without its wait for op " << wait.op << " of program " << wait.program;
    });
  }
  EXPECT_GT(dropped, 1000);
}

TEST(DroppedWait, ReplayCatchesNearlyAll) {
  int64_t dropped = 0, caught = 0;
  for (uint64_t seed = 0; seed < 4; seed++) {
    TrainingShape shape = random_shape(seed);
    shape.layers = 2;
    shape.tile_bytes = 20000;
    const TrainingPrograms programs(shape);
    Packed p = pack_and_sync(programs.build());
    for_each_dropped_wait(p.set, [&](ProgramId program, const Op&, const Wait& wait) {
      dropped++;
      for (uint64_t order = 0; order < 90; order++) {
        std::vector<ProgramId> sequence = random_walk(p.set, wait.program, wait.program == program ? 1 : 2, order);
        if (sequence.back() != program) sequence.back() = program;
        const std::vector<ProgramId> rest = random_walk(p.set, program, 4, order);
        sequence.insert(sequence.end(), rest.begin() + 1, rest.end());
        if (replay(p.set, p.plan, sequence, order).corrupted_reads == 0) continue;
        caught++;
        break;
      }
    });
  }
  std::cout << caught << " of " << dropped << " dropped waits caught by replay\n";
  EXPECT_GT(dropped, 100);
  EXPECT_GE(caught * 100, dropped * 95);
}

// ---- Size -----------------------------------------------------------------------------------------------------------

void expect_close_packing(const MemoryPlan& plan) {
  for (const Space space : kSpaces) {
    const auto bytes = static_cast<double>(plan.reserved_bytes[index(space)]);
    EXPECT_LE(bytes, 1.02 * static_cast<double>(plan.live_peak_bytes[index(space)])) << name(space);
    EXPECT_GE(plan.reserved_bytes[index(space)], plan.live_peak_bytes[index(space)]);
  }
}

TEST(PackTraining, ReservesAtMostTwoPercentMoreThanIsAlive) {
  for (int flags = 0; flags < 32; flags++) {
    SCOPED_TRACE(flags);
    TrainingShape shape{.layers = 16, .tokens = 2048, .hidden = 2048, .qkv = 3072, .ffn = 8192, .vocabulary = 128256};
    shape.tile_bytes = 8 << 20;
    shape.gather = flags & 1;
    shape.recompute = flags & 2;
    shape.offload = flags & 4;
    shape.stream_states = flags & 8;
    shape.deferred_update = flags & 16;
    expect_close_packing(pack(TrainingPrograms(shape).build(), 256));
  }
}

TEST(PackTraining, SeventyBillionParameters) {
  const TrainingPrograms programs({.layers = 80,
                                   .tokens = 16384,
                                   .hidden = 8192,
                                   .qkv = 10240,
                                   .ffn = 28672,
                                   .vocabulary = 128256,
                                   .head_chunks = 16,
                                   .ranks = 8,
                                   .tile_bytes = 32 << 20});
  ProgramSet set = programs.build();
  const auto begin = std::chrono::steady_clock::now();
  const MemoryPlan plan = pack(set, 256);
  sync(set, plan);
  verify(set, plan);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  size_t ops = 0;
  for (const Program& program : set.programs) ops += program.ops.size();
  std::cout << ops << " ops in " << set.programs.size() << " programs over " << set.buffers.size()
            << " buffers: packed, synchronised and verified in " << took.count() << " ms\n";
  expect_close_packing(plan);
  for (uint64_t order = 0; order < 4; order++) {
    const ReplayResult result = replay(set, plan, programs.walk(7, order), order);
    EXPECT_EQ(result.corrupted_reads, 0) << result.first;
  }
}

}  // namespace
}  // namespace snug
