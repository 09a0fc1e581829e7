// Signs of life of all ranks, and what follows from their lack.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace snug {

// Times are nanoseconds of this process's monotone clock. All may be called from any thread.
class Watch {
 public:
  Watch(int ranks, double patience);

  static int64_t now() noexcept;

  // A rank has advanced: it began or ended a call, an op, or what else may take long.
  void advanced(int rank) noexcept { at(rank).advanced = now(); }
  int64_t last_advance(int rank) const noexcept { return at(rank).advanced; }
  // It waits in so many calls.
  void wait(int rank, int more) noexcept { at(rank).waiting += more; }
  void set_waiting(int rank, int calls) noexcept { at(rank).waiting = calls; }
  int waiting(int rank) const noexcept { return at(rank).waiting; }
  // It will make no more calls.
  void ended(int rank) noexcept { at(rank).ended = now(); }
  bool has_ended(int rank) const noexcept { return at(rank).ended != 0; }
  // For ranks that are seen through messages: one has come.
  void heard(int rank) noexcept { at(rank).heard = now(); }
  // No message for the whole patience.
  bool lost(int rank, int64_t since) const noexcept { return silent(at(rank).heard, since); }

  // What there is to say against a rank that a call has waited for since then, as in "rank 3 ..."; empty if nothing.
  // `messages`: see heard(); an end that was told by a message may have overtaken others, which then get a second.
  std::string complaint(int rank, int64_t since, bool messages) const;
  // Neither this nor any other rank has advanced, though none is at fault: all wait for each other.
  bool stuck(int64_t since) const noexcept;
  // What ends the wait of the rank `own` for something else than a call of others, since then: who is at fault, and
  // what there is to say. Nothing before the patience has run out.
  struct Fault {
    int rank = 0;
    std::string what;
  };
  std::optional<Fault> fault(int own, int64_t since, bool messages) const;
  double patience() const noexcept { return static_cast<double>(patience_) * 1e-9; }

 private:
  struct alignas(64) Signs {
    std::atomic<int64_t> advanced = 0, heard = 0, ended = 0;
    std::atomic<int> waiting = 0;
  };
  Signs& at(int rank) noexcept { return signs_[static_cast<size_t>(rank)]; }
  const Signs& at(int rank) const noexcept { return signs_[static_cast<size_t>(rank)]; }
  bool silent(int64_t last, int64_t since) const noexcept;

  int64_t patience_ = 0;
  std::vector<Signs> signs_;  // by rank
};

// Between two looks of a rank that waits. Longer pauses would leave what it waits for idle, none at all take the
// processor from the other ranks of this host. `turn` counts from 1.
void pause(int turn);

// This rank waits in a call as long as this lives.
class Waiting {
 public:
  Waiting(Watch& watch, int rank) : watch_(watch), rank_(rank), since_(Watch::now()), looked_(since_) {
    watch_.advanced(rank_);
    watch_.wait(rank_, 1);
  }
  ~Waiting() {
    watch_.advanced(rank_);
    watch_.wait(rank_, -1);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Since when, to be asked several times within the patience. Who was not there to ask for long, as a process that is
  // suspended is not, has waited since it came back: its peers may have been as far away.
  int64_t since() noexcept {
    const int64_t now = Watch::now();
    if (static_cast<double>(now - looked_) * 1e-9 > watch_.patience() / 4) since_ = now;
    looked_ = now;
    return since_;
  }

 private:
  Watch& watch_;
  int rank_;
  int64_t since_, looked_;
};

}  // namespace snug
