#include "exec/executor.h"

#include <algorithm>

#include "base/parallel.h"

namespace snug {
namespace {

std::span<std::byte> bytes_of(const TensorView& view) {
  return {view.data, static_cast<size_t>(view.count()) * element_bytes(view.dtype)};
}

// Throws what is wrong with another rank, with the place where this one waited for it.
[[noreturn]] void rethrow_with_site(const PeerError& error, Comm& comm, const Op& op) {
  comm.rethrow(error, fmt::format("in the {} at {}", kind(op.attrs), op.site));
}

}  // namespace

Executor::Executor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena, Comm* comm,
                   HostHandler host, LaneMode mode, int threads)
    : set_(set),
      plan_(plan),
      arena_(arena),
      comm_(comm),
      host_(std::move(host)),
      mode_(mode),
      streams_(backend.streams()) {
  set_threads(threads);
  for (const Program& program : set.programs) {
    std::vector<Bound>& ops = bound_.emplace_back();
    size_t& passes = passes_.emplace_back(1);
    for (const Op& op : program.ops) {
      ops.push_back(bind(backend, op));
      passes = std::max(passes, static_cast<size_t>(op.pass) + 1);
      if (comm_) comm_->heartbeat();
    }
    issued_.emplace_back(program.ops.size());
    done_.emplace_back(program.ops.size());
  }
  if (streams_) {
    make_marks();
    stream_trace_.emplace(set_, *streams_);
  } else if (mode == LaneMode::Threads) {
    for (size_t lane = 0; lane < kLanes; lane++)
      if (static_cast<Lane>(lane) != Lane::Host)
        lanes_.emplace_back([this, lane, threads] { serve(static_cast<Lane>(lane), threads); });
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
  if (on_disk || (collective && !streams_) || file_or_host) return bound;
  bound.launch = backend.bind(op, bound.views);
  bound.views.clear();
  return bound;
}

Executor::~Executor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  for (std::condition_variable& changed : changed_) changed.notify_all();
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
  report_errors([&] {
    if (streams_)
      run_streams(instance);
    else if (mode_ == LaneMode::Inline)
      run_inline(instance);
    else
      run_lanes(instance);
  });
}

template <class Body>
void Executor::report_errors(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    if (comm_) comm_->leave(error.what());
    throw;
  }
}

void Executor::execute(Instance& instance, OpId id) {
  const Op& op = set_.programs[instance.program].ops[id];
  RuntimeScalars& runtime = instance.runtime[static_cast<size_t>(op.pass)];
  Trace::Event* const event = instance.events ? instance.events + id : nullptr;
  const bool on_stream = event && streams_;
  if (event) event->begin = event->end = Trace::now();
  if (on_stream) stream_trace_->begin(*event);
  if (runtime.loss_rows < op.min_loss_rows) return;
  const Bound& bound = bound_[instance.program][id];
  if (bound.launch) {
    if (on_stream) stream_trace_->launch();
    bound.launch(runtime);
    if (on_stream) stream_trace_->launched();
  } else {
    execute_here(instance, op, bound);
  }
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

void Executor::run_inline(Instance& instance) {
  for (OpId id = 0; id < set_.programs[instance.program].ops.size(); id++) execute(instance, id);
}

// ---- Lanes that are streams -----------------------------------------------------------------------------------------

void Executor::make_marks() {
  for (auto& ends : ends_)
    for (Streams::Mark& mark : ends) mark = streams_->add_mark();
  for (Streams::Mark& mark : near_) mark = streams_->add_mark();
  for (const Program& program : set_.programs) marks_.emplace_back(program.ops.size());
  for (const Program& program : set_.programs)
    for (const Op& op : program.ops)
      for (const Wait& wait : op.waits) {
        auto& mark = marks_[wait.program][wait.op];
        if (!mark && bound_[wait.program][wait.op].launch) mark = streams_->add_mark();
      }
  for (ProgramId p = 0; p < set_.programs.size(); p++)
    for (OpId id = 0; id < set_.programs[p].ops.size(); id++)
      if (is_collective(set_.programs[p].ops[id].attrs) && !marks_[p][id]) marks_[p][id] = streams_->add_mark();
}

// Returns the first issued collective that is not done, of the last program's first `issued` ops and the program
// before; null if there is none. A mark of an op that was issued again stands for its later run.
const Op* Executor::pending_collective(OpId issued) const {
  const auto first = [this](ProgramId program, OpId begin, OpId end) -> const Op* {
    const std::vector<Op>& ops = set_.programs[program].ops;
    for (OpId id = begin; id < end; id++)
      if (is_collective(ops[id].attrs) && !streams_->passed(*marks_[program][id])) return &ops[id];
    return nullptr;
  };
  const ProgramId now = instances_[newest_].program, before = instances_[1 - newest_].program;
  const auto all = static_cast<OpId>(set_.programs[before].ops.size());
  const Op* const op = first(before, before == now ? issued : 0, all);
  return op ? op : first(now, 0, issued);
}

// Keeps the host near the device. Work that waits for another rank may never end, and a stream holds a limited number
// of launches: a host that blocked in a launch could neither see that the other rank is gone nor show that it is alive
// itself.
void Executor::stay_near(size_t stretch) {
  const Streams::Mark mark = near_[stretch % near_.size()];
  streams_->wait_here(mark);
  streams_->record(Lane::Compute, mark);
}

// Issues a program on streams. What the host does itself is done before anything after it is issued, so no op need wait
// for it. If a wait is taken for an earlier run than the one that is meant, nothing is delayed for long, as whatever is
// enqueued completes by itself.
void Executor::run_streams(Instance& instance) {
  OpId issued = 0;
  try {
    issue_on_streams(instance, issued);
  } catch (const PeerError& error) {
    const Op* const op = pending_collective(issued);
    rethrow_with_site(error, *comm_, op ? *op : set_.programs[instance.program].ops[issued]);
  }
}

// `id` is that of the op that is being issued.
void Executor::issue_on_streams(Instance& instance, OpId& id) {
  streams_->use_here();
  // Waits are for this program and the one before: earlier ones must have ended.
  for (const Streams::Mark mark : ends_[newest_]) streams_->wait_here(mark);
  const std::vector<Op>& ops = set_.programs[instance.program].ops;
  for (id = 0; id < ops.size(); id++) {
    if (comm_ && id % kNear == 0) stay_near(id / kNear);
    const Op& op = ops[id];
    const bool on_stream = static_cast<bool>(bound_[instance.program][id].launch);
    for (const Wait& wait : op.waits) {
      const std::optional<Streams::Mark> mark = marks_[wait.program][wait.op];
      if (mark && on_stream) streams_->wait(op.lane, *mark);
      if (mark && !on_stream) streams_->wait_here(*mark);
    }
    execute(instance, id);
    if (const std::optional<Streams::Mark> mark = marks_[instance.program][id]) streams_->record(op.lane, *mark);
  }
  for (size_t i = 0; i < kStreamLanes.size(); i++) streams_->record(kStreamLanes[i], ends_[newest_][i]);
}

// ---- One thread a lane ----------------------------------------------------------------------------------------------

bool Executor::ready(const Ticket& ticket) const {
  const Op& op = set_.programs[ticket.instance->program].ops[ticket.op];
  for (size_t i = 0; i < op.waits.size(); i++) {
    if (done_[op.waits[i].program][op.waits[i].op] >= ticket.targets[i]) continue;
    if (ticket.instance->events) {
      Trace::Event& event = ticket.instance->events[ticket.op];
      if (event.blocked_since == 0) event.blocked_since = Trace::now();
      event.wait = i;
    }
    return false;
  }
  return true;
}

void Executor::complete(const Ticket& ticket) {
  done_[ticket.instance->program][ticket.op]++;
  ticket.instance->left--;
}

void Executor::run_lanes(Instance& instance) {
  const std::vector<Op>& ops = set_.programs[instance.program].ops;
  std::unique_lock lock(mutex_);
  for (OpId id = 0; id < ops.size(); id++) {
    Ticket ticket{&instance, id, {}};
    for (const Wait& wait : ops[id].waits) ticket.targets.push_back(issued_[wait.program][wait.op]);
    issued_[instance.program][id]++;
    if (ops[id].lane != Lane::Host) {
      queues_[index(ops[id].lane)].push_back(std::move(ticket));
      wake();
      continue;
    }
    wait_here(lock, [&] { return error_ || ready(ticket); });
    if (error_) break;
    attempt(ticket, lock);
  }
  // The program before this one must have finished when the next starts to be issued: then at most this one runs.
  wait_here(lock, [&] { return error_ || instances_[1 - newest_].left == 0; });
  rethrow(lock);
}

void Executor::serve(Lane lane, int threads) {
  set_threads(lane == Lane::Compute ? threads : 1);
  std::deque<Ticket>& queue = queues_[index(lane)];
  std::unique_lock lock(mutex_);
  while (true) {
    idle_[index(lane)] = true;
    changed_[index(lane)].wait(lock, [&] { return stop_ || may_run(lane); });
    idle_[index(lane)] = false;
    if (stop_) return;
    const Ticket ticket = queue.front();
    queue.pop_front();
    attempt(ticket, lock);
  }
}

// Runs one op, unlocked meanwhile. The first error ends everything: no op begins after it.
void Executor::attempt(const Ticket& ticket, std::unique_lock<std::mutex>& lock) {
  running_++;
  lock.unlock();
  std::exception_ptr error;
  try {
    execute(*ticket.instance, ticket.op);
  } catch (const std::exception& caught) {
    error = std::current_exception();
    lock.lock();
    if (!error_) error_ = error;  // before errors that it causes on other lanes
    lock.unlock();
    if (comm_) comm_->leave(caught.what());  // or lanes here and on other ranks would wait for this one
  }
  lock.lock();
  running_--;
  if (!error) complete(ticket);
  wake();
}

bool Executor::may_run(Lane lane) const {
  const std::deque<Ticket>& queue = queues_[index(lane)];
  return !error_ && !queue.empty() && ready(queue.front());
}

template <class Condition>
void Executor::wait_here(std::unique_lock<std::mutex>& lock, const Condition& condition) {
  awaited_ = std::cref(condition);
  changed_[index(Lane::Host)].wait(lock, condition);
  awaited_ = nullptr;
}

// Wakes only the lanes that can go on: a step has thousands of ops, and threads that wake for nothing take the
// processor from those that compute.
void Executor::wake() {
  for (size_t lane = 0; lane < kLanes; lane++)
    if (idle_[lane] && may_run(static_cast<Lane>(lane))) changed_[lane].notify_one();
  if (awaited_ && awaited_()) changed_[index(Lane::Host)].notify_one();
}

void Executor::finish() {
  if (streams_) return report_errors([&] { finish_streams(); });
  if (mode_ == LaneMode::Inline) return;
  std::unique_lock lock(mutex_);
  wait_here(lock, [&] { return error_ || instances_[newest_].left == 0; });
  rethrow(lock);
}

void Executor::finish_streams() {
  try {
    streams_->finish();
    stream_trace_->resolve();
  } catch (const PeerError& error) {
    const Op* const op = pending_collective(static_cast<OpId>(set_.programs[instances_[newest_].program].ops.size()));
    if (!op) throw;
    rethrow_with_site(error, *comm_, *op);
  }
}

// Other lanes may still use files and views that the caller takes back.
void Executor::rethrow(std::unique_lock<std::mutex>& lock) {
  if (!error_) return;
  wait_here(lock, [&] { return running_ == 0; });
  std::rethrow_exception(error_);
}

}  // namespace snug
