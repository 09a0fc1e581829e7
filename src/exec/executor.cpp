#include "exec/executor.h"

#include <algorithm>

#include "base/parallel.h"
#include "exec/stream_executor.h"
#include "exec/thread_executor.h"

namespace snug {
namespace {

std::span<std::byte> bytes_of(const TensorView& view) {
  return {view.data, static_cast<size_t>(view.count()) * element_bytes(view.dtype)};
}

class InlineExecutor final : public Executor {
 public:
  InlineExecutor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena, Comm* comm,
                 HostHandler host)
      : Executor(set, plan, backend, arena, comm, std::move(host)) {}

 private:
  void issue(Instance& instance, Instance&) override {
    for (OpId id = 0; id < ops_of(instance).size(); id++) execute(instance, id);
  }
  void drain(Instance&) override {}
};

}  // namespace

void rethrow_with_site(const PeerError& error, Comm& comm, const Op& op) {
  comm.rethrow(error, fmt::format("in the {} at {}", kind(op.attrs), op.site));
}

std::unique_ptr<Executor> make_executor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena,
                                        Comm* comm, HostHandler host, LaneMode mode, int threads) {
  set_threads(threads);
  if (backend.streams()) return std::make_unique<StreamExecutor>(set, plan, backend, arena, comm, std::move(host));
  if (mode == LaneMode::Inline)
    return std::make_unique<InlineExecutor>(set, plan, backend, arena, comm, std::move(host));
  return std::make_unique<ThreadExecutor>(set, plan, backend, arena, comm, std::move(host), threads);
}

Executor::Executor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena, Comm* comm,
                   HostHandler host)
    : set_(set), comm_(comm), plan_(plan), arena_(arena), host_(std::move(host)) {
  for (const Program& program : set.programs) {
    std::vector<Bound>& ops = bound_.emplace_back();
    size_t& passes = passes_.emplace_back(1);
    for (const Op& op : program.ops) {
      ops.push_back(bind(backend, op));
      passes = std::max(passes, static_cast<size_t>(op.pass) + 1);
      if (comm_) comm_->heartbeat();
    }
  }
}

Executor::Bound Executor::bind(Backend& backend, const Op& op) const {
  Bound bound;
  bool on_disk = false;
  for (const Operand& operand : op.operands)
    if (set_.buffers[operand.buffer].space == Space::Disk) {
      on_disk = true;
      bound.disk_offset = arena_.disk_offset(operand, plan_, set_);
    } else {
      bound.views.push_back(arena_.view(operand, plan_, set_));
    }
  const bool collective = is_collective(op.attrs);
  check(!collective || comm_, "{}: a collective in a job of one rank", op.site);
  const bool file_or_host = std::holds_alternative<HostTask>(op.attrs) || std::holds_alternative<ReadFile>(op.attrs) ||
                            std::holds_alternative<WriteFile>(op.attrs);
  if (on_disk || (collective && !backend.streams()) || file_or_host) return bound;
  bound.launch = backend.bind(op, bound.views);
  bound.views.clear();
  return bound;
}

void Executor::run(ProgramId program, const RuntimeScalars& runtime, std::span<File* const> files,
                   const RuntimeScalars* last) {
  if (last_)
    check(std::ranges::find(set_.programs[*last_].next, program) != set_.programs[*last_].next.end(),
          "program '{}' may not follow '{}'", set_.programs[program].name, set_.programs[*last_].name);
  last_ = program;
  newest_ = 1 - newest_;  // at most two programs run at once, so the instance before the previous is free again
  Instance& instance = instances_[newest_];
  instance.program = program;
  instance.runtime.assign(passes_[program], runtime);
  if (last) instance.runtime.back() = *last;
  instance.files.assign(files.begin(), files.end());
  instance.left = static_cast<int64_t>(set_.programs[program].ops.size());
  instance.events = trace_ ? trace_->room(program, set_.programs[program].ops.size()) : nullptr;
  report_errors([&] { issue(instance, instances_[1 - newest_]); });
}

void Executor::execute(Instance& instance, OpId id) {
  const Op& op = set_.programs[instance.program].ops[id];
  RuntimeScalars& runtime = instance.runtime[static_cast<size_t>(op.pass)];
  Trace::Event* const event = instance.events ? instance.events + id : nullptr;
  if (event) event->begin = event->end = Trace::now();
  if (event) note(*event);
  if (runtime.loss_rows < op.min_loss_rows) return;
  const Bound& bound = bound_[instance.program][id];
  if (bound.launch)
    launch(bound.launch, runtime, event);
  else
    execute_here(instance, op, bound);
  if (event) event->end = Trace::now();
  if (comm_) comm_->heartbeat();
}

void Executor::execute_here(Instance& instance, const Op& op, const Bound& bound) {
  const std::vector<TensorView>& views = bound.views;
  if (const auto* task = std::get_if<HostTask>(&op.attrs)) {
    host_(*task, views, instance.runtime[static_cast<size_t>(op.pass)]);
  } else if (const auto* get = std::get_if<ReadFile>(&op.attrs)) {
    instance.files.at(static_cast<size_t>(get->file))->read(get->offset, bytes_of(views[0]));
  } else if (const auto* put = std::get_if<WriteFile>(&op.attrs)) {
    instance.files.at(static_cast<size_t>(put->file))->write(put->offset, bytes_of(views[0]));
  } else if (is_collective(op.attrs)) {
    try {
      if (const auto* gather = std::get_if<AllGather>(&op.attrs))
        comm_->all_gather(op.lane, gather->ranks, views[0], views[1]);
      else
        comm_->exchange(op.lane, views[0], views[1]);
    } catch (const PeerError& error) {
      rethrow_with_site(error, *comm_, op);
    }
  } else {  // a copy to or from the disk
    const bool to_disk = set_.buffers[op.operands[1].buffer].space == Space::Disk;
    if (to_disk)
      arena_.disk().write(bound.disk_offset, bytes_of(views[0]));
    else
      arena_.disk().read(bound.disk_offset, bytes_of(views[0]));
  }
}

}  // namespace snug
