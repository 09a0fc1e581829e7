#include "plan/lowering/average.h"

#include "base/rounding.h"
#include "plan/lowering/placement.h"
#include "plan/lowering/update.h"

namespace snug {
namespace {

// Returns what the optimizer changes of a group's parameters, in the order of Storage::training_points(): the weights,
// and the bits that complete them.
std::vector<ShardedArray> values_of(const JobContext& job, int group) {
  std::vector<ShardedArray> values{job.storage.values(group, SegmentKind::Trained)};
  if (job.numerics.split_master()) values.push_back(job.storage.low(group));
  return values;
}

// Calls body(group, elements) for every tile of what this rank updates, in the scope of the tile's parameter. Then
// ranks gather the weights.
template <class Body>
void for_each_tile(const JobContext& job, Emitter& emitter, const Body& body) {
  for (int g = 0; g < job.table.group_count(); g++) {
    if (job.storage.training_points(g).empty()) continue;
    const Span updated = job.storage.updated(g).span;
    for (const Layout::Run& run : job.layout().segment(g, SegmentKind::Trained).runs) {
      const Span mine = intersection(run.span, updated);
      for (int64_t begin = mine.begin; begin < mine.end; begin += kUpdateTile) {
        emitter.scope("average." + job.table[run.first].name);
        body(g, Span{begin, std::min(begin + kUpdateTile, mine.end)});
      }
    }
    allgather_updated(job, emitter, g);
  }
  retire_later(emitter.program(), job.strategy.buffer_hold_ops);
}

// Returns the elements in whole units, which is how offloaded tiles move.
Span whole_units(const Span& span) { return {span.begin, round_up(span.end, kUnit)}; }

}  // namespace

void lower_to_average(const JobContext& job, ProgramId program) {
  Emitter emitter(job.set, program, job.facts);
  for_each_tile(job, emitter, [&](int group, const Span& tile) {
    const Span whole = whole_units(tile);
    const auto used = [&](const Operand& value) { return elements(value, 0, tile.count()); };
    const std::vector<ShardedArray> values = values_of(job, group);
    const Array& difference = job.storage.states(group)[values.size() - 1];  // the low bits are the first state
    std::vector<Operand> fetched, operands;
    operands.push_back(read(used(fetch(emitter, difference.name, slice(difference.sharded, whole), Role::State))));
    for (size_t i = 0; i < values.size(); i++) {
      const Array& point = job.storage.training_points(group)[i];
      fetched.push_back(fetch(emitter, i == 0 ? "weights" : "low", slice(values[i], whole), Role::State));
      store(emitter, point.name, fetched[i], slice(point.sharded, whole));
      operands.push_back(update(used(fetched[i])));
    }
    emitter.op("average", ScheduleFreeAverage{job.numerics.beta1, job.numerics.split_master()}, operands);
    for (size_t i = 0; i < values.size(); i++)
      if (const Operand stored = slice(values[i], whole); stored.buffer != fetched[i].buffer)
        store(emitter, "back", fetched[i], stored);
  });
}

void lower_from_average(const JobContext& job, ProgramId program) {
  Emitter emitter(job.set, program, job.facts);
  for_each_tile(job, emitter, [&](int group, const Span& tile) {
    const Span whole = whole_units(tile);
    const std::vector<ShardedArray> values = values_of(job, group);
    for (size_t i = 0; i < values.size(); i++) {
      const Array& point = job.storage.training_points(group)[i];
      const Operand value = fetch(emitter, point.name, slice(point.sharded, whole), Role::State);
      store(emitter, "back", value, slice(values[i], whole));
    }
  });
}

}  // namespace snug
