#include "api/limits.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "api/job.h"
#include "base/descriptors.h"
#include "base/disk.h"
#include "base/error.h"
#include "base/file.h"
#include "base/looked_at.h"
#include "base/memory.h"
#include "base/option_name.h"
#include "base/size_text.h"

namespace snug {
namespace {

// These bytes are left to the system and to what is not planned: file headers, and code and libraries if no driver
// counts them.
constexpr uint64_t kSystemReserve = 512u << 20;

// Processes take these bytes besides arenas. On the CPU with 1 to 8 ranks these were 10 to 20 MiB, and 1 to 4 for each
// rank; processes that MPI connects also have its libraries and segments in shared memory.
constexpr uint64_t kOfProcess = 40u << 20, kOfMpi = 64u << 20, kOfRank = 8u << 20;

uint64_t stack_bytes() {
  pthread_attr_t attributes;
  size_t bytes = 8u << 20;
  if (pthread_getattr_default_np(&attributes) != 0) return bytes;
  pthread_attr_getstacksize(&attributes, &bytes);
  pthread_attr_destroy(&attributes);
  return bytes;
}

// A process takes these bytes until it has planned a small model, besides the stacks of its threads. On the CPU these
// were 35 MiB of address space and data, of which oneDNN maps most for the code that it makes (and crashes if it
// cannot), and 24 MiB that a control group counts, with as much of each stack as is touched. Kernels of oneDNN overflow
// stacks of up to 640 KiB.
constexpr uint64_t kLeastLeft = 44u << 20, kLeastOfGroup = 26u << 20, kTouchedOfStack = 512u << 10,
                   kLeastStack = 1u << 20;

// Returns the bytes of a process's stacks, which are address space and data from the start: a rank has a team and a
// thread for each lane, and the process one thread that waits for signals.
uint64_t stacks_of_process(const JobConfig& options, const Processes& processes) {
  const int team = thread_count(options, static_cast<int>(processes.count * processes.ranks), processes.launched);
  return (static_cast<uint64_t>(processes.ranks * (team + static_cast<int>(kLanes))) + 1) * stack_bytes();
}

// Returns what a limit leaves to the arenas of all ranks here. A process's own limit holds for each process.
uint64_t left_to_arenas(const MemoryLimit& limit, const JobConfig& options, const Processes& processes) {
  const auto count = static_cast<uint64_t>(processes.count), ranks = static_cast<uint64_t>(processes.ranks);
  const uint64_t of_process = kOfProcess + ranks * kOfRank + (processes.launched ? kOfMpi : 0);
  uint64_t reserve = kSystemReserve, times = 1;
  if (limit.of == MemoryLimit::Of::Group) {
    reserve = count * of_process + limit.left / 16;
    if (processes.count == 1) reserve = std::min(reserve, std::max(kSystemReserve, of_process));
  } else if (limit.of == MemoryLimit::Of::Process) {
    reserve = of_process + stacks_of_process(options, processes);
    times = count;
  }
  return times * (limit.left - std::min(limit.left, reserve));
}

// Holds what is free on the machine that is planned for, in bytes, and the name of the limit that leaves no more
// memory.
struct FreeResources {
  uint64_t memory = 0, disk = 0;
  std::string limit{};
};

FreeResources free_here(const JobConfig& options, const Processes& processes) {
  FreeResources found{.memory = UINT64_MAX};
  // In a run that goes on or is replaced, saved files that exist are among those that it will have saved. They count
  // against the machine and control groups, not against a process.
  uint64_t replaced = 0;
  if (const std::filesystem::path out = out_directory(options);
      !options.out.empty() && (options.resume || options.overwrite) && is_in_memory(existing_part(out)))
    for (const char* name : {"checkpoints", "adapter", "model"}) replaced += bytes_in(out / name);
  for (const MemoryLimit& limit : memory_limits()) {
    const uint64_t left =
        left_to_arenas(limit, options, processes) + (limit.of == MemoryLimit::Of::Process ? 0 : replaced);
    if (left < found.memory) {
      found.memory = left;
      found.limit = limit.of == MemoryLimit::Of::Machine ? "" : limit.name;
    }
  }
  found.disk = free_bytes(existing_part(disk_directory(options)));
  return found;
}

}  // namespace

void require_memory_for_process(int threads) {
  const uint64_t stack = stack_bytes();
  if (stack < kLeastStack)
    device_error("stacks: found a limit of {} bytes for each thread (ulimit -s), expected at least {}", stack,
                 kLeastStack);
  // The first thread has its stack already; one besides the team waits for signals.
  const auto count = static_cast<uint64_t>(threads);
  for (const MemoryLimit& limit : memory_limits()) {
    if (limit.of == MemoryLimit::Of::Machine) continue;
    const bool group = limit.of == MemoryLimit::Of::Group;
    const uint64_t needed = group ? kLeastOfGroup + count * kTouchedOfStack : kLeastLeft + count * stack;
    if (limit.left < needed)
      throw CapacityError(fmt::format(
          "{}: found {} bytes left of {}, expected at least {}, for what a process takes before it plans"
          "{}",
          limit.name, limit.left, limit.limit, needed,
          count > 1 ? fmt::format(" on {} threads; fewer {} take less", count, option_name("threads")) : ""));
  }
}

Caps caps_of(const JobConfig& options, const Target& target, PlanMode mode, const Processes& processes) {
  const bool look = mode == PlanMode::Look, other_machine = look && !options.machine.empty();
  FreeResources found;
  if (other_machine) {
    const Machine& there = *target.machine();
    found = {there.free_bytes - std::min(there.free_bytes, kSystemReserve), there.disk.free_bytes};
  } else {
    found = free_here(options, processes);
  }
  // A plan that is only read may allow more than is free here; a named card has its own memory.
  const bool named_card = target.cuda() && !options.machine.empty();
  const auto cap = [](const std::optional<uint64_t>& given, uint64_t there, bool beyond) {
    return given && beyond ? *given : std::min(given.value_or(there), there);
  };
  Caps caps;
  caps.host_bytes = cap(options.host_memory, found.memory, look);
  if (options.host_memory != caps.host_bytes) caps.host_limit = found.limit;
  // Token ids that are kept are among what --disk-memory allows; what is free is counted without them.
  std::optional<uint64_t> disk_memory = options.disk_memory;
  if (disk_memory && !other_machine) *disk_memory -= std::min(*disk_memory, options.found.disk_taken);
  if (!other_machine) found.disk -= std::min(found.disk, options.found.disk_wanted);
  caps.disk_bytes = cap(disk_memory, found.disk, look);
  const bool named = other_machine && builtin_machine(options.machine);
  caps.host_is_assumed = named && !options.host_memory;
  caps.disk_is_assumed = named && !options.disk_memory;
  caps.disk_is_memory = !other_machine && is_in_memory(existing_part(disk_directory(options)));
  caps.shared = !target.cuda();
  uint64_t device = found.memory;
  if (target.cuda()) {
    const Cards& cards = *target.machine()->cards;
    device = cards.free_bytes;
    // Whatever machine is planned for, the run is on this one.
    if (mode == PlanMode::Run && target.here()) device = std::min(device, target.here()->free_bytes);
    caps.driver_bytes = cards.driver_bytes;
  }
  caps.device_bytes = cap(options.device_memory, device, look && !named_card);
  return caps;
}

std::filesystem::path out_directory(const JobConfig& options) {
  return options.out.empty() ? std::filesystem::path(".") : std::filesystem::path(options.out);
}

std::filesystem::path disk_directory(const JobConfig& options) {
  return options.disk_dir.empty() ? out_directory(options) : std::filesystem::path(options.disk_dir);
}

void refuse_disk_dir(const JobConfig& options, PlanMode mode) {
  if (options.disk_dir.empty() || (mode == PlanMode::Look && !options.machine.empty())) return;
  if (!std::filesystem::is_directory(options.disk_dir))
    user_error("disk_dir: found {} '{}'{}, expected a directory", is_file(options.disk_dir) ? "the file" : "nothing at",
               options.disk_dir, looked_at(options.disk_dir));
  if (::access(options.disk_dir.c_str(), W_OK | X_OK) != 0)
    user_error("disk_dir: found '{}', where no file can be made ({}), expected a directory to write to",
               options.disk_dir, std::generic_category().message(errno));
}

namespace {

void require_length(const Compiled& compiled) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const auto require = [&](uint64_t bytes, std::string_view what) {
    if (bytes > limit.rlim_cur)
      device_error("files: found a limit of {} bytes for each (ulimit -f), expected at least {}, for {}",
                   limit.rlim_cur, bytes, what);
  };
  require(compiled.plan.reserved_bytes[index(Space::Disk)], "what a rank offloads to the disk");
  for (const SafetensorsLayout& layout : compiled.saved.layouts) require(layout.file_bytes, "a rank's checkpoint");
  for (const SafetensorsLayout& layout : compiled.exported.layouts) require(layout.file_bytes, "what is exported");
}

void require_open_files(const JobSpec& spec, const Compiled& compiled, const Processes& processes, PlanMode mode) {
  // A file that is read or written directly is opened twice; a rank has a ring of io_uring for each lane. The rest is
  // for drivers, connections and files that are open briefly.
  constexpr uint64_t kRest = 64;
  // A merge reads what it copies while it writes.
  const size_t read_too = spec.purpose == Purpose::Merge ? spec.sources.files.size() : 0;
  const size_t written = std::max(compiled.saved.names.size(), compiled.exported.names.size() + read_too);
  const size_t concurrent = std::max({spec.sources.files.size(), compiled.restored_files.size(), written});
  const OpenFiles files = open_files();
  // A run has its directory and the `.owner` in it open already; a plan has not.
  const uint64_t owner = mode == PlanMode::Look && spec.purpose == Purpose::Train ? 2 : 0;
  const uint64_t needed =
      files.open + owner + kRest + static_cast<uint64_t>(processes.ranks) * (2 * concurrent + kLanes);
  if (needed <= files.limit) return;
  device_error(
      "open files: found a limit of {} in each process (ulimit -n), expected at least {}, for {} files of each of {} "
      "ranks; a higher limit (ulimit -Hn, LimitNOFILE of systemd), fewer {} of a process or fewer shards",
      files.limit, needed, concurrent, processes.ranks, option_name("ranks"));
}

}  // namespace

void require_files(const JobSpec& spec, const Compiled& compiled, const Processes& processes, PlanMode mode) {
  require_open_files(spec, compiled, processes, mode);
  require_length(compiled);
}

std::string limits_text(const std::filesystem::path& disk_directory) {
  std::string text;
  for (const MemoryLimit& limit : memory_limits())
    if (limit.of != MemoryLimit::Of::Machine)
      text += fmt::format("{:<13} {} allows {} of memory, {} left\n", "limit", limit.name, format_size(limit.limit),
                          format_size(limit.left));
  const OpenFiles files = open_files();
  text += fmt::format("{:<13} {} at a time in a process (ulimit -n)\n", "open files", files.limit);
  rlimit longest{};
  if (getrlimit(RLIMIT_FSIZE, &longest) == 0 && longest.rlim_cur != RLIM_INFINITY)
    text += fmt::format("{:<13} no file is longer than {} (ulimit -f)\n", "limit", format_size(longest.rlim_cur));
  if (is_in_memory(disk_directory))
    text += fmt::format("{:<13} {} is on tmpfs, which is memory: what is written there counts to the host\n", "disk",
                        disk_directory.string());
  return text;
}

}  // namespace snug
