#include "plan/search/solver.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>
#include <utility>

namespace snug {
namespace {

// Where this share of what is allowed is missing with everything enabled, nothing fits.
constexpr double kHopeless = 0.25;

}  // namespace

Point baseline(Point p) {
  std::ranges::fill(p.positions, 0);
  return p;
}

std::vector<size_t> enabled_of(const Point& p) {
  std::vector<size_t> enabled;
  for (size_t d = 0; d < p.positions.size(); d++)
    if (p.positions[d] > 0) enabled.push_back(d);
  return enabled;
}

std::vector<size_t> without(std::vector<size_t> options, size_t d) {
  std::erase(options, d);
  return options;
}

Candidate Solver::judge(const Point& p, bool fits) {
  const Evaluation& at = evaluator_.evaluate(p);
  if (fits && at.seconds < fastest_) {
    fastest_ = at.seconds;
    fastest_words_ = evaluator_.words(p);
  }
  const PerSpace<uint64_t> bytes = reducer_.footprint(p).arena_bytes;
  const Candidate found{p, at.seconds, std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}), fits,
                        fits ? 0 : reducer_.excess(p, MemoryScope::Node)};
  if (fits) fitting_.push_back(found);
  return found;
}

std::optional<Candidate> Solver::least(const Point& baseline, double limit) {
  if (evaluator_.evaluate(baseline).seconds > limit) return std::nullopt;
  if (!reducer_.kept(baseline, MemoryScope::Node) && reducer_.is_hopeless(baseline, kHopeless))
    return judge(reducer_.all_on(baseline), false);
  std::optional<Candidate> best;
  if (reducer_.device_is_apart()) {
    Point p = baseline;
    std::vector<size_t> enabled;
    const bool relieved =
        reducer_.reduce(p, MemoryScope::Device, reducer_.helping(p, MemoryScope::Device), enabled, kNoLimit);
    const bool sufficed = relieved && reducer_.kept(p, MemoryScope::Node);
    if (relieved && !sufficed) {
      const Candidate spared =
          solve(baseline, reducer_.helping(p, MemoryScope::Device), {}, kNoLimit, SideEffects::Forbid);
      if (spared.fits) return spared;
    }
    best = solve(p, reducer_.helping(p, MemoryScope::Node), enabled);
    if (sufficed || (best->fits && evaluator_.evaluate(baseline).seconds >= kBetter * best->seconds)) return best;
  }
  const Candidate other = solve(baseline, reducer_.helping(baseline, MemoryScope::Node), {});
  if (!best || !best->fits || (other.fits && other.seconds < best->seconds)) best = other;
  if (best->fits) return best;
  const Candidate computed = solve(baseline, reducer_.computing(baseline), {});
  if (computed.fits) return computed;
  if (std::isfinite(fastest_) || !reducer_.device_is_apart()) return best;
  const std::optional<Candidate> last = by_the_host(baseline);
  return last ? last : best;
}

// Searches where the host's memory as a whole is not enough: without one of the options that used it, or with one of
// them alone, as the host's memory may serve one option better than those that cost the least.
std::optional<Candidate> Solver::by_the_host(const Point& baseline) {
  const std::vector<size_t> computing = reducer_.computing(baseline),
                            helping = reducer_.helping(baseline, MemoryScope::Device);
  const auto kept = [&](const Point& p, const std::vector<size_t>& left) {
    return solve(p, left, enabled_of(p), kNoLimit, SideEffects::Forbid);
  };
  const Candidate all = kept(baseline, helping);
  for (const size_t d : enabled_of(all.point)) {
    Point less = all.point;
    less.positions[d] = 0;
    if (const Candidate found = kept(less, without(helping, d)); found.fits) return found;
  }
  for (const size_t d : helping) {
    if (std::ranges::count(computing, d) > 0) continue;
    std::vector<size_t> left = computing;
    left.push_back(d);
    if (const Candidate found = kept(baseline, left); found.fits) return found;
  }
  return std::nullopt;
}

Candidate Solver::solve(Point p, std::vector<size_t> left, std::vector<size_t> enabled, double limit,
                        SideEffects side_effects) {
  if (side_effects == SideEffects::Forbid && reducer_.device_is_apart() &&
      !reducer_.reduce(p, MemoryScope::Device, left, enabled, limit, side_effects))
    return judge(p, false);
  if (!reducer_.reduce(p, MemoryScope::Node, std::move(left), enabled, limit)) return judge(p, false);
  for (auto d = enabled.rbegin(); d != enabled.rend() && !reducer_.rough() && !reducer_.spent(); ++d)
    reducer_.retract(p, *d);
  return judge(p, true);
}

std::optional<Candidate> Solver::adjusted(Point p) {
  std::vector<size_t> enabled = enabled_of(p);
  if (!reducer_.reduce(p, MemoryScope::Node, reducer_.helping(p), enabled, kNoLimit)) return std::nullopt;
  for (const size_t d : enabled | std::views::reverse) reducer_.retract(p, d);
  return judge(p, true);
}

void Solver::replace_by_least(Candidate& found) {
  const Candidate least = *this->least(baseline(found.point), kNoLimit);
  if (!reducer_.kept(found.point, MemoryScope::Node) || (least.fits && least.seconds < found.seconds)) found = least;
}

}  // namespace snug
