#include "comm/mpi_team.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace snug {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kSecond = 1'000'000'000;

}  // namespace

std::string explain(const SnugMpi& mpi, int code) {
  std::array<char, 256> text{};
  mpi.explain(code, text.data(), text.size());
  return text.data();
}

MpiTeam::MpiTeam(std::shared_ptr<MpiProcess> process, int locals)
    : process_(std::move(process)),
      locals_(locals),
      watch_(process_->count * locals, process_->patience),
      peers_(static_cast<size_t>(process_->count)),
      advanced_(peers_.size() * static_cast<size_t>(locals)) {
  process_->at_rest = false;
  for (int other = 0; other < process_->count; other++) {
    Peer& peer = peers_[static_cast<size_t>(other)];
    peer.in.resize(static_cast<size_t>(locals));
    peer.out.resize(peer.in.size());
    peer.told = peer.answers = other == process_->number;
    if (!peer.answers) hear(other);
  }
  if (failure_) device_error("MPI does not start: {}", failure_->what());
  news_ = std::jthread([this] { spread_news(); });
}

MpiTeam::~MpiTeam() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  news_.join();
  process_->at_rest = all_ended_;
}

// ---- Failure --------------------------------------------------------------------------------------------------------

void MpiTeam::fail(int rank, const std::string& what) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_.emplace(rank, what);
  failed_ = true;
  changed_.notify_all();
}

bool MpiTeam::demand(int code, int rank) noexcept {
  if (code != 0) fail(rank, "cannot be reached: " + explain(process_->mpi, code));
  return code == 0;
}

void MpiTeam::wait_until_told() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return told_; });
}

// Messages under way are never cancelled. They rest as soon as no thread of this process calls MPI, and only then may
// their memory be freed.
void MpiTeam::stop() {
  wait_until_told();
  throw PeerError(*failure_);
}

// ---- News -----------------------------------------------------------------------------------------------------------

void MpiTeam::spread_news() {
  const int64_t interval = std::min(kSecond, static_cast<int64_t>(watch_.patience() * 1e9 / 10));
  int64_t next = 0;
  std::unique_lock lock(mutex_);
  while (!failed_ && !ending_) {
    lock.unlock();
    listen();
    if (Watch::now() >= next) {
      next = Watch::now() + interval;
      announce(State::Running);
    }
    lock.lock();
    changed_.wait_for(lock, 10ms, [&] { return failed_ || ending_; });
  }
  lock.unlock();
  if (!failed_) all_ended_ = close(State::Ended);
  if (failed_) {
    for (Peer& peer : peers_) peer.told = &peer == &peers_[static_cast<size_t>(process_->number)];
    close(State::Failed);
    wait_until_nobody_calls();
  }
  lock.lock();
  told_ = true;
  changed_.notify_all();
}

// Posts the receive of the next news of another process.
void MpiTeam::hear(int process) {
  Peer& peer = peers_[static_cast<size_t>(process)];
  reached(
      process_->mpi.receive(kNewsChannel, process, 0, peer.in.data(), peer.in.size() * sizeof(News), &peer.receiving),
      process);
}

void MpiTeam::listen() {
  for (int process = 0; process < process_->count; process++) {
    Peer& peer = peers_[static_cast<size_t>(process)];
    if (process == process_->number)
      for (int local = 0; local < locals_; local++) watch_.heard(rank_of(process, local));
    int done = 1;
    while (!peer.answers && reached(process_->mpi.test(&peer.receiving, &done), process) && done) {
      peer.answers = true;
      for (int local = 0; local < locals_; local++) {
        const News& news = peer.in[static_cast<size_t>(local)];
        const int rank = rank_of(process, local);
        watch_.heard(rank);
        if (news.advanced != std::exchange(advanced_[static_cast<size_t>(rank)], news.advanced)) watch_.advanced(rank);
        watch_.set_waiting(rank, news.waiting);
        if (news.state == State::Running) peer.answers = false;
        if (news.state == State::Ended && !watch_.has_ended(rank)) watch_.ended(rank);
        if (news.state == State::Failed) fail(news.rank, news.what);
      }
      if (!peer.answers) hear(process);
    }
  }
}

// Sends `state`, which is that of all ranks here; while it is Running, single ranks may have ended.
void MpiTeam::announce(State state) {
  std::vector<News> all;
  bool last = true;
  for (int local = 0; local < locals_; local++) {
    const int rank = rank_of(process_->number, local);
    News& news = all.emplace_back(News{state, watch_.waiting(rank), watch_.last_advance(rank)});
    // A rank that failed ends too, but first it reports that it failed, so that news of its end comes after that.
    if (state == State::Running && watch_.has_ended(rank) && !failed_) news.state = State::Ended;
    last = last && news.state != State::Running;
    if (state != State::Failed) continue;
    const std::lock_guard lock(mutex_);
    news.rank = failure_->rank;
    failure_->why.copy(news.what, sizeof news.what - 1);
  }
  for (int process = 0; process < process_->count; process++) {
    Peer& peer = peers_[static_cast<size_t>(process)];
    int done = 0;
    if (peer.is_sending && reached(process_->mpi.test(&peer.sending, &done), process)) peer.is_sending = !done;
    if (peer.is_sending || peer.told) continue;
    std::ranges::copy(all, peer.out.begin());
    peer.is_sending = reached(
        process_->mpi.send(kNewsChannel, process, 0, peer.out.data(), peer.out.size() * sizeof(News), &peer.sending),
        process);
    peer.told = last;
  }
}

// Tells all processes how this one's ranks ended, and hears that from them: when all ended well, for as long as they
// show that they are alive, else for a second at most.
bool MpiTeam::close(State state) {
  const int64_t begin = Watch::now();
  while (true) {
    listen();
    if (state == State::Ended && failed_) return false;
    announce(state);
    bool all = true;
    for (int process = 0; process < process_->count; process++) {
      const Peer& peer = peers_[static_cast<size_t>(process)];
      all = all && peer.told && !peer.is_sending && peer.answers;
      if (state == State::Ended && !peer.answers && watch_.lost(rank_of(process, 0), begin)) return false;
    }
    if (all) return true;
    if (state == State::Failed && Watch::now() - begin > kSecond) return false;
    std::this_thread::sleep_for(1ms);
  }
}

// Threads that call MPI see the failure at once, unless MPI itself hangs.
void MpiTeam::wait_until_nobody_calls() const {
  for (const int64_t begin = Watch::now(); calling_ > 0 && Watch::now() - begin < kSecond;)
    std::this_thread::sleep_for(100us);
}

// A process that MPI cannot reach counts as one that has been told and has answered.
bool MpiTeam::reached(int code, int process) {
  if (demand(code, rank_of(process, 0))) return true;
  Peer& peer = peers_[static_cast<size_t>(process)];
  peer.told = peer.answers = true;
  peer.is_sending = false;
  return false;
}

}  // namespace snug
