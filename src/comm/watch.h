// Watches signs of life of all ranks, and says what follows if they are missing.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace snug {

// Holds the signs of life of all ranks. Times are nanoseconds of this process's monotone clock. Everything may be
// called from any thread.
class Watch {
 public:
  Watch(int ranks, double patience);

  static int64_t now() noexcept;

  // Notes that a rank has advanced: it began or ended a call, an op, or other work that may take long.
  void advanced(int rank) noexcept { at(rank).advanced = now(); }
  int64_t last_advance(int rank) const noexcept { return at(rank).advanced; }
  // Adds to the number of calls in which a rank waits.
  void wait(int rank, int more) noexcept { at(rank).waiting += more; }
  void set_waiting(int rank, int calls) noexcept { at(rank).waiting = calls; }
  int waiting(int rank) const noexcept { return at(rank).waiting; }
  // Notes that a rank will make no more calls.
  void ended(int rank) noexcept { at(rank).ended = now(); }
  bool has_ended(int rank) const noexcept { return at(rank).ended != 0; }
  // Notes that a message has come, for ranks that are seen through messages.
  void heard(int rank) noexcept { at(rank).heard = now(); }
  // Returns whether no message has come for the whole patience.
  bool lost(int rank, int64_t since) const noexcept { return silent(at(rank).heard, since, patience_); }

  // Returns what is wrong with a rank for which a call has waited since then, as in "rank 3 ..."; empty if nothing is.
  // With `messages` see heard(): the message of an end may have overtaken others, which then get a second to come, and
  // of a rank that was not heard of for half the patience nobody knows whether it advances.
  std::string complaint(int rank, int64_t since, bool messages) const;
  // Returns whether no rank has advanced since then, though none is at fault, as all wait for each other.
  bool stuck(int64_t since) const noexcept;
  // Says which rank is at fault, and how, when the rank `own` has waited since then for something other than a call of
  // other ranks. fault() returns nothing before the patience has run out.
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
  bool silent(int64_t last, int64_t since, int64_t patience) const noexcept;

  int64_t patience_ = 0;
  std::vector<Signs> signs_;  // by rank
};

// Pauses between two looks of a rank that waits. Longer pauses would leave idle what it waits for, none at all would
// take the processor from the other ranks of this host. `turn` counts from 1.
void pause(int turn);

// Marks this rank as waiting in a call as long as it lives.
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

  // Returns since when the rank waits; it must be asked several times within the patience. A rank that did not ask for
  // long, as its process was suspended, counts as waiting since it came back: its peers may have been suspended as
  // well.
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
