#include "plan/simplifier.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <string>
#include <utility>

namespace snug {
namespace {

// Of the ops that were compiled before, the share that looking for simpler candidates may compile, and the least that
// it may in any case.
constexpr uint64_t kShare = 20, kLeastOps = 40'000;

// Ops for which the search under these caps may go on beyond those.
constexpr uint64_t kReserve = 100'000;

}  // namespace

Simplifier::Simplifier(Prober& prober, Relief& relief, Settler& settler, const Choices& choices, double margin,
                       double equal_time)
    : prober_(prober),
      relief_(relief),
      settler_(settler),
      choices_(choices),
      margin_(margin),
      equal_time_(equal_time) {}

// Sorted by time, from the fastest that fits to the last within the margin, without repetition.
std::vector<Found> Simplifier::candidates() {
  std::vector<Found> all = settler_.fitting();
  std::ranges::stable_sort(all, {}, &Found::seconds);
  std::vector<Found> within;
  std::set<std::string> seen;
  for (Found& found : all) {
    if (!within.empty() && found.seconds > margin_ * within.front().seconds) break;
    if (seen.insert(prober_.words(found.point)).second && relief_.kept(found.point, Place::Node))
      within.push_back(std::move(found));
  }
  return within;
}

std::optional<Found> Simplifier::simplest() {
  const std::vector<Found> within = candidates();
  if (within.empty()) return std::nullopt;
  std::vector<Complexity> complexities;
  for (const Found& found : within) complexities.push_back(relief_.complexity_of(found.point));
  const Complexity least = *std::ranges::min_element(complexities);
  std::optional<Found> best;
  double limit = kNoLimit;
  for (size_t i = 0; i < within.size(); i++) {
    if (complexities[i] != least || within[i].seconds > limit) continue;
    if (!best) limit = equal_time_ * within[i].seconds;
    if (!best || within[i].bytes < best->bytes) best = within[i];
  }
  return best;
}

void Simplifier::look() {
  std::optional<Found> simplest = this->simplest();
  if (!simplest || relief_.complexity_of(simplest->point).parts == 0) return;
  const uint64_t budget = std::max(kLeastOps, prober_.ops() / kShare);
  stop_at_ = prober_.ops() + budget;
  relief_.allow(budget + kReserve);
  relief_.set_rough(true);
  limit_ = margin_ * candidates().front().seconds;
  look_without_offloading();
  simplest = this->simplest();
  const Found fastest = candidates().front();
  turn_off(*simplest);
  if (relief_.complexity_of(fastest.point) != relief_.complexity_of(simplest->point)) turn_off(fastest);
  // What is left is turned back as far as goes, what moves first.
  Point least = this->simplest()->point;
  for (const size_t d : turned_of(least) | std::views::reverse)
    if (!tired()) relief_.turn_back(least, d, true);
  if (relief_.kept(least, Place::Node)) settler_.judged(least, true);
  relief_.set_rough(false);
}

void Simplifier::look_without_offloading() {
  std::set<int> stages;  // those that the search has gone into
  for (const Found& found : settler_.fitting()) stages.insert(found.point.stage);
  for (const int stage : stages)
    for (const Cut& cut : prober_.cuts()) {
      if (tired()) return;
      const Point p = prober_.undialled_point(cut, stage);
      if (prober_.probe(p).seconds <= limit_) consider(p, relief_.computing(p));
    }
}

std::optional<Found> Simplifier::consider(const Point& p, const std::vector<size_t>& left) {
  if (prober_.probe(p).seconds > limit_) return std::nullopt;
  const Found found = settler_.settled(p, left, turned_of(p), limit_);
  return found.fits && found.seconds <= limit_ ? std::optional(found) : std::nullopt;
}

// One thing after the other, those that move bytes first, while others that are on may be turned further; then the
// order of the step. What is simpler is gone on from.
void Simplifier::turn_off(Found from) {
  Complexity least = relief_.complexity_of(from.point);
  const auto simpler = [&](const Point& p, const std::vector<size_t>& left) {
    const std::optional<Found> found = consider(p, left);
    if (!found) return false;
    const Complexity complexity = relief_.complexity_of(found->point);
    if (complexity >= least) return false;
    least = complexity;
    from = *found;
    return true;
  };
  for (bool better = true; std::exchange(better, false) && !tired();) {
    const std::vector<size_t> turned = turned_of(from.point);
    for (const size_t d : turned | std::views::reverse) {
      if (tired()) return;
      Point less = from.point;
      less.at[d] = 0;
      better = simpler(less, without(turned, d));
      if (better) break;
    }
  }
  const auto plainly = [&](auto Point::*order, auto value) {
    Point p = from.point;
    if (std::exchange(p.*order, value) != value && !tired()) simpler(p, turned_of(p));
  };
  if (!choices_.layer_major) plainly(&Point::layer_major, false);
  plainly(&Point::deferred, false);
  plainly(&Point::reach, Reach::Near);
}

}  // namespace snug
