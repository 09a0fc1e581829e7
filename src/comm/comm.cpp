#include "comm/comm.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace snug {
namespace {

uint64_t row_bytes(const TensorView& view) { return static_cast<uint64_t>(view.cols()) * element_bytes(view.dtype); }
uint64_t stride_bytes(const TensorView& view) {
  return static_cast<uint64_t>(view.row_stride) * element_bytes(view.dtype);
}

bool apart(const std::byte* a, uint64_t a_bytes, const std::byte* b, uint64_t b_bytes) {
  return a_bytes == 0 || b_bytes == 0 || std::less_equal<>()(a + a_bytes, b) || std::less_equal<>()(b + b_bytes, a);
}

uint64_t extent(const TensorView& view) {
  return view.count() == 0 ? 0 : static_cast<uint64_t>(view.rows() - 1) * stride_bytes(view) + row_bytes(view);
}

}  // namespace

void ExchangeStep::take(int place, const std::byte* row) const {
  if (bytes > 0 && row_from(place) != row) std::memcpy(row_from(place), row, bytes);
}

ExchangeStep gather_of(const Topology& topology, Ranks who, const TensorView& part, const TensorView& full) {
  const auto bytes = static_cast<uint64_t>(part.count()) * element_bytes(part.dtype);
  const int ranks = topology.count(who), place = topology.place(who);
  if (part.dtype != full.dtype || !part.dense() || !full.dense() || full.count() != ranks * part.count())
    internal_error("all_gather of {} {} from {} ranks into {} {}", name(part.dtype), to_string(part.shape), ranks,
                   name(full.dtype), to_string(full.shape));
  const ExchangeStep step{who, part.data, 0, full.data, bytes, bytes};
  check(part.data == step.row_from(place) || apart(part.data, bytes, full.data, bytes * static_cast<uint64_t>(ranks)),
        "all_gather: the part of place {} lies in what is gathered, and not in its place", place);
  return step;
}

ExchangeStep exchange_of(const Topology& topology, const TensorView& in, const TensorView& out) {
  auto fits = [&](const TensorView& view) { return view.count() == 0 || view.rows() == topology.ranks; };
  if (in.dtype != out.dtype || in.cols() != out.cols() || !fits(in) || !fits(out))
    internal_error("exchange of {} {} among {} ranks into {} {}", name(in.dtype), to_string(in.shape), topology.ranks,
                   name(out.dtype), to_string(out.shape));
  check(apart(in.data, extent(in), out.data, extent(out)), "exchange: input and output overlap");
  return {Ranks::Everyone, in.data, stride_bytes(in), out.data, stride_bytes(out), row_bytes(in)};
}

Comm::Comm(Topology topology) : topology_(topology), gathered_(static_cast<size_t>(topology.ranks)) {
  check(topology.ranks > 0 && topology.rank >= 0 && topology.rank < topology.ranks, "rank {} of {}", topology.rank,
        topology.ranks);
  set_replicas(topology.replicas);
}

void Comm::set_replicas(int replicas) {
  check(replicas > 0 && topology_.ranks % replicas == 0, "{} replicas of {} ranks", replicas, topology_.ranks);
  topology_.replicas = replicas;
}

void Comm::rethrow(const PeerError& error, std::string_view where) {
  const PeerError explained(error.rank, fmt::format("{}; rank {} waited {}", error.why, topology_.rank, where));
  elaborate(explained);
  throw PeerError(explained);
}

void Comm::all_gather(Lane lane, Ranks who, const TensorView& part, const TensorView& full) {
  step(index(lane), gather_of(topology_, who, part, full));
}

void Comm::exchange(Lane lane, const TensorView& in, const TensorView& out) {
  step(index(lane), exchange_of(topology_, in, out));
}

template <class Where>
std::span<const uint64_t> Comm::exchange_words(std::span<const uint64_t> values, const Where& where) {
  gathered_.resize(static_cast<size_t>(topology_.ranks) * values.size());
  try {
    step(kLanes, {Ranks::Everyone, reinterpret_cast<const std::byte*>(values.data()), 0,
                  reinterpret_cast<std::byte*>(gathered_.data()), values.size_bytes(), values.size_bytes()});
  } catch (const PeerError& error) {
    if (const std::string place = where(); !place.empty()) rethrow(error, place);
    throw;
  }
  return gathered_;
}

std::span<const uint64_t> Comm::allgather_host(uint64_t value, const SyncPoint& at) {
  return allgather_host(std::span(&value, 1), at);
}

std::span<const uint64_t> Comm::allgather_host(std::span<const uint64_t> values, const SyncPoint& at) {
  return exchange_words(values, [&at] {
    if (at.number) return fmt::format("at {} {}", at.place, *at.number);
    return at.place.empty() ? std::string() : fmt::format("at {}", at.place);
  });
}

void Comm::agree(std::string_view what, uint64_t value) {
  exchange_words(std::span(&value, 1), [what] { return fmt::format("at the comparison of {}", what); });
  std::string others;
  for (size_t rank = 1; rank < gathered_.size(); rank++)
    if (gathered_[rank] != gathered_[0]) others += fmt::format(", rank {} has {:016x}", rank, gathered_[rank]);
  if (!others.empty())
    user_error(
        "ranks do not agree on {}: rank 0 has {:016x}{}; expected the same command, job, model, data and build of snug "
        "on all of them",
        what, gathered_[0], others);
}

void Comm::barrier(const SyncPoint& at) { allgather_host(0, at); }

std::vector<uint64_t> from_rank_0(Comm* comm, const std::function<std::vector<uint64_t>(const Heartbeat&)>& wait) {
  if (!comm) return wait({});
  constexpr uint64_t kWaiting = UINT64_MAX;  // in place of the number of values
  constexpr size_t kPiece = 1024;            // words at a time, as memory for those of all ranks is needed
  const SyncPoint at = "rank 0's input";
  const bool waits = comm->topology().rank == 0;
  std::vector<uint64_t> words;
  if (waits) words = wait([&] { comm->allgather_host(kWaiting, at); });
  uint64_t count = kWaiting;
  while (count == kWaiting) count = comm->allgather_host(words.size(), at)[0];
  words.resize(count);
  for (size_t begin = 0; begin < count; begin += kPiece) {
    const std::span<uint64_t> piece = std::span(words).subspan(begin, std::min(kPiece, count - begin));
    std::ranges::copy(comm->allgather_host(piece, at).first(piece.size()), piece.begin());
  }
  return words;
}

Heartbeat heartbeat_of(Comm* comm) {
  if (!comm) return {};
  return [comm] {
    comm->heartbeat();
    if (const std::optional<PeerError> failure = comm->failure()) throw PeerError(*failure);
  };
}

}  // namespace snug
