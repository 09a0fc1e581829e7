#include "backend/arena.h"
#include "measure/measure.h"
#include "program/emitter.h"

namespace snug {
namespace {

// Copies go over this many bytes of the host, more than its caches hold, as in a step.
constexpr uint64_t kPiece = 64u << 20, kHostBytes = 16 * kPiece;
constexpr int kRounds = 16;

}  // namespace

Bus measure_bus(Backend& backend, const std::function<void()>& wait_for_others) {
  ProgramSet set;
  set.buffers = {{"card", 2 * kPiece}, {"host", kHostBytes, Space::Host}};
  MemoryPlan plan;
  plan.offset = {0, 0};
  plan.reserved_bytes[index(Space::Device)] = 2 * kPiece;
  plan.reserved_bytes[index(Space::Host)] = kHostBytes;
  Arena arena(backend, plan, ".");
  const auto copy = [&](Lane lane, uint64_t at) {
    const bool in = lane == Lane::CopyIn;
    const auto bytes = static_cast<int64_t>(kPiece);
    const Operand card{0, Access::Read, DType::U8, {bytes}, in ? 0 : kPiece, bytes},
        host{1, Access::Read, DType::U8, {bytes}, at, bytes};
    Op op;
    op.attrs = Copy{};
    op.lane = lane;
    op.site = "bus";
    op.operands = {snug::read(in ? host : card), snug::write(in ? card : host)};
    const std::array views{arena.view(op.operands[0], plan, set), arena.view(op.operands[1], plan, set)};
    return backend.bind(op, views);
  };
  std::vector<Launch> round;
  for (uint64_t at = 0; at < kHostBytes; at += kPiece) {
    round.push_back(copy(Lane::CopyIn, at));
    round.push_back(copy(Lane::CopyOut, (at + kHostBytes / 2) % kHostBytes));
  }
  Streams& streams = *backend.streams();
  const auto run = [&](int rounds) {
    for (int i = 0; i < rounds; i++)
      for (const Launch& launch : round) launch({});
  };
  run(1);
  streams.finish();
  const Streams::Mark in = streams.add_mark(), out = streams.add_mark();
  wait_for_others();
  const double begin = wall_seconds();
  run(kRounds);
  streams.record(Lane::CopyIn, in);
  streams.record(Lane::CopyOut, out);
  double in_seconds = 0, out_seconds = 0;
  while (in_seconds == 0 || out_seconds == 0) {
    if (in_seconds == 0 && streams.passed(in)) in_seconds = wall_seconds() - begin;
    if (out_seconds == 0 && streams.passed(out)) out_seconds = wall_seconds() - begin;
  }
  streams.finish();
  constexpr double kBytes = static_cast<double>(kRounds) * kHostBytes;
  return {kBytes / in_seconds, kBytes / out_seconds};
}

}  // namespace snug
