#include "plan/settler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>
#include <utility>

namespace snug {
namespace {

// Where turning everything on leaves this share of what is allowed missing, nothing fits.
constexpr double kHopeless = 0.25;

}  // namespace

Point undialled(Point p) {
  std::ranges::fill(p.at, 0);
  return p;
}

std::vector<size_t> turned_of(const Point& p) {
  std::vector<size_t> turned;
  for (size_t d = 0; d < p.at.size(); d++)
    if (p.at[d] > 0) turned.push_back(d);
  return turned;
}

std::vector<size_t> without(std::vector<size_t> dials, size_t d) {
  std::erase(dials, d);
  return dials;
}

Found Settler::judged(const Point& p, bool fits) {
  const Probe& at = prober_.probe(p);
  if (fits && at.seconds < fastest_) {
    fastest_ = at.seconds;
    fastest_words_ = prober_.words(p);
  }
  const PerSpace<uint64_t> bytes = relief_.footprint(p).arena_bytes;
  const Found found{p, at.seconds, std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}), fits,
                    fits ? 0 : relief_.excess(p, Place::Node)};
  if (fits) fitting_.push_back(found);
  return found;
}

std::optional<Found> Settler::least(const Point& undialled, double limit) {
  if (prober_.probe(undialled).seconds > limit) return std::nullopt;
  if (!relief_.kept(undialled, Place::Node) && relief_.is_hopeless(undialled, kHopeless))
    return judged(relief_.all_on(undialled), false);
  std::optional<Found> best;
  if (relief_.device_is_apart()) {
    Point p = undialled;
    std::vector<size_t> turned;
    const bool relieved = relief_.relieve(p, Place::Device, relief_.helping(p, Place::Device), turned, kNoLimit);
    const bool sufficed = relieved && relief_.kept(p, Place::Node);
    if (relieved && !sufficed) {
      const Found held = settled(undialled, relief_.helping(p, Place::Device), {}, kNoLimit, Elsewhere::Kept);
      if (held.fits) return held;
    }
    best = settled(p, relief_.helping(p, Place::Node), turned);
    if (sufficed || (best->fits && prober_.probe(undialled).seconds >= kBetter * best->seconds)) return best;
  }
  const Found other = settled(undialled, relief_.helping(undialled, Place::Node), {});
  if (!best || !best->fits || (other.fits && other.seconds < best->seconds)) best = other;
  if (best->fits) return best;
  const Found computed = settled(undialled, relief_.computing(undialled), {});
  if (computed.fits) return computed;
  if (std::isfinite(fastest_) || !relief_.device_is_apart()) return best;
  const std::optional<Found> last = by_the_host(undialled);
  return last ? last : best;
}

// Where the host's help as far as it goes is not enough: without one of the dials that took of it, or with one of
// them alone, as it may be of more use to some than to those that cost the least.
std::optional<Found> Settler::by_the_host(const Point& undialled) {
  const std::vector<size_t> computing = relief_.computing(undialled),
                            helping = relief_.helping(undialled, Place::Device);
  const auto kept = [&](const Point& p, const std::vector<size_t>& left) {
    return settled(p, left, turned_of(p), kNoLimit, Elsewhere::Kept);
  };
  const Found all = kept(undialled, helping);
  for (const size_t d : turned_of(all.point)) {
    Point less = all.point;
    less.at[d] = 0;
    if (const Found found = kept(less, without(helping, d)); found.fits) return found;
  }
  for (const size_t d : helping) {
    if (std::ranges::count(computing, d) > 0) continue;
    std::vector<size_t> left = computing;
    left.push_back(d);
    if (const Found found = kept(undialled, left); found.fits) return found;
  }
  return std::nullopt;
}

Found Settler::settled(Point p, std::vector<size_t> left, std::vector<size_t> turned, double limit,
                       Elsewhere elsewhere) {
  if (elsewhere == Elsewhere::Kept && relief_.device_is_apart() &&
      !relief_.relieve(p, Place::Device, left, turned, limit, elsewhere))
    return judged(p, false);
  if (!relief_.relieve(p, Place::Node, std::move(left), turned, limit)) return judged(p, false);
  for (auto d = turned.rbegin(); d != turned.rend() && !relief_.rough() && !relief_.spent(); ++d)
    relief_.turn_back(p, *d);
  return judged(p, true);
}

std::optional<Found> Settler::adjusted(Point p) {
  std::vector<size_t> turned = turned_of(p);
  if (!relief_.relieve(p, Place::Node, relief_.helping(p), turned, kNoLimit)) return std::nullopt;
  for (const size_t d : turned | std::views::reverse) relief_.turn_back(p, d);
  return judged(p, true);
}

void Settler::work_out(Found& found) {
  const Found least = *this->least(undialled(found.point), kNoLimit);
  if (!relief_.kept(found.point, Place::Node) || (least.fits && least.seconds < found.seconds)) found = least;
}

}  // namespace snug
