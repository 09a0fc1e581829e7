// Waits between lanes in small programs worked out by hand, and what verify() makes of wrong ones.
#include "program/sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "program/pack.h"
#include "program_builder.h"

namespace snug {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<Wait> waits(const ProgramSet& set, OpId op, ProgramId program = 0) {
  return set.programs[program].ops[op].waits;
}

void pack_and_sync(ProgramSet& set) {
  const MemoryPlan plan = pack(set, 1);
  sync(set, plan);
  verify(set, plan);
}

TEST(Sync, OpsOfOneLaneNeedNoWaits) {
  ProgramBuilder p;
  const BufferId x = p.buffer("x", 8);
  p.op("make", {.writes = {x}});
  p.op("use", {.updates = {x}});
  ProgramSet set = p.build();
  pack_and_sync(set);
  EXPECT_THAT(waits(set, 1), IsEmpty());
}

TEST(Sync, ReadsWaitForWritesAndNotForReads) {
  ProgramBuilder p;
  const BufferId x = p.buffer("x", 8);
  p.op("make", {.writes = {x}});
  p.op("out", {.lane = Lane::CopyOut, .reads = {x}});
  p.op("reduce", {.lane = Lane::Reduce, .reads = {x}});
  ProgramSet set = p.build();
  pack_and_sync(set);
  EXPECT_THAT(waits(set, 1), ElementsAre(Wait{0, 0}));
  EXPECT_THAT(waits(set, 2), ElementsAre(Wait{0, 0}));
}

// clang-format off
//           make  out  next          x and y share bytes
//   x 8      w     r
//   y 8                 w            waits for the copy of x
// clang-format on
TEST(Sync, WritesWaitForReadsOfWhatLayThereBefore) {
  ProgramBuilder p;
  const BufferId x = p.buffer("x", 8), y = p.buffer("y", 8);
  p.op("make", {.writes = {x}});
  p.op("out", {.lane = Lane::CopyOut, .reads = {x}});
  p.op("next", {.writes = {y}});
  ProgramSet set = p.build();
  pack_and_sync(set);
  EXPECT_THAT(waits(set, 2), ElementsAre(Wait{0, 1}));
}

TEST(Sync, WritesWaitForWrites) {
  ProgramBuilder p;
  const BufferId x = p.buffer("x", 8), y = p.buffer("y", 8);
  p.op("in", {.lane = Lane::CopyIn, .writes = {x}});
  p.op("next", {.writes = {y}});
  ProgramSet set = p.build();
  pack_and_sync(set);
  EXPECT_THAT(waits(set, 1), ElementsAre(Wait{0, 0}));
}

TEST(Sync, PartsOfABufferAreApart) {
  ProgramBuilder p;
  const BufferId x = p.buffer("x", 8);
  p.op("left", {.writes = {{x, 0, 4}}});
  p.op("right", {.lane = Lane::CopyIn, .writes = {{x, 4, 8}}});
  p.op("out", {.lane = Lane::CopyOut, .reads = {{x, 3, 5}}});
  p.op("left again", {.lane = Lane::CopyIn, .reads = {{x, 0, 3}}});
  ProgramSet set = p.build();
  pack_and_sync(set);
  EXPECT_THAT(waits(set, 1), IsEmpty());
  EXPECT_THAT(waits(set, 2), ElementsAre(Wait{0, 0}, Wait{0, 1}));
  EXPECT_THAT(waits(set, 3), ElementsAre(Wait{0, 0}));
}

TEST(Sync, WaitsThatOthersImplyAreLeftOut) {
  ProgramBuilder p;
  const BufferId x = p.buffer("x", 8), y = p.buffer("y", 8), z = p.buffer("z", 8);
  p.op("x", {.writes = {x}});
  p.op("y", {.lane = Lane::CopyOut, .reads = {x}, .writes = {y}, .retire_after = 3});
  p.op("again", {.lane = Lane::CopyOut, .reads = {x}});               // its lane waited already
  p.op("z", {.lane = Lane::CopyIn, .reads = {x, y}, .writes = {z}});  // y is later than x
  ProgramSet set = p.build();
  pack_and_sync(set);
  EXPECT_THAT(waits(set, 2), IsEmpty());
  EXPECT_THAT(waits(set, 3), ElementsAre(Wait{0, 1}));
}

// clang-format off
//     first ---> last          Both end with a copy out of a buffer on the bytes that `last` begins with.
//       |          ^
//       +-> middle-+
// clang-format on
TEST(Sync, HeadsWaitForEveryProgramThatMayComeBefore) {
  ProgramBuilder p("first");
  for (const char* name : {"first", "middle", "last"}) {
    if (std::string_view(name) != "first") p.begin_program(name);
    const BufferId x = p.buffer("x", 8);
    p.op("make", {.writes = {x}});
    p.op("out", {.lane = Lane::CopyOut, .reads = {x}});
  }
  p.follow(0, {1, 2});
  p.follow(1, {2});
  ProgramSet set = p.build();
  pack_and_sync(set);
  EXPECT_THAT(waits(set, 0, 0), IsEmpty());
  EXPECT_THAT(waits(set, 0, 1), ElementsAre(Wait{0, 1}));
  EXPECT_THAT(waits(set, 0, 2), ElementsAre(Wait{0, 1}, Wait{1, 1}));
  EXPECT_THAT(waits(set, 1, 2), ElementsAre(Wait{2, 0}));
}

TEST(Sync, AProgramThatFollowsItselfWaitsForItsRunBefore) {
  ProgramBuilder p("step");
  const BufferId x = p.buffer("x", 8);
  p.op("make", {.writes = {x}});
  p.op("out", {.lane = Lane::CopyOut, .reads = {x}});
  p.follow(0, {0});
  ProgramSet set = p.build();
  pack_and_sync(set);
  EXPECT_THAT(waits(set, 0), ElementsAre(Wait{0, 1}));
  EXPECT_THAT(waits(set, 1), ElementsAre(Wait{0, 0}));
}

TEST(Sync, ALaneThatWaitedInTheProgramBeforeNeedNotWaitAgain) {
  ProgramBuilder p("before");
  const BufferId w = p.buffer("w", 8, Life::Persistent);
  p.op("gather", {.lane = Lane::Gather, .updates = {w}});
  p.op("use", {.reads = {w}});
  const ProgramId after = p.begin_program("after");
  p.op("use", {.reads = {w}});
  p.op("out", {.lane = Lane::CopyOut, .reads = {w}});
  p.follow(0, {after});
  ProgramSet set = p.build();
  pack_and_sync(set);
  EXPECT_THAT(waits(set, 0, after), IsEmpty());
  EXPECT_THAT(waits(set, 1, after), ElementsAre(Wait{0, 0}));
}

TEST(Sync, IsRepeatable) {
  ProgramSet set = two_programs();
  const MemoryPlan plan = pack(set, 1);
  sync(set, plan);
  const std::string once = set.dump(0);
  sync(set, plan);
  EXPECT_EQ(set.dump(0), once);
}

TEST(Verify, NamesBothOpsAndTheBytes) {
  ProgramSet set = two_programs();
  const MemoryPlan plan = pack(set, 1);
  sync(set, plan);
  set.programs[0].ops[1].waits = {{1, 0}};
  EXPECT_TRUE(fails_with<InternalError>([&] { verify(set, plan); },
                                        "nothing orders op 0 'norm' of program 'first' and op 1 'copy' of program "
                                        "'first', and both use bytes [64, 160) of the device arena"));
}

TEST(Verify, LooksAcrossSeams) {
  ProgramSet set = two_programs();
  const MemoryPlan plan = pack(set, 1);
  sync(set, plan);
  set.programs[1].ops[0].waits.clear();
  EXPECT_TRUE(fails_with<InternalError>([&] { verify(set, plan); },
                                        "nothing orders op 1 'copy' of program 'first' and op 0 'take' of program "
                                        "'second', and both use bytes [0, 96) of the host arena"));
}

TEST(Verify, RefusesWaitsForWhatDoesNotComeBefore) {
  ProgramSet set = two_programs();
  const MemoryPlan plan = pack(set, 1);
  auto verify_with = [&](Wait wait) {
    sync(set, plan);
    set.programs[0].ops[1].waits.push_back(wait);
    verify(set, plan);
  };
  verify_with({0, 0});
  for (const Wait wait : {Wait{0, 1}, Wait{0, 2}, Wait{1, 1}})
    EXPECT_TRUE(fails_with<InternalError>([&] { verify_with(wait); }, "which does not come before it"));
  set.programs[1].next.clear();
  EXPECT_TRUE(fails_with<InternalError>([&] { verify_with({1, 0}); }, "waits for op 0 of program 1"));
}

}  // namespace
}  // namespace snug
