// Walks programs: planned ops become work only here.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/arena.h"
#include "backend/backend.h"
#include "base/file.h"
#include "comm/comm.h"
#include "exec/trace.h"

namespace snug {

// Does what a HostTask asks with the arena bytes that it names; it may set counts in the scalars for the ops after it.
using HostHandler = std::function<void(const HostTask&, std::span<const TensorView>, RuntimeScalars&)>;

// Binds ops and runs one at a time; when each runs, and where, is what its three kinds say: in the order of issue on
// one thread, on a thread a lane (exec/thread_executor.h), or on the streams of a device (exec/stream_executor.h).
class Executor {
 public:
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Issues a program, which must be a successor of the one before. Each of its passes starts with the scalars
  // `runtime`, except the last, which starts with `last` if that is given. `files` are those that its ReadFile and
  // WriteFile ops name; they and the program's effects are the caller's again after finish(). With threads or streams
  // the work may go on after return; with threads at most the program before is still running when this one starts to
  // be issued. Errors of ops are rethrown here or by finish(); a PeerError also says in which collective this rank
  // waited.
  void run(ProgramId program, const RuntimeScalars& runtime, std::span<File* const> files = {},
           const RuntimeScalars* last = nullptr);
  // Returns when everything issued has run.
  void finish() { drain(instances_[newest_]); }

  // Notes when ops run, from the next run on; null ends that. It must be called after finish(), before which the trace
  // must live.
  void note_in(Trace* trace) { trace_ = trace; }

  // Returns bytes as ops see them, for loaders, checks and tests. It must be called after finish() only.
  TensorView view(const Operand& operand) const { return arena_.view(operand, plan_, set_); }

 protected:
  // Holds one run of a program.
  struct Instance {
    ProgramId program = 0;
    std::vector<RuntimeScalars> runtime;  // by pass
    std::vector<File*> files;
    int64_t left = 0;                // ops not done, where threads do them
    Trace::Event* events = nullptr;  // by op; null: not traced
  };

  Executor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena, Comm* comm, HostHandler host);

  const std::vector<Op>& ops_of(const Instance& instance) const { return set_.programs[instance.program].ops; }
  // Returns whether the backend runs an op: all others the executor runs itself.
  bool is_launched(ProgramId program, OpId op) const { return static_cast<bool>(bound_[program][op].launch); }
  // Runs an op, or launches it.
  void execute(Instance& instance, OpId op);
  // Runs the body and tells other ranks of an error before this rank gives its memory back, which may take long.
  template <class Body>
  void report_errors(const Body& body) {
    try {
      body();
    } catch (const std::exception& error) {
      if (comm_) comm_->leave(error.what());
      throw;
    }
  }

  const ProgramSet& set_;
  Comm* const comm_;

 private:
  struct Bound {
    Launch launch;                  // empty for an op that the executor runs itself
    std::vector<TensorView> views;  // for such an op: its operands in memory
    uint64_t disk_offset = 0;       //   and where its operand on the disk lies
  };

  // Issues all ops of a run; `before` is the run that was issued before it.
  virtual void issue(Instance& instance, Instance& before) = 0;
  // Returns when the run that was issued last has ended.
  virtual void drain(Instance& newest) = 0;
  // Is told of each traced op before it runs.
  virtual void note(Trace::Event&) {}
  virtual void launch(const Launch& bound, const RuntimeScalars& runtime, Trace::Event*) { bound(runtime); }

  Bound bind(Backend& backend, const Op& op) const;
  void execute_here(Instance& instance, const Op& op, const Bound& bound);

  const MemoryPlan& plan_;
  Arena& arena_;
  HostHandler host_;
  Trace* trace_ = nullptr;
  std::vector<std::vector<Bound>> bound_;  // by program, op
  std::vector<size_t> passes_;             // by program
  std::optional<ProgramId> last_;
  std::array<Instance, 2> instances_;
  size_t newest_ = 0;  // the instance that was issued last
};

// Binds every op of every program. `comm` serves collectives; null for one rank. `threads` is the size of the team that
// computes. Streams are used if the backend has some, whatever the mode. All references must outlive the executor.
std::unique_ptr<Executor> make_executor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena,
                                        Comm* comm, HostHandler host, LaneMode mode, int threads);

// Throws what is wrong with another rank, with the place where this one waited for it.
[[noreturn]] void rethrow_with_site(const PeerError& error, Comm& comm, const Op& op);

}  // namespace snug
