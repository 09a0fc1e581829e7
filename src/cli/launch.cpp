#include "cli/launch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <span>
#include <thread>

#include "base/hash.h"
#include "comm/mpi.h"
#include "comm/threads.h"

namespace snug {

std::unique_ptr<Comm> launched() {
  std::unique_ptr<Comm> comm = started_by_mpi() ? open_mpi() : nullptr;
  return comm && comm->topology().ranks > 1 ? std::move(comm) : nullptr;
}

void require_one_process(std::string_view command) {
  const std::unique_ptr<Comm> comm = launched();
  if (const int ranks = comm ? comm->topology().ranks : 1; ranks > 1)
    user_error(
        "command line: the launcher started {} processes, expected one of 'snug {}': train, eval, generate and chat "
        "run on several{}",
        ranks, command, command == "plan" ? "; here --ranks says how many" : "");
}

namespace {

// Of every rank's machine, by rank: the same number for the same machine.
std::span<const uint64_t> nodes_of(Comm& launched) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) device_error("the system does not tell the name of this machine");
  return launched.tell(hash_of(std::string_view(host.data())));
}

}  // namespace

int most_ranks_of_a_node(Comm& launched) {
  const std::span<const uint64_t> nodes = nodes_of(launched);
  std::ptrdiff_t most = 0;
  for (const uint64_t one : nodes) most = std::max(most, std::ranges::count(nodes, one));
  return static_cast<int>(most);
}

int place_on_node(Comm& launched) {
  const std::span<const uint64_t> nodes = nodes_of(launched);
  const auto rank = static_cast<size_t>(launched.topology().rank);
  return static_cast<int>(std::ranges::count(nodes.first(rank), nodes[rank]));
}

uint64_t least_of_ranks(Comm* launched, uint64_t value) {
  if (!launched) return value;
  return *std::ranges::min_element(launched->tell(value));
}

namespace {

// Of several ranks' errors the one that no other rank's caused; null if there is none.
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

// A thread that hangs cannot be ended but with its process.
[[noreturn]] void end_process(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    fmt::print(stderr, "snug: {}\n", caught.what());
  }
  std::_Exit(4);
}

int run_threads(int ranks, int replicas, double patience, const std::function<int(int rank, Comm* comm)>& work) {
  std::vector<std::unique_ptr<Comm>> comms = thread_ranks(ranks, replicas, patience);
  std::vector<std::exception_ptr> errors(comms.size());
  int result = 0, running = ranks;
  std::mutex mutex;
  std::condition_variable ended;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      std::exception_ptr error;
      try {
        const int code = work(rank, comms[r].get());
        if (rank == 0) result = code;
      } catch (const std::exception& caught) {
        error = std::current_exception();
        comms[r]->leave(caught.what());
      }
      const std::lock_guard lock(mutex);
      errors[r] = error;
      running--;
      ended.notify_all();
    });
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return running == 0 || first_of(errors); });
  const std::chrono::duration<double> grace(patience / 5);
  const auto all_ended = [&] { return running == 0; };
  if (!ended.wait_for(lock, grace, all_ended)) {
    // Others learn of a cause only when they next look at the comm.
    if (!cause_of(errors)) end_process(first_of(errors));
    if (!ended.wait_for(lock, std::chrono::duration<double>(patience), all_ended)) end_process(cause_of(errors));
  }
  lock.unlock();
  threads.clear();
  if (const std::exception_ptr cause = cause_of(errors)) std::rethrow_exception(cause);
  if (const std::exception_ptr consequence = first_of(errors)) std::rethrow_exception(consequence);
  return result;
}

}  // namespace

int run_ranks(int ranks, int replicas, Comm* launched, const std::function<int(int rank, Comm* comm)>& work,
              double patience) {
  if (launched) {
    launched->set_replicas(replicas);
    try {
      return work(launched->topology().rank, launched);
    } catch (const std::exception& error) {
      launched->leave(error.what());
      throw;
    }
  }
  if (ranks == 1) return work(0, nullptr);
  return run_threads(ranks, replicas, patience, work);
}

}  // namespace snug
