// Several ranks run one program on tags, each in an order of its own: collectives read the peers' memory until all have
// finished, and no rank's waits let that go wrong.
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "expect_error.h"
#include "packed.h"
#include "program/replay.h"
#include "program_builder.h"

namespace snug {
namespace {

const std::vector<Topology> kTopologies{{2, 1}, {2, 2}, {3, 1}, {4, 1}, {4, 2}, {4, 4}, {6, 2}};

// Operands of an Exchange are matrices.
ProgramSet with_rows(ProgramSet set, int64_t ranks) {
  for (Program& program : set.programs)
    for (Op& op : program.ops)
      if (std::holds_alternative<Exchange>(op.attrs))
        for (Operand& o : op.operands) {
          o.row_stride = o.shape.count() / ranks;
          o.shape = {ranks, o.row_stride};
        }
  return set;
}

// A sharded step: weights are gathered, used and forgotten, gradients exchanged, summed and applied to the shard.
ProgramSet sharded_step(const Topology& topology) {
  constexpr uint64_t kPart = 24;
  const auto ranks = static_cast<uint64_t>(topology.ranks);
  ProgramBuilder p("step");
  const BufferId total = p.buffer("total", 8, Life::Persistent);
  std::vector<BufferId> shards, sums;
  for (int i = 0; i < 3; i++) shards.push_back(p.buffer("shard", kPart, Life::Persistent));
  BufferId x = p.buffer("x", 40);
  p.op("batch", {.lane = Lane::Host, .writes = {x}});
  for (int i = 0; i < 3; i++) {
    const BufferId full = p.buffer("full", kPart * ranks), y = p.buffer("y", 40), g = p.buffer("g", kPart * ranks);
    const BufferId rows = p.buffer("rows", kPart * ranks);
    p.op("gather",
         {.lane = Lane::Gather, .reads = {shards[static_cast<size_t>(i)]}, .writes = {full}, .attrs = AllGather{}});
    p.op("block", {.reads = {full, x}, .writes = {y, g}});
    p.op("exchange", {.lane = Lane::Reduce, .reads = {g}, .writes = {rows}, .attrs = Exchange{}});
    sums.push_back(p.buffer("sum", kPart));
    p.op("sum", {.lane = i == 1 ? Lane::Reduce : Lane::Compute, .reads = {rows}, .writes = {sums.back()}});
    x = y;
  }
  // Partial norms are gathered in place.
  const BufferId partials = p.buffer("partials", 8 * ranks);
  p.op("partials", {.reads = {sums[0], sums[1], sums[2]}, .writes = {partials}});
  p.op("gather partials",
       {.lane = Lane::Gather, .reads = {{partials, 0, 8}}, .writes = {partials}, .attrs = AllGather{}});
  p.op("norm", {.reads = {partials}, .writes = {total}});
  for (size_t i = 0; i < 3; i++)
    p.op("update", {.lane = i == 1 ? Lane::CopyIn : Lane::Compute, .reads = {sums[i], total}, .updates = {shards[i]}});
  p.follow(0, {0});
  return with_rows(p.build(), topology.ranks);
}

// Ops of any lanes, a third of them collective, among all kinds of ranks.
ProgramSet random_ranks(const Topology& topology, uint64_t seed) {
  std::mt19937_64 random(seed);
  auto below = [&](uint64_t n) { return random() % n; };
  ProgramBuilder p("p");
  std::vector<BufferId> made{p.buffer("w", 60, Life::Persistent), p.buffer("w", 120, Life::Persistent)};
  auto recent = [&] { return made[made.size() - 1 - below(std::min<size_t>(5, made.size()))]; };
  for (int i = 0; i < 30; i++) {
    const auto lane = static_cast<Lane>(below(kLanes));
    const BufferId source = recent();
    const auto who = static_cast<Ranks>(below(4));
    const auto count = static_cast<uint64_t>(topology.count(who)), ranks = static_cast<uint64_t>(topology.ranks);
    const uint64_t kind = p.bytes(source) > 1000 ? 4 : below(6);
    const std::string site = fmt::format("op{}", i);
    if (kind == 0 && p.bytes(source) % ranks == 0) {
      made.push_back(p.buffer("rows", p.bytes(source)));
      p.op(site, {.lane = lane, .reads = {source}, .writes = {made.back()}, .attrs = Exchange{}});
    } else if (kind == 1 && p.bytes(source) % count == 0) {
      const uint64_t part = p.bytes(source) / count;
      p.op(site, {.lane = lane, .reads = {{source, 0, part}}, .writes = {source}, .attrs = AllGather{who}});
    } else if (kind == 2) {
      made.push_back(p.buffer("full", p.bytes(source) * count));
      p.op(site, {.lane = lane, .reads = {source}, .writes = {made.back()}, .attrs = AllGather{who}});
    } else if (kind == 3) {
      p.op(site, {.lane = lane, .reads = {recent()}, .updates = {source}});
    } else {
      made.push_back(p.buffer("b", 12 * (1 + below(8))));
      p.op(site, {.lane = lane, .reads = {source}, .writes = {made.back()}});
    }
  }
  p.follow(0, {0});
  return with_rows(p.build(), topology.ranks);
}

int64_t corrupted_reads(const Packed& p, const Topology& topology, uint64_t orders) {
  int64_t found = 0;
  for (uint64_t order = 0; order < orders; order++)
    found += replay(p.set, p.plan, {0, 0, 0}, order, topology).corrupted_reads;
  return found;
}

TEST(ReplayRanks, NoReadFindsForeignBytesInAShardedStep) {
  for (const Topology& topology : kTopologies)
    EXPECT_EQ(corrupted_reads(pack_and_sync(sharded_step(topology)), topology, 60), 0)
        << topology.ranks << " ranks, " << topology.replicas << " replicas";
}

TEST(ReplayRanks, NoReadFindsForeignBytesInRandomPrograms) {
  for (uint64_t seed = 0; seed < 150; seed++) {
    const Topology& topology = kTopologies[seed % kTopologies.size()];
    EXPECT_EQ(corrupted_reads(pack_and_sync(random_ranks(topology, seed)), topology, 6), 0) << "seed " << seed;
  }
}

TEST(ReplayRanks, EveryDroppedWaitOfAShardedStepIsCaught) {
  const Topology topology{3, 1};
  Packed p = pack_and_sync(sharded_step(topology));
  int64_t dropped = 0;
  for_each_dropped_wait(p.set, [&](ProgramId, const Op& op, const Wait& wait) {
    dropped++;
    EXPECT_GT(corrupted_reads(p, topology, 300), 0) << op.site << " without its wait for op " << wait.op;
  });
  EXPECT_GT(dropped, 15);
}

// A rank's own copy of the part may long be made when a slower peer comes for it.
TEST(ReplayRanks, APartIsReadByPeersUntilAllHaveFinished) {
  ProgramBuilder builder("p");
  const BufferId part = builder.buffer("part", 8, Life::Persistent), full = builder.buffer("full", 16);
  builder.op("gather", {.lane = Lane::Gather, .reads = {part}, .writes = {full}, .attrs = AllGather{}});
  builder.op("overwrite", {.writes = {part}});
  Packed p = pack_and_sync(builder.build());
  p.set.programs[0].ops[1].waits.clear();
  int from_peer = 0;
  for (uint64_t seed = 0; seed < 60; seed++) {
    const ReplayResult result = replay(p.set, p.plan, {0}, seed, {2, 1});
    from_peer += result.corrupted_reads == 1 &&
                 result.first == "rank 0 from rank 1, program 0 of the sequence, 'p', op 0 'gather', buffer 'part'";
  }
  EXPECT_GT(from_peer, 0);
}

// The wait of one rank for its own reader says nothing of when the peers begin: the old contents of what is gathered
// into must not be touched before.
TEST(ReplayRanks, WhatIsGatheredIntoIsFreeOnEveryRankFirst) {
  ProgramBuilder builder("p");
  const BufferId part = builder.buffer("part", 8, Life::Persistent), full = builder.buffer("full", 24);
  builder.op("make", {.writes = {full}});
  builder.op("read", {.reads = {full}});
  builder.op("gather", {.lane = Lane::Gather, .reads = {part}, .writes = {full}, .attrs = AllGather{}});
  Packed p = pack_and_sync(builder.build());
  auto found = [&] {
    int64_t reads = 0;
    for (uint64_t seed = 0; seed < 60; seed++) reads += replay(p.set, p.plan, {0}, seed, {3, 1}).corrupted_reads;
    return reads;
  };
  EXPECT_EQ(found(), 0);
  p.set.programs[0].ops[2].waits.clear();
  EXPECT_GT(found(), 0);
}

// Ranks that stop at different collectives of different lanes come on by what each waits for.
TEST(ReplayRanks, CollectivesOfTwoLanesMayBeMetInAnyOrder) {
  ProgramBuilder builder("p");
  const BufferId a = builder.buffer("a", 8, Life::Persistent), b = builder.buffer("b", 8, Life::Persistent);
  for (int i = 0; i < 4; i++) {
    builder.op("gather",
               {.lane = Lane::Gather, .reads = {a}, .writes = {builder.buffer("x", 32)}, .attrs = AllGather{}});
    builder.op(
        "reduce",
        {.lane = Lane::Reduce, .reads = {b}, .writes = {builder.buffer("y", 16)}, .attrs = AllGather{Ranks::Replica}});
  }
  builder.follow(0, {0});
  EXPECT_EQ(corrupted_reads(pack_and_sync(builder.build()), {4, 2}, 200), 0);
}

TEST(ReplayRanks, AJointOpThatDoesNotFitTheRanksIsAnError) {
  const Packed p = pack_and_sync(sharded_step({3, 1}));
  EXPECT_TRUE(fails_with<InternalError>(
      [&] {
        replay(p.set, p.plan, {0}, 0, {4, 1});
      },
      "op 'gather' among 4 ranks: [24] into [72]"));
}

TEST(ReplayRanks, AJointOpMayNotBeSkipped) {
  Packed p = pack_and_sync(sharded_step({3, 1}));
  p.set.programs[0].ops[1].min_loss_rows = 1;
  EXPECT_TRUE(fails_with<InternalError>(
      [&] {
        replay(p.set, p.plan, {0}, 0, {3, 1});
      },
      "op 'gather' is a collective that may be skipped"));
}

}  // namespace
}  // namespace snug
