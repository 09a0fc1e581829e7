// Walks programs: planned ops become work only here.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "backend/arena.h"
#include "backend/backend.h"
#include "base/file.h"
#include "comm/comm.h"
#include "exec/stream_trace.h"
#include "exec/trace.h"

namespace snug {

// Does what a HostTask asks with the arena bytes that it names; it may set counts in the scalars for the ops after it.
using HostHandler = std::function<void(const HostTask&, std::span<const TensorView>, RuntimeScalars&)>;

class Executor {
 public:
  // Binds every op of every program. `comm` serves collectives; null for one rank. `threads` is the size of the team
  // that computes. All references must outlive the executor.
  Executor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena, Comm* comm, HostHandler host,
           LaneMode mode, int threads);
  ~Executor();

  // Issues a program, which must be a successor of the one before. Each of its passes starts with the scalars
  // `runtime`, except the last, which starts with `last` if that is given. `files` are those that its ReadFile and
  // WriteFile ops name; they and the program's effects are the caller's again after finish(). With LaneMode::Threads or
  // streams the work may go on after return; with threads at most the program before is still running when this one
  // starts to be issued. Errors of ops are rethrown here or by finish(); a PeerError also says in which collective this
  // rank waited.
  void run(ProgramId program, const RuntimeScalars& runtime, std::span<File* const> files = {},
           const RuntimeScalars* last = nullptr);
  // Returns when everything issued has run.
  void finish();

  // Notes when ops run, from the next run on; null ends that. It must be called after finish(), before which the trace
  // must live.
  void note_in(Trace* trace) { trace_ = trace; }

  // Returns bytes as ops see them, for loaders, checks and tests. It must be called after finish() only.
  TensorView view(const Operand& operand) const { return arena_.view(operand, plan_, set_); }

 private:
  struct Bound {
    Launch launch;                  // empty for an op that the executor runs itself
    std::vector<TensorView> views;  // for such an op: its operands in memory
    uint64_t disk_offset = 0;       //   and where its operand on the disk lies
  };
  // Holds one run of a program.
  struct Instance {
    ProgramId program = 0;
    std::vector<RuntimeScalars> runtime;  // by pass
    std::vector<File*> files;
    int64_t left = 0;                // ops not done
    Trace::Event* events = nullptr;  // by op; null: not traced
  };
  struct Ticket {
    Instance* instance = nullptr;
    OpId op = 0;
    std::vector<int64_t> targets;  // by wait: how many runs of the op waited for must be done
  };

  Bound bind(Backend& backend, const Op& op) const;
  // Runs the body and tells other ranks of an error before this rank gives its memory back, which may take long.
  template <class Body>
  void report_errors(const Body& body);
  void execute(Instance& instance, OpId op);
  void execute_here(Instance& instance, const Op& op, const Bound& bound);
  void run_inline(Instance& instance);
  void run_lanes(Instance& instance);
  void make_marks();
  void run_streams(Instance& instance);
  void issue_on_streams(Instance& instance, OpId& id);
  const Op* pending_collective(OpId issued) const;
  void finish_streams();
  void stay_near(size_t stretch);
  void serve(Lane lane, int threads);
  bool ready(const Ticket& ticket) const;
  bool may_run(Lane lane) const;
  void complete(const Ticket& ticket);
  template <class Condition>
  void wait_here(std::unique_lock<std::mutex>& lock, const Condition& condition);
  void wake();
  void attempt(const Ticket& ticket, std::unique_lock<std::mutex>& lock);
  void rethrow(std::unique_lock<std::mutex>& lock);

  const ProgramSet& set_;
  const MemoryPlan& plan_;
  Arena& arena_;
  Comm* comm_;
  HostHandler host_;
  LaneMode mode_;
  Trace* trace_ = nullptr;
  std::vector<std::vector<Bound>> bound_;  // by program, op
  std::vector<size_t> passes_;             // by program
  std::optional<ProgramId> last_;
  std::array<Instance, 2> instances_;
  size_t newest_ = 0;  // the instance that was issued last

  Streams* streams_;  // the backend's; null if it has none
  std::optional<StreamTrace> stream_trace_;
  static constexpr std::array kStreamLanes{Lane::Compute, Lane::Gather, Lane::Reduce, Lane::CopyIn, Lane::CopyOut};
  std::array<std::array<Streams::Mark, kStreamLanes.size()>, 2> ends_{};  // by instance: marks behind all of its work
  // With other ranks, the host is at most two stretches of this many ops ahead of the compute lane.
  static constexpr size_t kNear = 64;
  std::array<Streams::Mark, 2> near_{};
  std::vector<std::vector<std::optional<Streams::Mark>>>
      marks_;  // by program, op: marks for which ops of other lanes wait

  // Holds state for LaneMode::Threads; mutex_ guards all of it.
  std::mutex mutex_;
  std::array<std::condition_variable, kLanes> changed_;  // by the lane that waits; Host: the thread that issues
  std::array<bool, kLanes> idle_{};
  std::function<bool()> awaited_;                    // the issuing thread's condition, while it waits
  std::vector<std::vector<int64_t>> issued_, done_;  // by program, op: number of runs
  std::array<std::deque<Ticket>, kLanes> queues_;
  std::exception_ptr error_;
  int running_ = 0;  // ops that run now
  bool stop_ = false;
  std::vector<std::jthread> lanes_;
};

}  // namespace snug
