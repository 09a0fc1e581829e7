#include "plan/search/simplifier.h"

#include <algorithm>
#include <ranges>
#include <set>
#include <string>
#include <utility>

namespace snug {
namespace {

// The search for simpler candidates may compile this share of the ops compiled before, and at least this number.
constexpr uint64_t kShare = 20, kLeastOps = 40'000;

// The search under these caps may exceed that by this many ops.
constexpr uint64_t kReserve = 100'000;

}  // namespace

Simplifier::Simplifier(Evaluator& evaluator, MemoryReducer& reducer, Solver& solver, const Choices& choices,
                       double margin, double equal_time)
    : evaluator_(evaluator),
      reducer_(reducer),
      solver_(solver),
      choices_(choices),
      margin_(margin),
      equal_time_(equal_time) {}

// Returns candidates by time, from the fastest that fits to the last within the margin, without repetition.
std::vector<Candidate> Simplifier::candidates() {
  std::vector<Candidate> all = solver_.fitting();
  std::ranges::stable_sort(all, {}, &Candidate::seconds);
  std::vector<Candidate> within;
  std::set<std::string> seen;
  for (Candidate& found : all) {
    if (!within.empty() && found.seconds > margin_ * within.front().seconds) break;
    if (seen.insert(evaluator_.words(found.point)).second && reducer_.kept(found.point, MemoryScope::Node))
      within.push_back(std::move(found));
  }
  return within;
}

std::optional<Candidate> Simplifier::simplest() {
  const std::vector<Candidate> within = candidates();
  if (within.empty()) return std::nullopt;
  std::vector<Complexity> complexities;
  for (const Candidate& found : within) complexities.push_back(reducer_.complexity_of(found.point));
  const Complexity least = *std::ranges::min_element(complexities);
  std::optional<Candidate> best;
  double limit = kNoLimit;
  for (size_t i = 0; i < within.size(); i++) {
    if (complexities[i] != least || within[i].seconds > limit) continue;
    if (!best) limit = equal_time_ * within[i].seconds;
    if (!best || within[i].bytes < best->bytes) best = within[i];
  }
  return best;
}

void Simplifier::search() {
  std::optional<Candidate> simplest = this->simplest();
  if (!simplest || reducer_.complexity_of(simplest->point).parts == 0) return;
  const uint64_t budget = std::max(kLeastOps, evaluator_.ops() / kShare);
  stop_at_ = evaluator_.ops() + budget;
  reducer_.allow(budget + kReserve);
  reducer_.set_rough(true);
  limit_ = margin_ * candidates().front().seconds;
  search_without_offloading();
  simplest = this->simplest();
  const Candidate fastest = candidates().front();
  disable_options(*simplest);
  if (reducer_.complexity_of(fastest.point) != reducer_.complexity_of(simplest->point)) disable_options(fastest);
  // Options that are left are taken back as far as possible, those that move bytes first.
  Point least = this->simplest()->point;
  for (const size_t d : enabled_of(least) | std::views::reverse)
    if (!out_of_effort()) reducer_.retract(least, d, true);
  if (reducer_.kept(least, MemoryScope::Node)) solver_.judge(least, true);
  reducer_.set_rough(false);
}

void Simplifier::search_without_offloading() {
  std::set<int> stages;  // that the search has tried
  for (const Candidate& found : solver_.fitting()) stages.insert(found.point.stage);
  for (const int stage : stages)
    for (const Cut& cut : evaluator_.cuts()) {
      if (out_of_effort()) return;
      const Point p = evaluator_.baseline_point(cut, stage);
      if (evaluator_.evaluate(p).seconds <= limit_) consider(p, reducer_.computing(p));
    }
}

std::optional<Candidate> Simplifier::consider(const Point& p, const std::vector<size_t>& left) {
  if (evaluator_.evaluate(p).seconds > limit_) return std::nullopt;
  const Candidate found = solver_.solve(p, left, enabled_of(p), limit_);
  return found.fits && found.seconds <= limit_ ? std::optional(found) : std::nullopt;
}

// Turns options off one after the other, those that move bytes first, while others that are on may be enabled further;
// then the order of the step. It goes on from whatever is simpler.
void Simplifier::disable_options(Candidate from) {
  Complexity least = reducer_.complexity_of(from.point);
  const auto simpler = [&](const Point& p, const std::vector<size_t>& left) {
    const std::optional<Candidate> found = consider(p, left);
    if (!found) return false;
    const Complexity complexity = reducer_.complexity_of(found->point);
    if (complexity >= least) return false;
    least = complexity;
    from = *found;
    return true;
  };
  for (bool better = true; std::exchange(better, false) && !out_of_effort();) {
    const std::vector<size_t> enabled = enabled_of(from.point);
    for (const size_t d : enabled | std::views::reverse) {
      if (out_of_effort()) return;
      Point less = from.point;
      less.positions[d] = 0;
      better = simpler(less, without(enabled, d));
      if (better) break;
    }
  }
  const auto plainly = [&](auto Point::*order, auto value) {
    Point p = from.point;
    if (std::exchange(p.*order, value) != value && !out_of_effort()) simpler(p, enabled_of(p));
  };
  if (!choices_.layer_major) plainly(&Point::layer_major, false);
  plainly(&Point::deferred, false);
  plainly(&Point::reach, Reach::Near);
}

}  // namespace snug
