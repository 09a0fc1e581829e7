// Where buffers lie and how long they live, in small programs worked out by hand.
#include "program/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "expect_error.h"
#include "program/liveness.h"
#include "program_builder.h"

namespace snug {
namespace {

using testing::ElementsAre;

uint64_t reserved(const MemoryPlan& plan, Space space = Space::Device) { return plan.reserved_bytes[index(space)]; }
uint64_t live_peak(const MemoryPlan& plan, Space space = Space::Device) { return plan.live_peak_bytes[index(space)]; }

// clang-format off
//         make  use
//   a 96   x           [0, 96)
//   b 48   x     x     [96, 144)
//   c 32         x     [0, 32): below b, where a was
// clang-format on
TEST(Pack, UsesTheHoleBelowTheLowestLiveBuffer) {
  ProgramBuilder p;
  const BufferId a = p.buffer("a", 96), b = p.buffer("b", 48), c = p.buffer("c", 32);
  p.op("make", {.writes = {a, b}});
  p.op("use", {.reads = {b}, .writes = {c}});
  const MemoryPlan plan = pack(p.build(), 1);
  EXPECT_THAT(plan.offset, ElementsAre(0, 96, 0));
  EXPECT_EQ(reserved(plan), 144u);
  EXPECT_EQ(live_peak(plan), 144u);
}

// clang-format off
//         0  1  2
//   a 64  x  x        [0, 64)
//   b 32  x  x  x     [64, 96): as large as d, and before it in the table
//   d 32  x           [96, 128)
//   e 20        x     [0, 20): below b
// clang-format on
TEST(Pack, LargestFirstThenTableOrder) {
  ProgramBuilder p;
  const BufferId e = p.buffer("e", 20), a = p.buffer("a", 64), b = p.buffer("b", 32), d = p.buffer("d", 32);
  p.op("0", {.writes = {a, b, d}});
  p.op("1", {.reads = {a, b}});
  p.op("2", {.reads = {b}, .writes = {e}});
  EXPECT_THAT(pack(p.build(), 1).offset, ElementsAre(0, 0, 64, 96));
}

// clang-format off
//          0  1  2
//   a 100  x           [0, 100)
//   b  90  x  x  x     [100, 190)
//   c  80  x           [190, 270)
//   d  70  x  x  x     [270, 340)
//   e  60     x  x     [190, 250): the hole of 80 between b and d, not that of 100 below b
// clang-format on
TEST(Pack, TakesTheTightestHole) {
  ProgramBuilder p;
  const BufferId a = p.buffer("a", 100), b = p.buffer("b", 90), c = p.buffer("c", 80), d = p.buffer("d", 70);
  const BufferId e = p.buffer("e", 60);
  p.op("0", {.writes = {a, b, c, d}});
  p.op("1", {.writes = {e}});
  p.op("2", {.reads = {b, d, e}});
  EXPECT_THAT(pack(p.build(), 1).offset, ElementsAre(0, 100, 190, 270, 190));
}

TEST(Pack, LivesAreHalfOpen) {  // an op's inputs and outputs are live together; what ends before it is not
  ProgramBuilder p;
  const BufferId a = p.buffer("a", 16), b = p.buffer("b", 16), c = p.buffer("c", 16);
  p.op("a", {.writes = {a}});
  p.op("b", {.reads = {a}, .writes = {b}});
  p.op("c", {.reads = {b}, .writes = {c}});
  const MemoryPlan plan = pack(p.build(), 1);
  EXPECT_THAT(plan.offset, ElementsAre(0, 16, 0));
  EXPECT_EQ(live_peak(plan), 32u);
}

// clang-format off
//         copy  f  g
//   a 16   x    .        reserved until f has been issued
//   b 16   x    .
//   c 16        x        [32, 48)
//   d 16           x     [0, 16)
// clang-format on
TEST(Pack, BuffersStayReservedUntilTheirOpRetires) {
  ProgramBuilder p;
  const BufferId a = p.buffer("a", 16), b = p.buffer("b", 16), c = p.buffer("c", 16), d = p.buffer("d", 16);
  p.op("copy", {.lane = Lane::CopyOut, .writes = {a, b}, .retire_after = 1});
  p.op("f", {.writes = {c}});
  p.op("g", {.writes = {d}});
  const MemoryPlan plan = pack(p.build(), 1);
  EXPECT_THAT(plan.offset, ElementsAre(0, 16, 32, 0));
  EXPECT_EQ(plan.peak[index(Space::Device)].op, 1u);
  EXPECT_THAT(plan.peak[index(Space::Device)].live, ElementsAre(a, b, c));
}

TEST(Pack, StartsAndSizesAreAligned) {
  ProgramBuilder p;
  const BufferId a = p.buffer("a", 1), b = p.buffer("b", 257), w = p.buffer("w", 5, Life::Persistent);
  p.op("make", {.reads = {w}, .writes = {a, b}});
  const MemoryPlan plan = pack(p.build(), 256);
  EXPECT_THAT(plan.offset, ElementsAre(768, 256, 0));
  EXPECT_EQ(reserved(plan), 1024u);
  EXPECT_EQ(live_peak(plan), 1024u);
}

TEST(Pack, PersistentBuffersComeFirstInTableOrderAndSpacesAreApart) {
  ProgramBuilder p;
  const BufferId x = p.buffer("x", 100), w = p.buffer("w", 10, Life::Persistent);
  const BufferId h = p.buffer("h", 30, Life::Program, Space::Host), v = p.buffer("v", 20, Life::Persistent);
  p.op("make", {.reads = {w, v}, .writes = {x, h}});
  const MemoryPlan plan = pack(p.build(), 1);
  EXPECT_THAT(plan.offset, ElementsAre(30, 0, 0, 10));
  EXPECT_EQ(reserved(plan), 130u);
  EXPECT_EQ(reserved(plan, Space::Host), kDirectIo);
  EXPECT_EQ(reserved(plan, Space::Disk), 0u);
  EXPECT_THAT(plan.peak[index(Space::Device)].live, ElementsAre(x, w, v));
}

TEST(Pack, ProgramsShareBytesAndTellTheirOwn) {
  ProgramBuilder p("small");
  const BufferId w = p.buffer("w", 8, Life::Persistent), a = p.buffer("a", 16);
  p.op("a", {.reads = {w}, .writes = {a}});
  p.begin_program("large");
  const BufferId b = p.buffer("b", 64);
  p.op("b", {.reads = {w}, .writes = {b}});
  const MemoryPlan plan = pack(p.build(), 1);
  EXPECT_THAT(plan.offset, ElementsAre(0, 8, 8));
  EXPECT_EQ(plan.program_bytes[0][index(Space::Device)], 24u);
  EXPECT_EQ(plan.program_bytes[1][index(Space::Device)], 72u);
  EXPECT_EQ(plan.peak[index(Space::Device)].program, 1u);
}

// clang-format off
//             first   middle   last
//   c 16      w-----  ------   -r       [64, 80) in all three, above what `middle` needs while c passes through
//   x  8      --
//   y 64               --               [0, 64)
//   z 32                         -      [0, 32)
// clang-format on
TEST(Pack, CarriedBuffersKeepTheirBytesThroughProgramsThatDoNotUseThem) {
  ProgramBuilder p("first");
  const BufferId c = p.buffer("c", 16, Life::Carried), x = p.buffer("x", 8), y = p.buffer("y", 64),
                 z = p.buffer("z", 32);
  p.op("make", {.writes = {c, x}});
  const ProgramId middle = p.begin_program("middle");
  p.op("y", {.writes = {y}});
  const ProgramId last = p.begin_program("last");
  p.op("z", {.writes = {z}});
  p.op("use", {.reads = {c}});
  p.follow(0, {middle});
  p.follow(middle, {last});
  const ProgramSet set = p.build();
  EXPECT_THAT(live_spans(set)[c], ElementsAre(LiveSpan{0, 0, 1}, LiveSpan{middle, 0, 1}, LiveSpan{last, 0, 2}));
  const MemoryPlan plan = pack(set, 1);
  EXPECT_THAT(plan.offset, ElementsAre(64, 0, 0, 0));
  EXPECT_EQ(plan.program_bytes[middle][index(Space::Device)], 80u);
}

// One program that follows itself: it uses up the gradients of its last run, then makes new ones.
// clang-format off
//              update  forward  backward
//   gradient     r                 w        dead in between
//   x                     w        r        [64, 96): heartbeat with either gradient
//   y                     w                 [0, 48): on the gradient's bytes
// clang-format on
TEST(Pack, ACarriedLifeMayWrapRoundARing) {
  ProgramBuilder p("step");
  const BufferId gradient = p.buffer("gradient", 64, Life::Carried), x = p.buffer("x", 32), y = p.buffer("y", 48);
  p.op("update", {.reads = {gradient}});
  p.op("forward", {.writes = {x, y}});
  p.op("backward", {.reads = {x}, .writes = {{gradient, 0, 40}}});
  p.op("more", {.writes = {{gradient, 40, 64}}});
  p.follow(0, {0});
  const ProgramSet set = p.build();
  EXPECT_THAT(live_spans(set)[gradient], ElementsAre(LiveSpan{0, 0, 1}, LiveSpan{0, 2, 4}));
  const MemoryPlan plan = pack(set, 1);
  EXPECT_THAT(plan.offset, ElementsAre(0, 64, 0));
  EXPECT_EQ(reserved(plan), 96u);
}

TEST(Pack, ACarriedBufferThatIsNotMadeYetTakesNothing) {  // `load` comes before the ring that wraps
  ProgramBuilder p("load");
  const BufferId x = p.buffer("x", 100), g = p.buffer("g", 100, Life::Carried);
  p.op("load", {.writes = {x}});
  const ProgramId pass = p.begin_program("pass");
  p.op("make", {.writes = {g}});
  const ProgramId next = p.begin_program("next");
  p.op("use", {.reads = {g}});
  p.follow(0, {pass});
  p.follow(pass, {next});
  p.follow(next, {pass});
  const ProgramSet set = p.build();
  EXPECT_THAT(live_spans(set)[g], ElementsAre(LiveSpan{pass, 0, 1}, LiveSpan{next, 0, 1}));
  EXPECT_EQ(reserved(pack(set, 1)), 100u);
}

TEST(Pack, PartOfACarriedBufferWrittenLeavesTheRestAlive) {
  ProgramBuilder p("make");
  const BufferId g = p.buffer("g", 64, Life::Carried);
  p.op("all", {.writes = {g}});
  const ProgramId change = p.begin_program("change");
  const BufferId x = p.buffer("x", 8);
  p.op("x", {.writes = {x}});
  p.op("half", {.writes = {{g, 0, 32}}});
  const ProgramId use = p.begin_program("use");
  p.op("use", {.reads = {g}});
  p.follow(0, {change});
  p.follow(change, {use});
  EXPECT_THAT(live_spans(p.build())[g], ElementsAre(LiveSpan{0, 0, 1}, LiveSpan{change, 0, 2}, LiveSpan{use, 0, 1}));
}

TEST(Pack, BytesThatNobodyReadsNeedNotBeWrittenAnew) {  // padding between parameters of a group
  ProgramBuilder p("p");
  const BufferId g = p.buffer("g", 64, Life::Carried), x = p.buffer("x", 64);
  p.op("use", {.reads = {{g, 0, 20}, {g, 32, 50}}});
  p.op("x", {.writes = {x}});
  p.op("one", {.writes = {{g, 0, 20}}});
  p.op("two", {.writes = {{g, 32, 50}}});
  p.follow(0, {0});
  EXPECT_THAT(live_spans(p.build())[g], ElementsAre(LiveSpan{0, 0, 1}, LiveSpan{0, 2, 4}));
}

TEST(Pack, StridedWritesDoNotReplaceACarriedBuffer) {
  ProgramBuilder p("p");
  const BufferId g = p.buffer("g", 64, Life::Carried);
  p.op("use", {.reads = {g}});
  p.op("columns", {.writes = {g}});
  p.follow(0, {0});
  ProgramSet set = p.build();
  Operand& columns = set.programs[0].ops[1].operands[0];
  columns.shape = {8, 6};
  columns.row_stride = 8;
  set.programs[0].ops.push_back(set.programs[0].ops[0]);
  set.programs[0].ops.back().retire = 2;
  EXPECT_THAT(live_spans(set)[g], ElementsAre(LiveSpan{0, 0, 3}));
}

// A ring of staging buffers of many sizes, some of whose packings give each the room of the largest: whatever order
// they are placed in, nothing is reserved beyond the last byte of a buffer.
TEST(Pack, ReservesNothingBeyondTheLastByteOfABuffer) {
  const Random random(1, RandomPurpose::DataOrder);
  for (uint64_t ring = 0; ring < 200; ring++) {
    ProgramBuilder p;
    std::vector<BufferId> buffers;
    for (uint64_t i = 0; i < 12; i++) {
      buffers.push_back(p.buffer(fmt::format("{}", i), 50 + random.below(ring * 12 + i, 50)));
      OpDraft op{.writes = {buffers[i]}};
      if (i >= 3) op.reads = {buffers[i - 3]};
      p.op("op", op);
    }
    const ProgramSet set = p.build();
    const MemoryPlan plan = pack(set, 1);
    uint64_t end = 0;
    for (size_t b = 0; b < set.buffers.size(); b++) end = std::max(end, plan.offset[b] + set.buffers[b].bytes);
    EXPECT_EQ(reserved(plan), end) << ring;
  }
}

TEST(Pack, RefusesProgramsThatAreNotSound) {
  auto packed = [](auto&& make) {
    return [make] {
      ProgramBuilder p("p");
      make(p);
      pack(p.build(), 1);
    };
  };
  EXPECT_TRUE(fails_with<InternalError>(packed([](ProgramBuilder& p) { p.op("use", {.reads = {p.buffer("x", 8)}}); }),
                                        "p: op 0 'use' reads bytes [0, 8) of buffer 'x', which no earlier op writes"));
  EXPECT_TRUE(fails_with<InternalError>(packed([](ProgramBuilder& p) {
                                          const BufferId x = p.buffer("x", 8);
                                          p.op("half", {.writes = {{x, 0, 4}}});
                                          p.op("use", {.reads = {{x, 2, 6}}});
                                        }),
                                        "reads bytes [2, 6) of buffer 'x'"));
  EXPECT_TRUE(fails_with<InternalError>(packed([](ProgramBuilder& p) {
                                          const BufferId x = p.buffer("x", 8, Life::Carried);
                                          p.op("use", {.reads = {x}});
                                          p.op("late", {.writes = {x}});
                                        }),
                                        "which no earlier op writes"));
  EXPECT_TRUE(fails_with<InternalError>(packed([](ProgramBuilder& p) {
                                          const BufferId x = p.buffer("x", 8);
                                          p.op("make", {.writes = {x}});
                                          p.begin_program("q");
                                          p.op("use", {.reads = {x}});
                                        }),
                                        "buffer 'x' is used by programs 'p' and 'q' but not carried"));
  ProgramSet set = two_programs();
  set.programs[0].ops[2].operands[0].offset = 80;
  EXPECT_TRUE(
      fails_with<InternalError>([&] { pack(set, 1); }, "op 'clear' uses bytes [80, 112) of buffer 'x', which has 96"));
  set = two_programs();
  set.programs[0].ops[1].retire = 0;
  EXPECT_TRUE(fails_with<InternalError>([&] { pack(set, 1); }, "op 1 'copy' of 3 ops retires at op 0"));
  EXPECT_TRUE(fails_with<InternalError>([&] { pack(two_programs(), 3); }, "alignment is 3"));
}

}  // namespace
}  // namespace snug
