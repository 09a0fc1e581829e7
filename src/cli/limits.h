// What a job may take of this machine: one inventory of limits, which plans keep to and runs therefore meet.
#pragma once

#include "cli/options.h"
#include "cli/target.h"
#include "plan/lowering/compile.h"
#include "plan/spec/caps.h"

namespace snug {

// What a plan is for: to be read, or to be run here and now.
enum class PlanMode : uint8_t { Look, Run };

// Of a job, on this machine: so many, of so many ranks each.
struct Processes {
  int count = 1;
  int64_t ranks = 1;
  bool launched = false;  // by MPI, whose libraries take memory too
};

// What a job may take: of memory what the machine, the control groups and the limits of each process leave beside what
// a process takes for itself. On the CPU device and host are one memory. A run takes no more than is free; who only
// looks may say what a machine elsewhere has, by options or by its profile.
Caps caps_of(const Options& options, const Target& target, PlanMode mode, const Processes& processes = {});

// Before any command, which runs on so many threads: CapacityError where this process's own limits (ulimit -v, -d) or
// its control groups leave too little to plan in or to start them, DeviceError where its stacks (ulimit -s) are too
// small for the CPU library's kernels. Beyond that it would crash, or be killed.
void require_room_for_process(int threads);

// Where the run directory is, or will be made.
std::filesystem::path out_directory(const Options& options);
// Where what is offloaded to disk lies.
std::filesystem::path disk_directory(const Options& options);
// UserError if --disk-dir names no directory that can be written to; a plan for a machine elsewhere may.
void refuse_disk_dir(const Options& options, PlanMode mode);

// DeviceError where a process of a job opens more files at once than it may (ulimit -n), with how many these are, or
// one is longer than it may be (ulimit -f). Who only looks says what the run would.
void require_files(const JobSpec& spec, const Compiled& compiled, const Processes& processes, PlanMode mode);

// For people: every limit that is in force for a process here, a line each, with what it leaves.
std::string limits_text(const std::filesystem::path& disk_directory);

}  // namespace snug
