#include "exec/stream_executor.h"

#include <utility>

namespace snug {

StreamExecutor::StreamExecutor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena,
                               Comm* comm, HostHandler host)
    : Executor(set, plan, backend, arena, comm, std::move(host)), streams_(*backend.streams()), trace_(set, streams_) {
  make_marks();
}

void StreamExecutor::launch(const Launch& bound, const RuntimeScalars& runtime, Trace::Event* event) {
  if (event) trace_.launch();
  bound(runtime);
  if (event) trace_.launched();
}

void StreamExecutor::make_marks() {
  for (auto& ends : ends_)
    for (Streams::Mark& mark : ends) mark = streams_.add_mark();
  for (Streams::Mark& mark : near_) mark = streams_.add_mark();
  for (const Program& program : set_.programs) marks_.emplace_back(program.ops.size());
  for (const Program& program : set_.programs)
    for (const Op& op : program.ops)
      for (const Wait& wait : op.waits) {
        auto& mark = marks_[wait.program][wait.op];
        if (!mark && is_launched(wait.program, wait.op)) mark = streams_.add_mark();
      }
  for (ProgramId p = 0; p < set_.programs.size(); p++)
    for (OpId id = 0; id < set_.programs[p].ops.size(); id++)
      if (is_collective(set_.programs[p].ops[id].attrs) && !marks_[p][id]) marks_[p][id] = streams_.add_mark();
}

// Returns the first issued collective that is not done, of the last program's first `issued` ops and the program
// before; null if there is none. A mark of an op that was issued again stands for its later run.
const Op* StreamExecutor::pending_collective(OpId issued) const {
  const auto first = [this](ProgramId program, OpId begin, OpId end) -> const Op* {
    const std::vector<Op>& ops = set_.programs[program].ops;
    for (OpId id = begin; id < end; id++)
      if (is_collective(ops[id].attrs) && !streams_.passed(*marks_[program][id])) return &ops[id];
    return nullptr;
  };
  const auto all = static_cast<OpId>(set_.programs[before_].ops.size());
  const Op* const op = first(before_, before_ == program_ ? issued : 0, all);
  return op ? op : first(program_, 0, issued);
}

// Keeps the host near the device. Work that waits for another rank may never end, and a stream holds a limited number
// of launches: a host that blocked in a launch could neither see that the other rank is gone nor show that it is alive
// itself.
void StreamExecutor::stay_near(size_t stretch) {
  const Streams::Mark mark = near_[stretch % near_.size()];
  streams_.wait_here(mark);
  streams_.record(Lane::Compute, mark);
}

// Issues a program on streams. What the host does itself is done before anything after it is issued, so no op need wait
// for it. If a wait is taken for an earlier run than the one that is meant, nothing is delayed for long, as whatever is
// enqueued completes by itself.
void StreamExecutor::issue(Instance& instance, Instance& before) {
  program_ = instance.program;
  before_ = before.program;
  std::swap(ends_[0], ends_[1]);
  OpId issued = 0;
  try {
    issue_ops(instance, issued);
  } catch (const PeerError& error) {
    const Op* const op = pending_collective(issued);
    rethrow_with_site(error, *comm_, op ? *op : ops_of(instance)[issued]);
  }
}

// `id` is that of the op that is being issued.
void StreamExecutor::issue_ops(Instance& instance, OpId& id) {
  streams_.use_here();
  // Waits are for this program and the one before: earlier ones must have ended.
  for (const Streams::Mark mark : ends_[0]) streams_.wait_here(mark);
  const std::vector<Op>& ops = ops_of(instance);
  for (id = 0; id < ops.size(); id++) {
    if (comm_ && id % kNear == 0) stay_near(id / kNear);
    const Op& op = ops[id];
    const bool on_stream = is_launched(program_, id);
    for (const Wait& wait : op.waits) {
      const std::optional<Streams::Mark> mark = marks_[wait.program][wait.op];
      if (mark && on_stream) streams_.wait(op.lane, *mark);
      if (mark && !on_stream) streams_.wait_here(*mark);
    }
    execute(instance, id);
    if (const std::optional<Streams::Mark> mark = marks_[program_][id]) streams_.record(op.lane, *mark);
  }
  for (size_t i = 0; i < kStreamLanes.size(); i++) streams_.record(kStreamLanes[i], ends_[0][i]);
}

void StreamExecutor::drain(Instance& newest) {
  report_errors([&] {
    try {
      streams_.finish();
      trace_.resolve();
    } catch (const PeerError& error) {
      const Op* const op = pending_collective(static_cast<OpId>(ops_of(newest).size()));
      if (!op) throw;
      rethrow_with_site(error, *comm_, *op);
    }
  });
}

}  // namespace snug
