// Programs as data: kinds, text and hash; their work and simulated time, worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/facts.h"
#include "program/pack.h"
#include "program/simulate.h"
#include "program/sync.h"
#include "program_builder.h"

namespace snug {
namespace {

using testing::ElementsAre;

Operand matrix(BufferId buffer, Access access, DType dtype, int64_t rows, int64_t columns) {
  return {buffer, access, dtype, {rows, columns}, 0, columns};
}

Op op_of(Attrs attrs, std::vector<Operand> operands) {
  Op op;
  op.attrs = std::move(attrs);
  op.operands = std::move(operands);
  return op;
}

// ---- Operands, text, hash -------------------------------------------------------------------------------------------

TEST(Operand, ExtentEndsWithTheLastRow) {
  Operand operand = matrix(0, Access::Read, DType::BF16, 3, 5);
  EXPECT_EQ(operand.extent(), 30u);
  operand.row_stride = 8;
  EXPECT_EQ(operand.extent(), (2 * 8 + 5) * 2u);
  operand.shape = {0, 5};
  EXPECT_EQ(operand.extent(), 0u);
  operand.shape = {};
  EXPECT_EQ(operand.extent(), 2u);
}

TEST(Program, KindsHaveNames) {
  EXPECT_EQ(kind(Gemm{}), "gemm");
  EXPECT_EQ(kind(RmsNormBackward{}), "rms_norm_backward");
  EXPECT_EQ(kind(WriteFile{}), "write_file");
  EXPECT_EQ(name(Lane::DiskIn), "disk_in");
  EXPECT_EQ(name(Lane::DiskOut), "disk_out");
  EXPECT_EQ(name(Space::Host), "host");
  EXPECT_EQ(name(Role::Metrics), "metrics");
}

TEST(Program, DumpsOneOpALine) {
  ProgramSet set = two_programs();
  set.programs[0].ops[2].min_loss_rows = 128;
  sync(set, pack(set, 32));
  EXPECT_EQ(set.dump(0), R"(program first -> second
    0 compute  norm: rms_norm epsilon=0.5 | r weights uint8 [64], w x uint8 [96]
    1 copy_out copy: copy | r x uint8 [96], w host uint8 [96] | retire 2 | wait 0, second:0
    2 compute  clear: fill | w x uint8 [32] at 32 | from 128 loss rows | wait 1
)");
  EXPECT_EQ(set.dump(1), R"(program second -> first
    0 host     take: host_task take_loss index=3 | r host uint8 [96] | wait first:1
)");
}

TEST(Program, DumpShowsStridesAndHeads) {
  ProgramSet set;
  set.buffers.push_back({"qkv", 1000, Space::Device, Role::Activation, Life::Persistent});
  set.programs.push_back({"p", {op_of(Attention{{4, 2, 8}}, {matrix(0, Access::Read, DType::BF16, 3, 64)})}, {}});
  set.programs[0].ops[0].site = "look";
  set.programs[0].ops[0].operands[0].row_stride = 72;
  EXPECT_EQ(set.dump(0),
            "program p\n    0 compute  look: attention heads=4:2 dim=8 scale=1 longest=0 window=0 | r qkv bf16 [3, 64] "
            "stride 72\n");
}

TEST(Program, HashCoversWhatRunsAndWhereBytesLie) {
  const ProgramSet set = two_programs();
  const uint64_t hash = set.hash();
  auto hash_with = [&](auto&& change) {
    ProgramSet other = set;
    change(other);
    return other.hash();
  };
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.buffers[0].bytes++; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.buffers[1].space = Space::Disk; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.buffers[1].life = Life::Persistent; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.programs[0].next.clear(); }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.programs[0].ops[0].attrs = RmsNorm{.epsilon = 0.25f}; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.programs[0].ops[1].attrs = Accumulate{}; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.programs[0].ops[1].lane = Lane::Compute; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.programs[0].ops[1].retire = 1; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.programs[0].ops[2].min_loss_rows = 1; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.programs[0].ops[2].pass = 1; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.programs[0].ops[2].operands[0].offset = 0; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { s.programs[0].ops[2].operands[0].access = Access::ReadWrite; }));
  EXPECT_NE(hash, hash_with([](ProgramSet& s) { std::swap(s.programs[0].ops[0], s.programs[0].ops[2]); }));
}

TEST(Program, HashLeavesOutNamesAndWaits) {
  ProgramSet set = two_programs();
  const uint64_t hash = set.hash();
  set.buffers[0].name = "w";
  set.programs[1].name = "p";
  set.programs[0].ops[0].site = "n";
  sync(set, pack(set, 32));
  EXPECT_EQ(set.hash(), hash);
}

TEST(Program, HashIsTheSameOnEveryMachine) {
  EXPECT_EQ(ProgramSet{}.hash(), 0xd0a66a65c7528968u);  // XXH3 of 16 zero bytes: no buffers, no programs
  EXPECT_EQ(two_programs().hash(), 11188333707911781461u);
}

TEST(Program, PredecessorsAreThoseItMayFollow) {
  const ProgramSet set = two_programs();
  EXPECT_THAT(set.predecessors(0), ElementsAre(1u));
  EXPECT_THAT(set.predecessors(1), ElementsAre(0u));
}

// ---- Work -----------------------------------------------------------------------------------------------------------

TEST(Work, OfAProduct) {
  const Op op = op_of(Gemm{.transpose_a = true, .transpose_b = true},
                      {matrix(0, Access::Read, DType::BF16, 5, 3), matrix(1, Access::Read, DType::BF16, 7, 5),
                       matrix(2, Access::Write, DType::F32, 3, 7)});
  EXPECT_EQ(work(op).flops, 2 * 3 * 7 * 5);
  EXPECT_EQ(work(op).bytes, 2 * 15 + 2 * 35 + 4 * 21);
}

TEST(Work, OfAttentionIsHalfASquareForEachProduct) {
  const HeadShape shape{4, 2, 8};
  const Operand q = matrix(0, Access::Read, DType::F32, 10, 32), out = matrix(1, Access::Write, DType::F32, 10, 32);
  EXPECT_EQ(work(op_of(Attention{shape, 1, 5}, {q, out})).flops, 2 * 2 * (10 * 5 / 2) * 32);
  EXPECT_EQ(work(op_of(Attention{shape, 1, 8, 4}, {q, out})).flops, 2 * 2 * (10 * 6 / 2) * 32)
      << "a triangle of 4 x 4 halves, then bands of 4";
  EXPECT_EQ(work(op_of(Attention{shape, 1, 8, 8}, {q, out})).flops,
            work(op_of(Attention{shape, 1, 8}, {q, out})).flops);
  EXPECT_EQ(work(op_of(AttentionBackward{{shape, 1, 5}}, {out, q})).flops, 5 * 2 * (10 * 5 / 2) * 32);
  const Operand cache = matrix(2, Access::Read, DType::F32, 100, 32);
  EXPECT_EQ(work(op_of(CachedAttention{shape}, {q, cache, out})).flops, 2 * 2 * 10 * 100 * 32);
}

TEST(Work, CountsUpdatedBytesTwiceAndOfATableTheRowsRead) {
  EXPECT_EQ(work(op_of(SwiGlu{}, {matrix(0, Access::ReadWrite, DType::BF16, 4, 6)})).bytes, 2 * 48);
  const Op embedding =
      op_of(Embedding{}, {matrix(0, Access::Read, DType::I32, 1, 4), matrix(1, Access::Read, DType::BF16, 1000, 8),
                          matrix(2, Access::Write, DType::BF16, 4, 8)});
  EXPECT_EQ(work(embedding).bytes, 4 * 4 + 2 * 64);
}

// ---- Simulation -----------------------------------------------------------------------------------------------------

void pack_and_sync(ProgramSet& set) {
  const MemoryPlan plan = pack(set, 1);
  sync(set, plan);
  verify(set, plan);
}

double seconds_by_lane(const Op& op) { return op.lane == Lane::Compute ? 2 : 3; }

// clang-format off
//   compute   |make a|make b|      |make a|make b|            b in its own bytes overlaps with the copy of a;
//   copy out         |out a   |           |out a   |          the next a has to wait for the copy of the last
//             0      2      4 5           7      9 10
// clang-format on
TEST(Simulate, LanesOverlapAndHonourWaits) {
  ProgramBuilder p("step");
  const BufferId a = p.buffer("a", 8), b = p.buffer("b", 8);
  p.op("make a", {.writes = {a}});
  p.op("out a", {.lane = Lane::CopyOut, .reads = {a}, .retire_after = 1});
  p.op("make b", {.writes = {b}});
  p.follow(0, {0});
  ProgramSet set = p.build();
  pack_and_sync(set);
  const Timeline timeline = simulate(set, {0, 0}, seconds_by_lane);
  EXPECT_EQ(timeline.seconds, 10);
  EXPECT_EQ(timeline.busy_seconds[index(Lane::Compute)], 8);
  EXPECT_EQ(timeline.busy_seconds[index(Lane::CopyOut)], 6);
  ASSERT_EQ(timeline.spans.size(), 6u);
  EXPECT_EQ(timeline.spans[2].begin, 2);  // make b
  EXPECT_EQ(timeline.spans[3].begin, 5);  // make a, again
  EXPECT_EQ(timeline.spans[4].end, 10);
}

TEST(Simulate, AtMostTwoProgramsAreInFlight) {
  ProgramBuilder p("step");
  const BufferId w = p.buffer("w", 8, Life::Persistent);
  p.op("compute", {.reads = {w}});
  p.op("out", {.lane = Lane::CopyOut, .reads = {w}});
  p.follow(0, {0});
  ProgramSet set = p.build();
  pack_and_sync(set);
  const Timeline timeline = simulate(set, {0, 0, 0, 0}, seconds_by_lane);
  std::vector<double> compute;
  for (const Timeline::Span& span : timeline.spans)
    if (span.op == 0) compute.push_back(span.begin);
  EXPECT_THAT(compute, ElementsAre(0, 2, 4, 6));  // the copies of the runs before end at 3 and 6
  EXPECT_EQ(timeline.seconds, 12);
}

// clang-format off
//   compute   |product      |       |product      |         the sum could begin at 0 (made by nobody), at 1 (after the
//   reduce            |sum, waiting |sum                    fetch) or, where products keep all processors, at 2
// clang-format on
TEST(Simulate, WhatComputesOnAnotherLaneSharesTheProcessors) {
  ProgramBuilder p("step");
  const BufferId w = p.buffer("w", 8, Life::Persistent), x = p.buffer("x", 8);
  p.op("fetch", {.lane = Lane::CopyIn, .writes = {x}});
  p.op("product", {.reads = {w}});
  p.op("sum", {.lane = Lane::Reduce, .reads = {x}});
  p.op("product", {.reads = {w}});
  ProgramSet set = p.build();
  pack_and_sync(set);
  const auto seconds = [](const Op& op) { return op.lane == Lane::CopyIn ? 1 : op.lane == Lane::Compute ? 2 : 3; };
  const auto with = [&](Processors product) {
    return simulate(set, {0}, seconds, [=](const Op& op) {
      if (op.lane == Lane::CopyIn) return Processors::None;
      return op.lane == Lane::Compute ? product : Processors::Some;
    });
  };
  EXPECT_EQ(simulate(set, {0}, seconds).seconds, 4);
  const Timeline beside = with(Processors::Some), after = with(Processors::All);
  EXPECT_EQ(beside.spans[1].end, 5);
  EXPECT_EQ(beside.spans[2].begin, 1);
  EXPECT_EQ(beside.spans[3].begin, 5);  // the first product and the sum, 2 and 3 seconds, share until then
  EXPECT_EQ(beside.seconds, 7);
  EXPECT_EQ(after.spans[2].begin, 2);
  EXPECT_EQ(after.spans[3].begin, 5);
  EXPECT_EQ(after.seconds, 7);
}

TEST(Simulate, WaitsForAProgramThatDidNotRunBeforeAreVoid) {
  ProgramSet set = two_programs();
  const MemoryPlan plan = pack(set, 1);
  sync(set, plan);
  EXPECT_EQ(simulate(set, {0}, seconds_by_lane).seconds, 7);     // norm 2, copy 3, clear 2
  EXPECT_EQ(simulate(set, {0, 1}, seconds_by_lane).seconds, 8);  // take follows the copy
}

}  // namespace
}  // namespace snug
