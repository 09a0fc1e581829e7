#include "comm/mpi.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "comm/mpi_abi.h"
#include "comm/watch.h"

namespace snug {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kSecond = 1'000'000'000;

const SnugMpi& module() {
  void* library = dlopen("libsnug_mpi.so", RTLD_NOW | RTLD_GLOBAL);  // Open MPI's own modules look for its symbols
  if (!library)
    user_error(
        "started as one of several processes, but libsnug_mpi.so cannot be opened: {}; build snug where Open MPI "
        "is installed, or start it without mpirun",
        dlerror());
  const auto table = reinterpret_cast<const SnugMpi* (*)()>(dlsym(library, "snug_mpi"));
  if (!table) device_error("libsnug_mpi.so is not snug's: {}", dlerror());
  return *table();
}

std::string explain(const SnugMpi& mpi, int code) {
  std::array<char, 256> text{};
  mpi.explain(code, text.data(), text.size());
  return text.data();
}

// What ranks tell each other beside the work: once in a while that they are there, and at the end how they ended.
enum class State : int32_t { Running, Ended, Failed };
struct News {
  State state = State::Running;
  int32_t waiting = 0;   // in so many calls
  int64_t advanced = 0;  // changes when the rank advances
  int32_t rank = 0;      // Failed: who
  char what[236] = "";   // Failed: in what way; cut
};

class MpiComm final : public Comm {
 public:
  MpiComm(const SnugMpi& mpi, Topology topology, double patience, uint64_t piece);
  ~MpiComm() override;

  void leave(std::string_view reason) noexcept override {
    fail(topology().rank, fmt::format("failed: {}", reason));
    wait_until_told();
  }
  void heartbeat() noexcept override { watch_.advanced(topology().rank); }
  void wait_until(const std::function<bool()>& done) override;

  static constexpr int kNewsChannel = kChannels;

 private:
  struct Piece {
    SnugMpiRequest request;
    int rank = 0;
    bool done = false;
  };
  struct Peer {
    News in, out;
    SnugMpiRequest receiving, sending;
    int64_t advanced = 0;  // News::advanced of the one before
    bool is_sending = false;
    bool told = false;     // how this rank ended
    bool answers = false;  // has said how it ended
  };

  void trade(size_t channel, const Trade& trade) override;
  void wait_for(std::vector<Piece>& pieces);
  void look_at(const std::vector<Piece>& pieces, int64_t since);
  bool test(SnugMpiRequest& request, int rank);
  void demand(int code, int rank);
  std::string unreachable(int code) const { return "cannot be reached: " + explain(mpi_, code); }

  void fail(int rank, const std::string& what) noexcept;
  void wait_until_told() noexcept;
  [[noreturn]] void stop();

  void spread_news();
  void listen();
  void tell(State state);
  bool close(State state);
  bool reached(int code, int rank);

  const SnugMpi& mpi_;
  const uint64_t piece_;
  const int exceptions_ = std::uncaught_exceptions();
  std::array<std::vector<Piece>, kChannels> pieces_;  // by channel, of the call there
  Watch watch_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<PeerError> failure_;
  std::atomic<bool> failed_ = false;    // there is a failure_
  bool ending_ = false, told_ = false;  // told_: nothing of this process calls MPI any more
  bool all_ended_ = false;
  std::vector<Peer> peers_;  // by rank; the thread's
  std::jthread news_;
};

MpiComm::MpiComm(const SnugMpi& mpi, Topology topology, double patience, uint64_t piece)
    : Comm(topology), mpi_(mpi), piece_(piece), watch_(topology.ranks, patience) {
  for (std::vector<Piece>& pieces : pieces_) pieces.reserve(2 * static_cast<size_t>(topology.ranks));
  peers_.resize(static_cast<size_t>(topology.ranks));
  peers_[static_cast<size_t>(topology.rank)].answers = peers_[static_cast<size_t>(topology.rank)].told = true;
  for (int rank = 0; rank < topology.ranks; rank++) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.answers) continue;
    if (const int code = mpi_.receive(kNewsChannel, rank, &peer.in, sizeof peer.in, &peer.receiving))
      device_error("MPI does not start: {}", explain(mpi, code));
  }
  news_ = std::jthread([this] { spread_news(); });
}

MpiComm::~MpiComm() {
  if (std::uncaught_exceptions() > exceptions_) fail(topology().rank, "failed");
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  news_.join();
  if (all_ended_) mpi_.finish();
}

// ---- Work -----------------------------------------------------------------------------------------------------------

void MpiComm::trade(size_t channel, const Trade& trade) {
  const Topology& here = topology();
  const int ranks = here.count(trade.who), own = here.place(trade.who);
  std::vector<Piece>& pieces = pieces_[channel];
  for (uint64_t begin = 0; begin < trade.bytes && ranks > 1; begin += piece_) {
    if (failed_) stop();
    const uint64_t bytes = std::min(piece_, trade.bytes - begin);
    const int number = static_cast<int>(channel);
    pieces.clear();
    for (int i = 1; i < ranks; i++) {
      const int place = (own + ranks - i) % ranks, rank = here.rank_at(trade.who, place);
      Piece& piece = pieces.emplace_back(Piece{{}, rank});
      demand(mpi_.receive(number, rank, trade.row_from(place) + begin, bytes, &piece.request), rank);
    }
    for (int i = 1; i < ranks; i++) {
      const int rank = here.rank_at(trade.who, (own + i) % ranks);
      Piece& piece = pieces.emplace_back(Piece{{}, rank});
      demand(mpi_.send(number, rank, trade.row_for(here.seen_by(rank)) + begin, bytes, &piece.request), rank);
    }
    wait_for(pieces);
  }
  if (failed_) stop();
  trade.take(own, trade.row_for(here));
}

// Each test moves messages on.
void MpiComm::wait_for(std::vector<Piece>& pieces) {
  const Waiting waiting(watch_, topology().rank);
  const int64_t since = Watch::now();
  size_t left = pieces.size();
  for (int turn = 1;; turn++) {
    for (Piece& piece : pieces)
      if (!piece.done && test(piece.request, piece.rank)) piece.done = true, left--;
    if (left == 0) return;
    if (failed_) stop();
    if (turn % 256 == 0) look_at(pieces, since);
    pause(turn);
  }
}

void MpiComm::wait_until(const std::function<bool()>& done) {
  if (done()) return;
  const Waiting waiting(watch_, topology().rank);
  const int64_t since = Watch::now();
  for (int turn = 1; !done(); turn++) {
    pause(turn);
    if (failed_) stop();
    if (turn % 256 != 0) continue;
    if (const auto fault = watch_.fault(topology().rank, since, true)) fail(fault->rank, fault->what);
  }
}

void MpiComm::look_at(const std::vector<Piece>& pieces, int64_t since) {
  int missing = -1;
  for (const Piece& piece : pieces) {
    if (piece.done) continue;
    missing = piece.rank;
    if (const std::string what = watch_.complaint(missing, since, true); !what.empty()) fail(missing, what);
  }
  if (watch_.stuck(since)) fail(missing, "and others wait for each other");
}

bool MpiComm::test(SnugMpiRequest& request, int rank) {
  int done = 0;
  demand(mpi_.test(&request, &done), rank);
  return done != 0;
}

void MpiComm::demand(int code, int rank) {
  if (code == 0) return;
  fail(rank, unreachable(code));
  stop();
}

// ---- Failure --------------------------------------------------------------------------------------------------------

// The first failure is the job's.
void MpiComm::fail(int rank, const std::string& what) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_.emplace(rank, what);
  failed_ = true;
  changed_.notify_all();
}

void MpiComm::wait_until_told() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return told_; });
}

// Messages under way are never cancelled; they rest as soon as no thread of this process calls MPI, and only then may
// their memory go.
void MpiComm::stop() {
  wait_until_told();
  throw PeerError(*failure_);
}

// ---- News -----------------------------------------------------------------------------------------------------------

void MpiComm::spread_news() {
  const int64_t interval = std::min(kSecond, static_cast<int64_t>(watch_.patience() * 1e9 / 10));
  int64_t next = 0;
  std::unique_lock lock(mutex_);
  while (!failed_ && !ending_) {
    lock.unlock();
    listen();
    if (Watch::now() >= next) {
      next = Watch::now() + interval;
      tell(State::Running);
    }
    lock.lock();
    changed_.wait_for(lock, 10ms, [&] { return failed_ || ending_; });
  }
  lock.unlock();
  if (!failed_) all_ended_ = close(State::Ended);
  if (failed_) {
    for (Peer& peer : peers_) peer.told = &peer == &peers_[static_cast<size_t>(topology().rank)];
    close(State::Failed);
  }
  lock.lock();
  told_ = true;
  changed_.notify_all();
}

void MpiComm::listen() {
  for (int rank = 0; rank < topology().ranks; rank++) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    int done = 1;
    while (!peer.answers && reached(mpi_.test(&peer.receiving, &done), rank) && done) {
      watch_.heard(rank);
      if (peer.in.advanced != std::exchange(peer.advanced, peer.in.advanced)) watch_.advanced(rank);
      watch_.set_waiting(rank, peer.in.waiting);
      peer.answers = peer.in.state != State::Running;
      if (peer.in.state == State::Ended) watch_.ended(rank);
      if (peer.in.state == State::Failed) fail(peer.in.rank, peer.in.what);
      if (!peer.answers) reached(mpi_.receive(kNewsChannel, rank, &peer.in, sizeof peer.in, &peer.receiving), rank);
    }
  }
}

void MpiComm::tell(State state) {
  News news{state, watch_.waiting(topology().rank), watch_.last_advance(topology().rank)};
  if (state == State::Failed) {
    const std::lock_guard lock(mutex_);
    news.rank = failure_->rank;
    failure_->why.copy(news.what, sizeof news.what - 1);
  }
  for (int rank = 0; rank < topology().ranks; rank++) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    int done = 0;
    if (peer.is_sending && reached(mpi_.test(&peer.sending, &done), rank)) peer.is_sending = !done;
    if (peer.is_sending || peer.told) continue;
    peer.out = news;
    peer.is_sending = reached(mpi_.send(kNewsChannel, rank, &peer.out, sizeof peer.out, &peer.sending), rank);
    peer.told = state != State::Running;
  }
}

// Tells all how this rank ended, and hears the same of them: when both ended well, for as long as they show that they
// are there, else for a second at most.
bool MpiComm::close(State state) {
  const int64_t begin = Watch::now();
  while (true) {
    listen();
    if (state == State::Ended && failed_) return false;
    tell(state);
    bool all = true;
    for (int rank = 0; rank < topology().ranks; rank++) {
      const Peer& peer = peers_[static_cast<size_t>(rank)];
      all = all && peer.told && !peer.is_sending && peer.answers;
      if (state == State::Ended && !peer.answers && watch_.lost(rank, begin)) return false;
    }
    if (all) return true;
    if (state == State::Failed && Watch::now() - begin > kSecond) return false;
    std::this_thread::sleep_for(1ms);
  }
}

// A rank that MPI cannot reach counts as one that has been told and has answered.
bool MpiComm::reached(int code, int rank) {
  if (code == 0) return true;
  fail(rank, unreachable(code));
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.told = peer.answers = true;
  peer.is_sending = false;
  return false;
}

}  // namespace

bool started_by_mpi() {
  if (const char* ranks = std::getenv("OMPI_COMM_WORLD_SIZE")) return std::atoi(ranks) > 1;
  return std::getenv("PMIX_RANK") || std::getenv("PMI_RANK");
}

std::unique_ptr<Comm> open_mpi(double patience, uint64_t piece) {
  const SnugMpi& mpi = module();
  Topology topology;
  // The channels of the work, and one for news.
  if (const int code = mpi.start(MpiComm::kNewsChannel + 1, &topology.rank, &topology.ranks))
    device_error("MPI does not start: {}", explain(mpi, code));
  return std::make_unique<MpiComm>(mpi, topology, patience, piece);
}

}  // namespace snug
