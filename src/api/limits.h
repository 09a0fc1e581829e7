// Says what a job may take of this machine: one inventory of limits, which plans keep to and runs therefore meet.
#pragma once

#include "api/options.h"
#include "api/target.h"
#include "plan/lowering/compile.h"
#include "plan/spec/caps.h"

namespace snug {

// Says what a plan is for: to be read, or to be run here and now.
enum class PlanMode : uint8_t { Look, Run };

// Counts the processes of a job on this machine, and the ranks of each.
struct Processes {
  int count = 1;
  int64_t ranks = 1;
  bool launched = false;  // by MPI, whose libraries take memory too
};

// Returns what a job may take. Of memory that is what the machine, the control groups and the limits of each process
// leave, less what a process takes for itself. On the CPU device and host are one memory. A run takes no more than is
// free; a plan that is only read may say what another machine has, by options or by its profile.
Caps caps_of(const JobConfig& options, const Target& target, PlanMode mode, const Processes& processes = {});

// Checks that a command can run on this many threads. Throws CapacityError if this process's limits (ulimit -v, -d) or
// its control groups leave too little to plan in or to start the threads, DeviceError if its stacks (ulimit -s) are too
// small for the CPU library's kernels. Without the check it would crash, or be killed.
void require_memory_for_process(int threads);

// Returns where the run directory is, or will be made.
std::filesystem::path out_directory(const JobConfig& options);
// Returns the directory of what is offloaded to disk.
std::filesystem::path disk_directory(const JobConfig& options);
// Throws UserError if --disk-dir names no directory that can be written to; a plan for another machine may.
void refuse_disk_dir(const JobConfig& options, PlanMode mode);

// Throws DeviceError if a process of a job would open more files at once than it may (ulimit -n), with the count, or if
// a file would be longer than it may be (ulimit -f). In a plan that is only read, the message says what the run would
// do.
void require_files(const JobSpec& spec, const Compiled& compiled, const Processes& processes, PlanMode mode);

// Returns every limit that is in force for a process here, a line each for people, with what it leaves.
std::string limits_text(const std::filesystem::path& disk_directory);

}  // namespace snug
