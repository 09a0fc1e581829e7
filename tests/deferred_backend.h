// A backend with streams that does everything as late as it may and in an order drawn at random: what runs only because
// it was lucky on a real device fails here.
#pragma once

#include <array>
#include <deque>

#include <future>

#include "backend/cpu/backend.h"
#include "comm/comm.h"
#include "op_case.h"

namespace snug {

class DeferredStreams : public Streams {
 public:
  explicit DeferredStreams(uint64_t seed) : numbers_(seed) {}
  void use_here() override {}
  Mark add_mark() override {
    recorded_.push_back(0);
    reached_.push_back(0);
    return recorded_.size() - 1;
  }
  void record(Lane lane, Mark mark) override {
    const int64_t version = ++recorded_[mark];
    enqueue(lane, [this, mark, version] {
      reached_[mark] = version;
      return true;
    });
  }
  void wait(Lane lane, Mark mark) override {
    enqueue(lane, [this, mark, version = recorded_[mark]] { return reached_[mark] >= version; });
  }
  void wait_here(Mark mark) override {
    const int64_t version = recorded_[mark];
    while (reached_[mark] < version) check(advance(), "a mark is waited for that nothing reaches");
  }
  bool passed(Mark mark) override { return reached_[mark] >= recorded_[mark]; }
  void finish() override {
    while (advance()) {
    }
    for (const auto& queue : queues_) check(queue.empty(), "streams wait for each other");
  }
  Stamp stamp(Lane lane) override {
    stamps_.push_back(0);
    enqueue(lane, [this, stamp = stamps_.size() - 1] {
      stamps_[stamp] = std::chrono::steady_clock::now().time_since_epoch().count();
      return true;
    });
    return stamps_.size() - 1;
  }
  int64_t when(Stamp stamp) override { return stamps_[stamp]; }
  // What other ranks take part in, on a thread of its own: they may come to it much later.
  void enqueue_collective(Lane lane, std::function<void()> work) {
    enqueue(lane, [this, work = std::move(work), under_way = std::shared_ptr<std::future<void>>()]() mutable {
      if (!under_way) {
        under_way = std::make_shared<std::future<void>>(std::async(std::launch::async, work));
        others_++;
      }
      if (under_way->wait_for(std::chrono::microseconds(100)) != std::future_status::ready) return false;
      others_--;
      under_way->get();
      return true;
    });
  }
  // `item` says whether it has run; false: it is to be tried again.
  void enqueue(Lane lane, std::function<bool()> item) { queues_[index(lane)].push_back(std::move(item)); }

 private:
  // One item of any lane that can go on, if there is one.
  bool advance() {
    const size_t first = numbers_.bits() % kLanes;
    for (size_t i = 0; i < kLanes; i++) {
      auto& queue = queues_[(first + i) % kLanes];
      if (queue.empty() || !queue.front()()) continue;
      queue.pop_front();
      return true;
    }
    return others_ > 0;  // another rank's turn
  }

  Numbers numbers_;
  int others_ = 0;  // collectives under way
  std::array<std::deque<std::function<bool()>>, kLanes> queues_;
  std::vector<int64_t> recorded_, reached_;  // by mark: how often
  std::vector<int64_t> stamps_;              // nanoseconds, as steady_clock counts them here
};

class DeferredBackend : public Backend {
 public:
  explicit DeferredBackend(uint64_t seed, Comm* comm = nullptr,
                           std::unique_ptr<Backend> backend = std::make_unique<CpuBackend>())
      : backend_(std::move(backend)), streams_(seed), comm_(comm) {}
  std::byte* reserve(Space space, uint64_t bytes) override { return backend_->reserve(space, bytes); }
  Launch bind(const Op& op, std::span<const TensorView> views) override {
    check(op.lane != Lane::Host && op.lane != Lane::DiskIn && op.lane != Lane::DiskOut,
          "{}: a launch on a lane of the host", op.site);
    if (const auto* gather = std::get_if<AllGather>(&op.attrs))
      return collective(op.lane, [this, lane = op.lane, who = gather->ranks, part = views[0], full = views[1]] {
        comm_->all_gather(lane, who, part, full);
      });
    if (std::holds_alternative<Exchange>(op.attrs))
      return collective(op.lane,
                        [this, lane = op.lane, in = views[0], out = views[1]] { comm_->exchange(lane, in, out); });
    return [this, lane = op.lane, launch = backend_->bind(op, views)](const RuntimeScalars& runtime) {
      streams_.enqueue(lane, [launch, runtime] {
        launch(runtime);
        return true;
      });
    };
  }
  Streams* streams() override { return &streams_; }

 private:
  Launch collective(Lane lane, std::function<void()> work) {
    return [this, lane, work = std::move(work)](const RuntimeScalars&) { streams_.enqueue_collective(lane, work); };
  }

  std::unique_ptr<Backend> backend_;  // does the work; without streams
  DeferredStreams streams_;
  Comm* comm_;
};

}  // namespace snug
