// Connects ranks: the collectives of programs, and what a job needs besides.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/heartbeat.h"
#include "program/program.h"
#include "program/topology.h"
#include "tensor/view.h"

namespace snug {

// Says that a rank, perhaps another one, has ended in error, gives no sign of life or cannot be reached: the job is
// over. Where several ranks are one process, an error of another type is the cause.
struct PeerError : DeviceError {
  PeerError(int rank, std::string why)
      : DeviceError(fmt::format("rank {} {}", rank, why)), rank(rank), why(std::move(why)) {}
  int rank;
  std::string why;  // "failed: disk full"
};

// A rank that gives no sign of life for this many seconds, while another one waits for it, is taken to hang.
inline constexpr double kPatience = 20;

// Describes one step of either collective: the rank q gets the row of `send` that is q's part, and the rank at place r
// gives row r of `receive`. With a stride of 0 all ranks get one row.
struct ExchangeStep {
  Ranks who = Ranks::Everyone;
  const std::byte* send = nullptr;
  uint64_t send_stride = 0;
  std::byte* receive = nullptr;
  uint64_t receive_stride = 0;
  uint64_t bytes = 0;  // of a row

  const std::byte* row_for(const Topology& rank) const {
    return send + static_cast<uint64_t>(rank.part()) * send_stride;
  }
  std::byte* row_from(int place) const { return receive + static_cast<uint64_t>(place) * receive_stride; }
  // Copies a row to its place, unless it is there already.
  void take(int place, const std::byte* row) const;
};

// Return the steps of program/ops.h's AllGather and Exchange on a rank. Throw InternalError if the views do not fit the
// topology.
ExchangeStep gather_of(const Topology& topology, Ranks who, const TensorView& part, const TensorView& full);
ExchangeStep exchange_of(const Topology& topology, const TensorView& in, const TensorView& out);

// Names where ranks meet, for the error of one that waits there in vain: "rank 0 waited at the end of step 12".
struct SyncPoint {
  SyncPoint() = default;  // without a name
  SyncPoint(const char* place) : place(place) {}
  SyncPoint(const char* place, int64_t number) : place(place), number(number) {}
  std::string_view place;
  std::optional<int64_t> number;
};

// This is one rank's end of the connection of all ranks.
//
// Calls for different lanes come from different threads at the same time and do not mix; on one lane all ranks make
// equal calls in one order. No call allocates. A call returns when this rank's input is free and its output complete;
// it does so on all ranks that take part, or throws PeerError on each of them, at the latest some seconds after the
// patience has run out. Once one call has thrown it, all others do, pending and later ones, on all ranks. The
// connection does not touch the operands of a call that has returned or thrown.
//
// Signs of life are the beginning and the end of every call, waiting in one, and heartbeat(). They are never made by a
// thread that only proves that the process is there: an op, or anything between two ops, that takes longer than the
// patience while others wait is a hang, and what may take that long calls heartbeat() as it advances.
class Comm {
 public:
  virtual ~Comm() = default;

  const Topology& topology() const { return topology_; }
  // Sets the replicas of a connection that was made before it was known how ranks share the model. It must be called on
  // all ranks, before the first AllGather. `replicas` divides the number of ranks.
  void set_replicas(int replicas);

  // Run the collectives of program/ops.h. Throw InternalError if the views do not fit; also if those of other ranks do
  // not, where that can be seen.
  void all_gather(Lane lane, Ranks who, const TensorView& part, const TensorView& full);
  void exchange(Lane lane, const TensorView& in, const TensorView& out);

  // allgather_host(), agree() and barrier() are made by all ranks, by one thread of each at a time, whatever the lanes
  // do.
  //
  // Returns the value of each rank, by rank, valid until the next such call.
  std::span<const uint64_t> allgather_host(uint64_t value, const SyncPoint& at);
  // Returns several values of each rank, with an equal number on every rank: rank 0's first. It allocates where there
  // are more than before.
  std::span<const uint64_t> allgather_host(std::span<const uint64_t> values, const SyncPoint& at);
  // Throws UserError on all ranks, with the value of each, unless all give one value. `what` is "program" or "the data"
  // in "ranks do not agree on ...".
  void agree(std::string_view what, uint64_t value);
  // Returns when all ranks have called it.
  void barrier(const SyncPoint& at = {});

  // Returns when `done` returns true; it is called again and again. It serves waits for what other ranks may delay
  // without a call here, such as a device's work among others' devices. The others see this rank wait as in a call.
  // Throws PeerError if a rank has failed, or if the patience has run out and a rank has ended or gives no sign of
  // life, or all wait.
  virtual void wait_until(const std::function<bool()>& done) = 0;

  // Ends this rank in error. It must be called as soon as the error is there, from any thread, as calls of other lanes,
  // here and on the other ranks, are waiting.
  virtual void leave(std::string_view reason) noexcept = 0;
  // Gives a sign of life; cheap enough for every op.
  virtual void heartbeat() noexcept = 0;
  // Returns what has ended the job, as soon as any rank of this process knows, before a call of this one has thrown it;
  // with the place where a rank of this process waited, as soon as one has said so. Cheap while there is none.
  virtual std::optional<PeerError> failure() const = 0;
  // Throws what a call has thrown, with where this rank waited in it: "in the all_gather at layer.0". The text of the
  // first rank of this process to do so is failure()'s from then on, as what the error passes on its way out may block
  // for ever.
  [[noreturn]] void rethrow(const PeerError& error, std::string_view where);

 protected:
  explicit Comm(Topology topology);
  // Sets the failure() with more in its text; the first one counts.
  virtual void elaborate(const PeerError& failure) noexcept = 0;

  // Every lane has a channel, and allgather_host() and what is made of it have one.
  static constexpr size_t kChannels = kLanes + 1;
  virtual void step(size_t channel, const ExchangeStep& step) = 0;

 private:
  // `where` is as in rethrow(), or empty.
  template <class Where>
  std::span<const uint64_t> exchange_words(std::span<const uint64_t> values, const Where& where);

  Topology topology_;
  std::vector<uint64_t> gathered_;  // by rank, then by value
};

// Returns Comm::allgather_host() of a type that consists of words without pointers: each rank's value, by rank.
template <class T>
std::vector<T> allgather_host(Comm& comm, const T& own, const SyncPoint& at) {
  using Words = std::array<uint64_t, sizeof(T) / sizeof(uint64_t)>;
  std::span<const uint64_t> told = comm.allgather_host(std::bit_cast<Words>(own), at);
  std::vector<T> all;
  for (Words words; !told.empty(); told = told.subspan(words.size())) {
    std::ranges::copy(told.first(words.size()), words.begin());
    all.push_back(std::bit_cast<T>(words));
  }
  return all;
}

// Returns on all ranks what rank 0 gets from outside the job, however long that takes. On rank 0 `wait` returns it and,
// until then, calls the heartbeat that it is given, several times within the patience. By these calls ranks tell each
// other that they wait: none is taken to hang, and a lost one is noticed. One rank alone has no connection (null).
std::vector<uint64_t> from_rank_0(Comm* comm, const std::function<std::vector<uint64_t>(const Heartbeat&)>& wait);

// Returns heartbeat() for work that knows nothing of ranks, which throws the failure() when there is one; nothing for
// one rank alone (null).
Heartbeat heartbeat_of(Comm* comm);

}  // namespace snug
