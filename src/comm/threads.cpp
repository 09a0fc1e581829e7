#include "comm/threads.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "comm/watch.h"

namespace snug {
namespace {

// Counts a rank's calls on a channel; the ranks of a collective make it as their calls of equal number. So a rank has
// begun this one when its count of begun calls has reached the number, whatever it did since; the count of finished
// calls works alike.
struct Post {
  uint64_t begun = 0, finished = 0;
  const std::byte* send = nullptr;  // of the call begun last, as row_for() of its ExchangeStep
  uint64_t stride = 0, bytes = 0;
};

class ThreadComm;

class Team {
 public:
  Team(int ranks, double patience)
      : watch_(ranks, patience), slice_(static_cast<int64_t>(std::min(0.5, patience / 10) * 1e9)) {
    for (Channel& channel : channels_) channel.posts.resize(static_cast<size_t>(ranks));
  }

 private:
  friend class ThreadComm;
  struct Channel {
    std::vector<Post> posts;  // by rank
    int copying = 0;          // ranks that read each other's memory now
    std::condition_variable changed;
  };

  // Records a failure; the first is the job's.
  void fail(int rank, const std::string& what) {
    if (!failure_) failure_.emplace(rank, what);
    failed_ = true;
    wake();
  }
  [[noreturn]] void stop() {
    const std::lock_guard lock(mutex_);
    throw PeerError(*failure_);
  }
  void wake() {
    for (Channel& channel : channels_) channel.changed.notify_all();
  }

  std::mutex mutex_;
  std::array<Channel, kLanes + 1> channels_;
  std::optional<PeerError> failure_, explained_;
  std::atomic<bool> failed_ = false;  // failure_ is set
  Watch watch_;
  std::chrono::nanoseconds slice_;  // how often a waiting rank looks for signs of life
};

class ThreadComm final : public Comm {
 public:
  ThreadComm(Topology topology, std::shared_ptr<Team> team) : Comm(topology), team_(std::move(team)) {}

  ~ThreadComm() override {
    const std::lock_guard lock(team_->mutex_);
    team_->watch_.ended(topology().rank);
    team_->wake();
  }

  void leave(std::string_view reason) noexcept override {
    const std::lock_guard lock(team_->mutex_);
    team_->fail(topology().rank, fmt::format("failed: {}", reason));
  }

  void heartbeat() noexcept override { team_->watch_.advanced(topology().rank); }
  void wait_until(const std::function<bool()>& done) override;
  std::optional<PeerError> failure() const override {
    if (!team_->failed_) return std::nullopt;
    const std::lock_guard lock(team_->mutex_);
    return team_->explained_ ? team_->explained_ : team_->failure_;
  }

 private:
  void elaborate(const PeerError& failure) noexcept override {
    const std::lock_guard lock(team_->mutex_);
    if (!team_->explained_) team_->explained_ = failure;
  }
  void step(size_t number, const ExchangeStep& step) override;
  void copy(const Team::Channel& channel, const ExchangeStep& step) const;
  void wait_for(std::unique_lock<std::mutex>& lock, Team::Channel& channel, Ranks who, uint64_t Post::*count);
  [[noreturn]] void stop(std::unique_lock<std::mutex>& lock, Team::Channel& channel);

  std::shared_ptr<Team> team_;
};

void ThreadComm::step(size_t number, const ExchangeStep& step) {
  Team::Channel& channel = team_->channels_[number];
  std::unique_lock lock(team_->mutex_);
  Post& mine = channel.posts[static_cast<size_t>(topology().rank)];
  mine = {mine.begun + 1, mine.finished, step.send, step.send_stride, step.bytes};
  channel.changed.notify_all();
  wait_for(lock, channel, step.who, &Post::begun);
  if (team_->failure_) stop(lock, channel);
  for (int place = 0; place < topology().count(step.who); place++) {
    const int rank = topology().rank_at(step.who, place);
    const uint64_t bytes = channel.posts[static_cast<size_t>(rank)].bytes;
    check(bytes == step.bytes, "a collective of {} bytes on rank {}, and of {} on rank {}", step.bytes, topology().rank,
          bytes, rank);
  }
  channel.copying++;
  lock.unlock();
  copy(channel, step);
  lock.lock();
  channel.copying--;
  mine.finished++;
  channel.changed.notify_all();
  wait_for(lock, channel, step.who, &Post::finished);
}

// Copies rows. Posts stay as they are until all have finished. Each rank begins with the one after it, so that not all
// read from one.
void ThreadComm::copy(const Team::Channel& channel, const ExchangeStep& step) const {
  const int ranks = topology().count(step.who), own = topology().place(step.who);
  for (int i = 1; i <= ranks; i++) {
    const int place = (own + i) % ranks;
    const Post& post = channel.posts[static_cast<size_t>(topology().rank_at(step.who, place))];
    step.take(place, ExchangeStep{.send = post.send, .send_stride = post.stride}.row_for(topology()));
  }
}

// Returns when all who take part have counted as far as this rank. Ranks that have been served finish, whatever
// happened since.
void ThreadComm::wait_for(std::unique_lock<std::mutex>& lock, Team::Channel& channel, Ranks who,
                          uint64_t Post::*count) {
  Waiting waiting(team_->watch_, topology().rank);
  const uint64_t mine = channel.posts[static_cast<size_t>(topology().rank)].*count;
  while (true) {
    const int64_t since = waiting.since();
    const bool late = Watch::now() - since >= team_->slice_.count();
    int missing = -1;
    for (int place = topology().count(who) - 1; place >= 0; place--) {
      const int rank = topology().rank_at(who, place);
      if (channel.posts[static_cast<size_t>(rank)].*count >= mine) continue;
      missing = rank;
      if (!late && !team_->watch_.has_ended(rank)) continue;
      if (const std::string what = team_->watch_.complaint(rank, since, false); !what.empty()) team_->fail(rank, what);
    }
    if (missing < 0) return;
    if (late && team_->watch_.stuck(since)) team_->fail(missing, "and others wait for each other");
    if (team_->failure_) stop(lock, channel);
    channel.changed.wait_for(lock, team_->slice_);
  }
}

void ThreadComm::wait_until(const std::function<bool()>& done) {
  if (team_->failed_) team_->stop();
  if (done()) return;
  Waiting waiting(team_->watch_, topology().rank);
  for (int turn = 1; !done(); turn++) {
    pause(turn);
    if (turn % 64 != 0) continue;
    const int64_t since = waiting.since();
    const std::lock_guard lock(team_->mutex_);
    if (const auto fault = team_->watch_.fault(topology().rank, since, false)) team_->fail(fault->rank, fault->what);
    if (team_->failure_) throw PeerError(*team_->failure_);
  }
}

// Other ranks may still be reading this rank's memory, which the caller takes back.
void ThreadComm::stop(std::unique_lock<std::mutex>& lock, Team::Channel& channel) {
  channel.changed.wait(lock, [&] { return channel.copying == 0; });
  throw PeerError(*team_->failure_);
}

}  // namespace

std::vector<std::unique_ptr<Comm>> thread_ranks(int ranks, int replicas, double patience) {
  const auto team = std::make_shared<Team>(ranks, patience);
  std::vector<std::unique_ptr<Comm>> ends;
  for (int rank = 0; rank < ranks; rank++)
    ends.push_back(std::make_unique<ThreadComm>(Topology{ranks, replicas, rank}, team));
  return ends;
}

}  // namespace snug
