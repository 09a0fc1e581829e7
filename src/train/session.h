// A compiled job on a backend: arenas reserved, programs bound, parameters loaded, files written.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include "exec/executor.h"
#include "plan/compile.h"

namespace snug {

class Session {
 public:
  // Reserves and binds what compile() made of the spec, with facts that have not changed since. `threads`: of the CPU.
  Session(JobSpec spec, Compiled compiled, int threads, LaneMode lanes = LaneMode::Inline);
  // Compiles first.
  Session(JobSpec spec, int threads, LaneMode lanes = LaneMode::Inline);
  ~Session();

  // What a job on the host does; to be set before a program with such an op runs.
  void on(HostJob job, HostHandler handler) { handlers_[job] = std::move(handler); }

  // Runs a program that touches no files.
  void run(Task task, const PassFacts& facts = {});
  // Parameters from their sources. UserError if the weight files were only assumed.
  void load();
  // Writes the files of Task::Save or Task::Export into a directory that exists, and syncs them.
  void write(Task task, const std::filesystem::path& directory);
  // Trainable parameters and state from a directory that Task::Save wrote.
  void restore(const std::filesystem::path& directory);

  const JobSpec& spec() const { return spec_; }
  const Compiled& compiled() const { return compiled_; }
  // Bytes after everything issued has run.
  TensorView view(const Operand& operand);
  uint64_t arena_bytes(Space space) const;

 private:
  const OutputFiles& files_of(Task task) const;

  JobSpec spec_;
  std::map<HostJob, HostHandler> handlers_;
  Compiled compiled_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace snug
