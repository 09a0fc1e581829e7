#include "cli/launch.h"

#include <exception>
#include <thread>

#include "comm/threads.h"

namespace snug {

int run_ranks(int ranks, int replicas, const std::function<int(int rank, Comm* comm)>& work) {
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
