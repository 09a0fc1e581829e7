// Connects the ranks of this process with those of the other processes: what processes tell each other beside the work,
// and how the end of one rank ends all.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/comm.h"
#include "comm/mpi_abi.h"
#include "comm/watch.h"

namespace snug {

// Returns the text of an MPI error code.
std::string explain(const SnugMpi& mpi, int code);

// Describes this process among those that the launcher started.
struct MpiProcess {
  MpiProcess(const SnugMpi& mpi, double patience, uint64_t piece) : mpi(mpi), patience(patience), piece(piece) {}
  ~MpiProcess() {
    if (at_rest) mpi.finish();
  }
  MpiProcess(const MpiProcess&) = delete;
  MpiProcess& operator=(const MpiProcess&) = delete;

  const SnugMpi& mpi;
  const double patience;
  const uint64_t piece;
  int number = 0, count = 1;
  bool at_rest = false;  // all processes have ended their common work well
};

// Holds the ranks of all processes, as many in each: rank = process * locals + local number. Those of one process fail
// together, and one thread reports all of them to the other processes. Everything but that thread's work may be called
// from any thread.
class MpiTeam {
 public:
  static constexpr int kNewsChannel = kLanes + 1;  // channels before it are for the work

  // Connects; all processes call it together. Throws DeviceError if MPI fails.
  MpiTeam(std::shared_ptr<MpiProcess> process, int locals);
  // Returns when the ranks of all processes have ended, or one has failed.
  ~MpiTeam();
  MpiTeam(const MpiTeam&) = delete;
  MpiTeam& operator=(const MpiTeam&) = delete;

  const std::shared_ptr<MpiProcess>& process() const { return process_; }
  int process_of(int rank) const { return rank / locals_; }
  // Returns the tag of messages from one rank to another.
  int tag(int from, int to) const { return from % locals_ * locals_ + to % locals_; }
  Watch& watch() { return watch_; }

  // While one exists, a thread calls MPI for the work. That thread looks at failed() again and again, and ends soon
  // after.
  class Calling {
   public:
    explicit Calling(MpiTeam& team) : team_(team) { team_.calling_++; }
    ~Calling() { team_.calling_--; }
    Calling(const Calling&) = delete;
    Calling& operator=(const Calling&) = delete;

   private:
    MpiTeam& team_;
  };

  bool failed() const { return failed_; }
  std::optional<PeerError> failure() const {
    if (!failed_) return std::nullopt;
    const std::lock_guard lock(mutex_);
    return explained_ ? explained_ : failure_;
  }
  // See Comm::elaborate().
  void elaborate(const PeerError& failure) noexcept {
    const std::lock_guard lock(mutex_);
    if (!explained_) explained_ = failure;
  }
  // Records what is wrong with a rank. The first failure is the job's.
  void fail(int rank, const std::string& what) noexcept;
  // Returns false, and records a failure of that rank, if a call of MPI has failed.
  bool demand(int code, int rank) noexcept;
  // Returns, after a failure, when the others have been told and no thread of this process calls MPI any more.
  void wait_until_told() noexcept;
  // Waits until the others have been told, and throws the failure.
  [[noreturn]] void stop();

 private:
  // Says the state of one rank, or of all ranks of a process.
  enum class State : int32_t { Running, Ended, Failed };
  struct News {
    State state = State::Running;
    int32_t waiting = 0;   // number of calls in which it waits
    int64_t advanced = 0;  // changes when the rank advances
    int32_t rank = 0;      // Failed: the rank that failed
    char what[236] = "";   // Failed: why; cut to size
  };
  struct Peer {
    std::vector<News> in, out;  // of its ranks; of this process's
    SnugMpiRequest receiving, sending;
    bool is_sending = false;
    bool told = false;     // of how this process's ranks ended
    bool answers = false;  // it has said how its ranks ended
  };

  int rank_of(int process, int local) const { return process * locals_ + local; }

  void spread_news();
  void listen();
  void hear(int process);
  void announce(State state);
  bool close(State state);
  void wait_until_nobody_calls() const;
  bool reached(int code, int process);

  const std::shared_ptr<MpiProcess> process_;
  const int locals_;
  Watch watch_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<PeerError> failure_, explained_;
  std::atomic<bool> failed_ = false;    // failure_ is set
  std::atomic<int> calling_ = 0;        // number of Callings
  bool ending_ = false, told_ = false;  // told_: see wait_until_told()
  bool all_ended_ = false;
  std::vector<Peer> peers_;        // by process; used by the thread alone
  std::vector<int64_t> advanced_;  // by rank: the last News::advanced; used by the thread alone
  std::jthread news_;
};

}  // namespace snug
