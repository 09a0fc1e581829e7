#include "exec/thread_executor.h"

#include "base/parallel.h"

namespace snug {

ThreadExecutor::ThreadExecutor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena,
                               Comm* comm, HostHandler host, int threads)
    : Executor(set, plan, backend, arena, comm, std::move(host)) {
  for (const Program& program : set.programs) {
    issued_.emplace_back(program.ops.size());
    done_.emplace_back(program.ops.size());
  }
  for (size_t lane = 0; lane < kLanes; lane++)
    if (static_cast<Lane>(lane) != Lane::Host)
      lanes_.emplace_back([this, lane, threads] { serve(static_cast<Lane>(lane), threads); });
}

ThreadExecutor::~ThreadExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  for (std::condition_variable& changed : changed_) changed.notify_all();
}

bool ThreadExecutor::ready(const Ticket& ticket) const {
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

void ThreadExecutor::complete(const Ticket& ticket) {
  done_[ticket.instance->program][ticket.op]++;
  ticket.instance->left--;
}

void ThreadExecutor::issue(Instance& instance, Instance& before) {
  const std::vector<Op>& ops = ops_of(instance);
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
  wait_here(lock, [&] { return error_ || before.left == 0; });
  rethrow(lock);
}

void ThreadExecutor::serve(Lane lane, int threads) {
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
void ThreadExecutor::attempt(const Ticket& ticket, std::unique_lock<std::mutex>& lock) {
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

bool ThreadExecutor::may_run(Lane lane) const {
  const std::deque<Ticket>& queue = queues_[index(lane)];
  return !error_ && !queue.empty() && ready(queue.front());
}

template <class Condition>
void ThreadExecutor::wait_here(std::unique_lock<std::mutex>& lock, const Condition& condition) {
  awaited_ = std::cref(condition);
  changed_[index(Lane::Host)].wait(lock, condition);
  awaited_ = nullptr;
}

// Wakes only the lanes that can go on: a step has thousands of ops, and threads that wake for nothing take the
// processor from those that compute.
void ThreadExecutor::wake() {
  for (size_t lane = 0; lane < kLanes; lane++)
    if (idle_[lane] && may_run(static_cast<Lane>(lane))) changed_[lane].notify_one();
  if (awaited_ && awaited_()) changed_[index(Lane::Host)].notify_one();
}

void ThreadExecutor::drain(Instance& newest) {
  std::unique_lock lock(mutex_);
  wait_here(lock, [&] { return error_ || newest.left == 0; });
  rethrow(lock);
}

// Other lanes may still use files and views that the caller takes back.
void ThreadExecutor::rethrow(std::unique_lock<std::mutex>& lock) {
  if (!error_) return;
  wait_here(lock, [&] { return running_ == 0; });
  std::rethrow_exception(error_);
}

}  // namespace snug
