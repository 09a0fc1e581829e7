// Runs programs with one thread a lane.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "exec/executor.h"

namespace snug {

class ThreadExecutor final : public Executor {
 public:
  // As make_executor().
  ThreadExecutor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena, Comm* comm,
                 HostHandler host, int threads);
  ~ThreadExecutor() override;

 private:
  struct Ticket {
    Instance* instance = nullptr;
    OpId op = 0;
    std::vector<int64_t> targets;  // by wait: how many runs of the op waited for must be done
  };

  void issue(Instance& instance, Instance& before) override;
  void drain(Instance& newest) override;

  void serve(Lane lane, int threads);
  bool ready(const Ticket& ticket) const;
  bool may_run(Lane lane) const;
  void complete(const Ticket& ticket);
  template <class Condition>
  void wait_here(std::unique_lock<std::mutex>& lock, const Condition& condition);
  void wake();
  void attempt(const Ticket& ticket, std::unique_lock<std::mutex>& lock);
  void rethrow(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;                                     // guards all of the state below
  std::array<std::condition_variable, kLanes> changed_;  // by the lane that waits; Host: the thread that issues
  std::array<bool, kLanes> idle_{};
  std::function<bool()> awaited_;                    // the issuing thread's condition, while it waits
  std::vector<std::vector<int64_t>> issued_, done_;  // by program, op: number of runs
  std::array<std::deque<Ticket>, kLanes> queues_;
  std::exception_ptr error_;
  int running_ = 0;  // ops that run now
  bool stop_ = false;
  std::vector<std::jthread> lanes_;
};

}  // namespace snug
