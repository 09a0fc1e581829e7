// Runs a compiled job on a backend: arenas reserved, programs bound, parameters loaded, files written.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include "exec/executor.h"
#include "plan/lowering/compile.h"

namespace snug {

class Session {
 public:
  // Holds what a session runs on besides its spec.
  struct Resources {
    int threads = 1;  // of the CPU
    LaneMode lanes = LaneMode::Inline;
    Comm* comm = nullptr;                                                           // of a job with several ranks
    std::filesystem::path disk_directory = std::filesystem::temp_directory_path();  // for the disk space
    std::function<std::unique_ptr<Backend>()> backend = {};                         // makes it; empty: the CPU's
  };

  // Reserves and binds what compile() made of the spec, with facts that have not changed since. With several ranks all
  // of them construct their sessions together; throws UserError if they do not agree on what runs.
  Session(JobSpec spec, Compiled compiled, const Resources& resources);
  // Compiles first.
  Session(JobSpec spec, int threads, LaneMode lanes = LaneMode::Inline, Comm* comm = nullptr);
  ~Session();

  // Sets what a job on the host does; to be called before a program with such an op runs.
  void on(HostJob job, HostHandler handler) { handlers_[job] = std::move(handler); }

  // Runs a program that touches no files. In schedule-free training weights are the average where a program
  // uses_average(), and y in any other. A deferred update is made by the next step's first pass or by a program that
  // needs the weights earlier; a speculative update that was clipped is reapplied by whatever comes next. `shape` is
  // one of the cut's, for passes.
  void run(Task task, const RuntimeScalars& runtime = {}, int shape = 0);
  // Loads parameters from their sources. Throws UserError if the weight files were only assumed.
  void load();
  // Writes the files of Task::Save (each rank its own) or Task::Export (rank 0) into a directory that exists, and syncs
  // them. All ranks call it.
  void write(Task task, const std::filesystem::path& directory);
  // Restores trainable parameters and state from a directory that Task::Save wrote.
  void restore(const std::filesystem::path& directory);

  const JobSpec& spec() const { return spec_; }
  const Compiled& compiled() const { return compiled_; }
  // Returns bytes as they are when everything issued has run; weights and state after their update.
  TensorView view(const Operand& operand);
  // Returns such bytes, copied into `bytes` from whatever space they are in.
  TensorView view(const Operand& operand, std::vector<std::byte>& bytes);
  uint64_t arena_bytes(Space space) const;
  // Returns what the driver counts as taken of the device (Backend::device_bytes_taken()).
  std::optional<uint64_t> device_bytes_taken() const;

  // Notes when the ops of the next `steps` training steps run; of fewer steps if these have very many ops.
  void start_trace(int64_t steps);
  // Writes the noted steps as a Chrome trace; an empty one if none was started. It must be called after the steps.
  void write_trace(const std::filesystem::path& path);

  int rank() const { return spec_.rank; }
  // Returns the connection to the other ranks; null if there are none.
  Comm* comm() const { return comm_; }
  // Returns when all ranks have called it.
  void barrier(const SyncPoint& at = {});
  // Throws UserError on all ranks unless all have one value; `what` is as in Comm::agree().
  void agree(std::string_view what, uint64_t value);
  // Returns the sign of life for long work on the host.
  Heartbeat heartbeat() const { return heartbeat_of(comm_); }
  // Returns the least of a number over all ranks; all of them call it.
  uint64_t least_over_ranks(uint64_t value, const SyncPoint& at);
  // Returns rank 0's value on all ranks, with those of the bits `of_any` that any rank has set.
  uint64_t as_rank_0(uint64_t value, const SyncPoint& at, uint64_t of_any = 0);

  // Finishes the last step's update at once; all ranks call it.
  void flush();
  // Returns the number of steps whose update was made again, as clipping changed it.
  int64_t reapplied_steps() const { return reapplied_; }

 private:
  void reapply();
  void exchange_weights_for(Task task);
  ProgramId at(Task task, int shape = 0) const { return compiled_.at(task, swapped_, shape); }
  const OutputFiles& files_of(Task task) const;

  JobSpec spec_;
  std::map<HostJob, HostHandler> handlers_;
  Compiled compiled_;
  Comm* comm_;
  std::optional<Trace> trace_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Executor> executor_;
  std::optional<RuntimeScalars> pending_;  // those of a step whose update is deferred
  std::optional<RuntimeScalars> reapply_;  // those of a step whose speculative update is to be made again
  bool swapped_ = false;                   // state is in its back buffer
  bool averaged_ = false;                  // weights are the average
  bool clipped_ = false;                   // in the last update
  int64_t reapplied_ = 0;
};

}  // namespace snug
