#include <algorithm>
#include <ranges>

#include "backend/arena.h"
#include "measure/measure.h"

namespace snug {
namespace {

constexpr int kWarm = 2, kTimed = 10;
constexpr std::array<int64_t, 3> kSizes{16 << 20, 64 << 20, 256 << 20};
constexpr int64_t kSmallest = 256;

class LinkTimer {
 public:
  LinkTimer(Backend& backend, const Topology& here) : backend_(backend), here_(here) {
    const uint64_t bytes = 2 * static_cast<uint64_t>(here.ranks * kSizes.back());
    set_.buffers.push_back({"rows", bytes});
    plan_.offset = {0};
    plan_.reserved_bytes[index(Space::Device)] = bytes;
    arena_.emplace(backend, plan_, ".");
  }

  // Returns the seconds of a call with rows of `bytes` bytes, timed `times` times after some calls that are not timed.
  double seconds(const Attrs& attrs, Lane lane, int64_t bytes, int times) {
    const bool gathers = std::holds_alternative<AllGather>(attrs);
    const int64_t all = here_.ranks * bytes;
    const auto start = static_cast<uint64_t>(gathers ? here_.rank * bytes : here_.ranks * kSizes.back());
    const Shape part = gathers ? Shape{bytes} : Shape{here_.ranks, bytes},
                whole = gathers ? Shape{all} : Shape{here_.ranks, bytes};
    Op op;
    op.attrs = attrs;
    op.lane = lane;
    op.site = "link";
    op.operands = {{0, Access::Read, DType::U8, part, start, part.cols()},
                   {0, Access::Write, DType::U8, whole, 0, whole.cols()}};
    const std::array views{arena_->view(op.operands[0], plan_, set_), arena_->view(op.operands[1], plan_, set_)};
    const Launch launch = backend_.bind(op, views);
    double begin = 0;
    for (int i = 0; i < kWarm + times; i++) {
      if (i == kWarm) {
        backend_.streams()->finish();
        begin = wall_seconds();
      }
      launch({});
    }
    backend_.streams()->finish();
    return (wall_seconds() - begin) / times;
  }

  uint64_t arena_bytes() const { return arena_->bytes(Space::Device); }

 private:
  Backend& backend_;
  Topology here_;
  ProgramSet set_;
  MemoryPlan plan_;
  std::optional<Arena> arena_;
};

}  // namespace

LinkRates measure_link(Backend& backend, const Topology& topology) {
  LinkTimer timer(backend, topology);
  LinkRates measured{{}, timer.arena_bytes()};
  for (const int64_t bytes : kSizes) {
    const auto from_others = static_cast<double>((topology.ranks - 1) * bytes);
    measured.rates.sizes.push_back(static_cast<double>(bytes));
    measured.rates.rates.push_back(from_others /
                                   timer.seconds(AllGather{Ranks::Everyone}, Lane::Gather, bytes, kTimed));
  }
  // Connections take their memory at first use, separately for each lane, each kind of call and each size of message.
  for (const Lane lane : {Lane::Gather, Lane::Reduce})
    for (const Attrs& attrs : {Attrs(AllGather{Ranks::Everyone}), Attrs(Exchange{})})
      for (int64_t bytes = kSmallest; bytes <= kSizes.back(); bytes *= 4) timer.seconds(attrs, lane, bytes, 1);
  return measured;
}

const CardLink& worthwhile(const std::vector<CardLink>& by_blocks) {
  constexpr double kWorth = 0.8;
  const auto of_block = [](const CardLink& link) { return link.rate / link.blocks; };
  const double best = std::ranges::max(by_blocks | std::views::transform(of_block));
  const CardLink* most = nullptr;
  for (const CardLink& link : by_blocks)
    if (of_block(link) >= kWorth * best && (!most || link.blocks > most->blocks)) most = &link;
  return *most;
}

}  // namespace snug
