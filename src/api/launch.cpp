#include "api/launch.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "api/failure.h"
#include "base/cores.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "comm/mpi.h"
#include "comm/threads.h"

namespace snug {

namespace {

// Refuses to run if a launcher says that it started several tasks; each would run the whole job, as MPI has not joined
// them.
void require_no_others() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE")) return;
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "PMI_SIZE"})
    if (const char* tasks = std::getenv(name); tasks && std::atoi(tasks) > 1)
      user_error(
          "the launcher started {} processes ({}), which MPI does not join: srun --mpi=pmix does where Open MPI knows "
          "it, and mpirun",
          tasks, name);
}

// Refuses torchrun, accelerate and clusters' PyTorch jobs, which start a process for each GPU, or machine, and tell
// them of each other by these variables only.
void require_no_torchrun(std::string_view command) {
  const char* all = std::getenv("WORLD_SIZE");
  if (!all || std::atoi(all) < 2 || !std::getenv("RANK") || !std::getenv("MASTER_ADDR")) return;
  const char* here = std::getenv("LOCAL_WORLD_SIZE");
  const int machines = here && std::atoi(here) > 0 ? std::atoi(all) / std::atoi(here) : std::atoi(all);
  user_error(
      "torchrun, or what sets WORLD_SIZE={}, RANK and MASTER_ADDR, started {} processes, which snug does not join; {}: "
      "one process of snug takes all GPUs of its machine",
      all, all,
      machines > 1 ? fmt::format("'mpirun -n {} --host HOST,... snug {} ...' does the same", machines, command)
                   : fmt::format("'snug {} ...' without it does the same", command));
}

}  // namespace

namespace {

std::unique_ptr<Comm> joined_by_mpi(std::string_view command) {
  std::unique_ptr<Comm> comm = started_by_mpi() ? open_mpi() : nullptr;
  if (comm && comm->topology().ranks > 1) {
    comm->agree("the command of snug", hash_of(command));
    return comm;
  }
  require_no_others();
  return nullptr;
}

}  // namespace

std::unique_ptr<Comm> launched(std::string_view command) {
  std::unique_ptr<Comm> comm = joined_by_mpi(command);
  if (!comm) require_no_torchrun(command);
  return comm;
}

bool is_first_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(name); rank && std::atoi(rank) != 0) return false;
  return true;
}

void require_one_process(std::string_view command) {
  const std::unique_ptr<Comm> comm = joined_by_mpi(command);
  if (const int ranks = comm ? comm->topology().ranks : 1; ranks > 1)
    user_error(
        "command line: the launcher started {} processes, expected one of 'snug {}': train, eval, generate and chat "
        "run on several{}",
        ranks, command, command == "plan" ? "; here " + option_name("ranks") + " says how many" : "");
  if (!comm && command != "plan") require_no_torchrun(command);
}

namespace {

// Holds a machine's name, with its end in whole words; Linux allows 64 characters.
using MachineName = std::array<char, 72>;

MachineName name_of_machine() {
  MachineName name{};
  if (gethostname(name.data(), name.size()) != 0) device_error("the system does not tell the name of this machine");
  return name;
}

}  // namespace

// Hashes a name and what the kernel drew when it started: machines may share a name, and containers of one machine have
// their own limits and GPUs.
uint64_t number_of_machine() {
  std::string start;  // stays empty if a container does not show it
  std::ifstream("/proc/sys/kernel/random/boot_id") >> start;
  return hash_of(fmt::format("{} {}", name_of_machine().data(), start));
}

std::string machines_text(Comm& launched, int ranks) {
  struct Machine {
    uint64_t number;
    MachineName name;
  };
  const Machine own{number_of_machine(), name_of_machine()};
  const std::vector<Machine> of_processes = allgather_host(launched, own, "the names of machines");
  const int locals = ranks / static_cast<int>(of_processes.size());
  std::vector<std::pair<Machine, std::string>> machines;  // with their ranks
  for (size_t process = 0, next = 0; process < of_processes.size(); process = next) {
    const auto is_it = [&](const Machine& machine) { return machine.number == of_processes[process].number; };
    for (next = process + 1; next < of_processes.size() && is_it(of_processes[next]);) next++;
    auto at = std::ranges::find_if(machines, is_it, &std::pair<Machine, std::string>::first);
    if (at == machines.end()) at = machines.insert(at, {of_processes[process], ""});
    auto& [machine, text] = *at;
    const int first = static_cast<int>(process) * locals, last = static_cast<int>(next) * locals - 1;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", first);
    if (last > first) text += fmt::format(" to {}", last);
  }
  if (machines.size() == 1) return "";
  std::vector<std::string> words;
  for (const auto& [machine, its] : machines) words.push_back(fmt::format("{} on {}", its, machine.name.data()));
  return fmt::format("ranks {}", fmt::join(words, "; "));
}

NodeProcesses processes_of_node(Comm& launched) {
  const std::span<const uint64_t> nodes =
      launched.allgather_host(number_of_machine(), "the count of each machine's processes");
  const auto own = static_cast<size_t>(launched.topology().rank);
  const auto count = [](std::span<const uint64_t> among, uint64_t node) {
    return static_cast<int>(std::ranges::count(among, node));
  };
  NodeProcesses processes{count(nodes, nodes[own]), count(nodes.first(own), nodes[own])};
  for (const uint64_t node : nodes) processes.most = std::max(processes.most, count(nodes, node));
  return processes;
}

namespace {

void take_all_cores() {
  cpu_set_t cores;
  std::memset(&cores, 0xff, sizeof cores);
  sched_setaffinity(0, sizeof cores, &cores);  // the system takes those that it allows
}

}  // namespace

void take_cores(int threads) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < threads) take_all_cores();
}

int unbound_cores() {
  int cores = 0;
  std::thread([&] {
    take_all_cores();
    cores = usable_cores();
  }).join();
  return cores;
}

uint64_t least_of_ranks(Comm* launched, uint64_t value) {
  if (!launched) return value;
  return *std::ranges::min_element(launched->allgather_host(value, "the limits of the plan"));
}

namespace {

// Returns, of several ranks' errors, the one that no other rank's caused; null if there is none.
std::exception_ptr cause_of(const std::vector<std::exception_ptr>& errors) {
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const PeerError&) {
    } catch (...) {
      return error;
    }
  }
  return nullptr;
}

std::exception_ptr first_of(const std::vector<std::exception_ptr>& errors) {
  const auto first = std::ranges::find_if(errors, [](const std::exception_ptr& error) { return error != nullptr; });
  return first == errors.end() ? nullptr : *first;
}

using Where = std::function<std::string()>;

[[noreturn]] void throw_with(const std::exception_ptr& error, const Where& where) {
  const auto with = [&](const std::string& what) { return where ? what + where() : what; };
  try {
    std::rethrow_exception(error);
  } catch (const PeerError& caught) {
    throw PeerError(caught.rank, with(caught.why));
  } catch (const DeviceError& caught) {
    throw DeviceError(with(caught.what()));
  } catch (const std::filesystem::filesystem_error& caught) {
    throw DeviceError(with(caught.what()));
  } catch (const std::bad_alloc&) {
    throw CapacityError(with(no_more_memory()));
  }
}

// Ends the process: a thread that hangs, or takes long without looking for other ranks, cannot be ended by itself.
[[noreturn]] void end_process(const std::exception_ptr& error, const Where& where) {
  try {
    throw_with(error, where);
  } catch (...) {
    std::_Exit(fail(std::current_exception()));
  }
}

int run_threads(const std::vector<std::unique_ptr<Comm>>& comms, int first_place, const RankWork& work, double patience,
                const Where& where) {
  std::vector<std::exception_ptr> errors(comms.size());
  int result = 0;
  size_t running = comms.size();
  std::mutex mutex;
  std::condition_variable ended;
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < comms.size(); i++)
    threads.emplace_back([&, i] {
      Comm& comm = *comms[i];
      std::exception_ptr error;
      try {
        const int code = work(comm.topology().rank, first_place + static_cast<int>(i), &comm);
        if (i == 0) result = code;
      } catch (const std::exception& caught) {
        error = std::current_exception();
        comm.leave(caught.what());
      }
      const std::lock_guard lock(mutex);
      errors[i] = error;
      running--;
      ended.notify_all();
    });
  std::unique_lock lock(mutex);
  // If a device hangs, a thread that gives up may wait for it for ever and never end in its error.
  const std::chrono::duration<double> grace(patience / 5), look(patience / 50);
  while (!ended.wait_for(lock, look, [&] { return running == 0 || first_of(errors); }) && !comms[0]->failure())
    ;
  const auto all_ended = [&] { return running == 0; };
  if (!ended.wait_for(lock, grace, all_ended)) {
    // Other ranks learn of a cause only when they next look at the comm.
    if (!cause_of(errors))
      end_process(first_of(errors) ? first_of(errors) : std::make_exception_ptr(*comms[0]->failure()), where);
    if (!ended.wait_for(lock, std::chrono::duration<double>(patience), all_ended)) end_process(cause_of(errors), where);
  }
  lock.unlock();
  threads.clear();
  if (const std::exception_ptr cause = cause_of(errors)) throw_with(cause, where);
  if (const std::exception_ptr consequence = first_of(errors)) throw_with(consequence, where);
  return result;
}

}  // namespace

int run_ranks(int ranks, int replicas, std::unique_ptr<Comm> launched, const RankWork& work, double patience,
              const Where& where) {
  if (ranks == 1) try {
      return work(0, 0, nullptr);
    } catch (...) {
      throw_with(std::current_exception(), where);
    }
  const int locals = launched ? ranks / launched->topology().ranks : ranks;
  const int first_place = launched ? processes_of_node(*launched).place * locals : 0;
  const std::vector<std::unique_ptr<Comm>> comms =
      launched ? mpi_ranks(std::move(launched), locals) : thread_ranks(ranks, 1, patience);
  for (const std::unique_ptr<Comm>& comm : comms) comm->set_replicas(replicas);
  return run_threads(comms, first_place, work, patience, where);
}

}  // namespace snug
