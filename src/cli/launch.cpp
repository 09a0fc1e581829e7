#include "cli/launch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <span>
#include <thread>

#include "base/hash.h"
#include "comm/mpi.h"
#include "comm/threads.h"

namespace snug {

std::unique_ptr<Comm> launched() { return started_by_mpi() ? open_mpi() : nullptr; }

void require_one_process(std::string_view command) {
  const std::unique_ptr<Comm> comm = launched();
  if (const int ranks = comm ? comm->topology().ranks : 1; ranks > 1)
    user_error(
        "command line: the launcher started {} processes, expected one of 'snug {}': only train runs on several{}",
        ranks, command, command == "plan" ? "; here --ranks says how many" : "");
}

int most_ranks_of_a_node(Comm& launched) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) device_error("the system does not tell the name of this machine");
  const std::span<const uint64_t> hosts = launched.tell(hash_of(std::string_view(host.data())));
  std::ptrdiff_t most = 0;
  for (const uint64_t one : hosts) most = std::max(most, std::ranges::count(hosts, one));
  return static_cast<int>(most);
}

uint64_t least_of_ranks(Comm* launched, uint64_t value) {
  if (!launched) return value;
  return *std::ranges::min_element(launched->tell(value));
}

int run_ranks(int ranks, int replicas, Comm* launched, const std::function<int(int rank, Comm* comm)>& work) {
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
  std::vector<std::unique_ptr<Comm>> comms = thread_ranks(ranks, replicas);
  std::vector<std::exception_ptr> errors(comms.size());
  int result = 0;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; rank++)
      threads.emplace_back([&, rank] {
        const auto r = static_cast<size_t>(rank);
        try {
          const int code = work(rank, comms[r].get());
          if (rank == 0) result = code;
        } catch (const std::exception& error) {
          errors[r] = std::current_exception();
          comms[r]->leave(error.what());
        }
      });
  }
  std::exception_ptr consequence;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const PeerError&) {
      consequence = error;
    }
  }
  if (consequence) std::rethrow_exception(consequence);
  return result;
}

}  // namespace snug
