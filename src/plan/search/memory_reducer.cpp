#include "plan/search/memory_reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace snug {
namespace {

// After this many ops compiled a search takes what fits.
constexpr uint64_t kMostOps = 2'500'000;

// An option may cost this share of a step's time by being enabled further than needed.
constexpr double kNegligible = 0.001;

// This many positions are tried to find the farthest that keeps other memories within their caps.
constexpr int kMostEvaluations = 4;

// Returns whether two options move or free bytes of one kind.
bool akin(const MemoryOption& a, const MemoryOption& b) {
  const auto values = [](const MemoryOption& option) {
    return option.kind == MemoryOption::Kind::Recompute || option.kind == MemoryOption::Kind::Activations;
  };
  const auto weights = [](const MemoryOption& option) {
    return option.kind == MemoryOption::Kind::Shard || option.kind == MemoryOption::Kind::Weights;
  };
  return a.kind == b.kind || (values(a) && values(b)) || (weights(a) && weights(b));
}

}  // namespace

void MemoryReducer::set_caps(const Caps& caps) {
  caps_ = caps;
  began_at_ = evaluator_.ops();
}
bool MemoryReducer::spent(uint64_t times) const { return evaluator_.ops() - began_at_ > times * kMostOps; }
void MemoryReducer::allow_at_least(uint64_t ops) {
  if (evaluator_.ops() + ops > began_at_ + kMostOps) allow(ops);
}
void MemoryReducer::allow(uint64_t ops) { began_at_ = evaluator_.ops() + ops - kMostOps; }  // at least to spent()

Complexity MemoryReducer::complexity_of(const Point& p) {
  return complexity(p.cut, evaluator_.strategy(p), evaluator_.evaluate(p), caps_);
}

bool MemoryReducer::fit_all(const Footprint& rank) const { return fits(rank, ranks_, caps_); }

Footprint MemoryReducer::footprint(const Point& p) {
  const Evaluation& step = evaluator_.evaluate(p);
  Footprint all = step;
  all.ops += other_programs_.ops;
  for (size_t space = 0; space < all.arena_bytes.size(); space++)
    if (other_programs_.arena_bytes[space] > 0)
      all.arena_bytes[space] =
          std::max(all.arena_bytes[space], step.persistent[space] + other_programs_.arena_bytes[space]);
  return fit_all(step) && !fit_all(all) ? evaluator_.whole(p) : all;
}

void MemoryReducer::note_other_programs(const Compiled& whole, const Evaluation& step) {
  other_programs_.ops = std::max(other_programs_.ops, whole.set.op_count() - step.ops);
  for (size_t space = 0; space < other_programs_.arena_bytes.size(); space++)
    other_programs_.arena_bytes[space] =
        std::max(other_programs_.arena_bytes[space], whole.plan.reserved_bytes[space] - step.persistent[space]);
}

// Returns the need of the scope that is beyond its cap by the most bytes, or nearest to it.
Need MemoryReducer::tightest(const Point& p, MemoryScope scope) {
  const Footprint rank = footprint(p);
  if (scope == MemoryScope::Device)
    return {"the device of a rank", caps_.taken(rank, Space::Device), caps_.device_bytes};
  return tightest_need(rank, ranks_, caps_);
}
double MemoryReducer::excess(const Point& p, MemoryScope scope) { return tightest(p, scope).excess(); }

// Returns the options that help. Offloading to the disk takes nothing lasting of the host; where the host is short,
// only the disk helps.
std::vector<size_t> MemoryReducer::helping(const Point& p, MemoryScope scope) const {
  std::vector<size_t> found;
  for (size_t d = 0; d < options(p).size(); d++) {
    const MemoryOption& option = options(p)[d];
    const bool compute = option.kind == MemoryOption::Kind::Recompute || option.kind == MemoryOption::Kind::Shard;
    if (compute || option.frees_host == (scope == MemoryScope::Node)) found.push_back(d);
  }
  return found;
}

std::vector<size_t> MemoryReducer::computing(const Point& p) const {
  std::vector<size_t> found = helping(p, MemoryScope::Node);
  std::erase_if(found, [&](size_t d) { return options(p)[d].frees_host; });
  return found;
}

std::vector<size_t> MemoryReducer::helping(const Point& p) const {
  if (!device_is_apart()) return helping(p, MemoryScope::Node);
  std::vector<size_t> all(p.positions.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

Point MemoryReducer::all_on(Point p) const {
  for (const size_t d : helping(p)) p.positions[d] = options(p)[d].most;
  return p;
}

bool MemoryReducer::is_hopeless(const Point& baseline, double share) {
  Point computed = baseline;
  for (const size_t d : computing(computed)) computed.positions[d] = options(computed)[d].most;
  Footprint least = footprint(all_on(baseline));
  for (const Footprint& other : {footprint(computed), footprint(baseline)}) {
    least.ops = std::min(least.ops, other.ops);
    for (size_t space = 0; space < least.arena_bytes.size(); space++)
      least.arena_bytes[space] = std::min(least.arena_bytes[space], other.arena_bytes[space]);
  }
  least.arena_bytes[index(Space::Disk)] = 0;
  return std::ranges::any_of(needs(least, ranks_, caps_), [&](const Need& need) {
    return need.excess() > share * static_cast<double>(need.allowed);
  });
}

bool MemoryReducer::reduce(Point& p, MemoryScope scope, std::vector<size_t> left, std::vector<size_t>& enabled,
                           double limit, SideEffects side_effects) {
  std::erase_if(left, [&](size_t d) { return p.positions[d] == options(p)[d].most; });
  std::vector<size_t> useless;  // with the other options where they are
  while (!kept(p, scope)) {
    if (evaluator_.evaluate(p).seconds >= limit) return false;
    if (spent(2)) {
      p = all_on(p);
      return kept(p, scope);
    }
    evaluate_costs(p, left, scope);
    std::optional<OptionCost> best;
    size_t chosen = 0;
    for (const size_t d : left) {
      if (std::ranges::count(useless, d) > 0) continue;
      const std::optional<OptionCost> cost = cost_of(p, d, scope);
      if (cost && (!best || cost->price < best->price)) {
        best = cost;
        chosen = d;
      }
    }
    if (!best) return false;
    Point q = p;
    q.positions[chosen] = std::max(p.positions[chosen], best->position);
    if (excess(q, scope) >= excess(p, scope)) {  // it was measured in another cut or with other options on
      best = measured_cost(p, chosen, scope);
      if (!best) {
        useless.push_back(chosen);
        continue;
      }
      q.positions[chosen] = best->position;
    }
    std::erase(left, chosen);
    if (side_effects == SideEffects::Forbid) {
      q.positions[chosen] = most_that_keeps(p, chosen, q.positions[chosen]);
      if (excess(q, scope) >= excess(p, scope)) continue;
    }
    useless.clear();
    enabled.push_back(chosen);
    const int64_t before = std::exchange(p.positions[chosen], q.positions[chosen]);
    if (kept(p, scope)) set_to_least(p, chosen, before, scope);
  }
  return true;
}

// Returns the cost of an option. Costs are measured once for all cuts and caps: in every cut the product of passes
// and of tokens in each is equal, so that with more passes recomputing frees fewer bytes, and weights are transferred
// more often, in proportion. Only states are fetched once a step. The value of an option depends on which options of
// its kind are enabled, and on where bytes are short; that it has no value depends on all options.
std::optional<MemoryReducer::OptionCost> MemoryReducer::cost_of(const Point& p, size_t d, MemoryScope scope) {
  const auto [kind, all] = cost_keys(p, d, scope);
  if (worthless_.contains(all)) return std::nullopt;
  auto known = costs_.find(kind);
  if (known == costs_.end()) {
    const std::optional<OptionCost> measured = measured_cost(p, d, scope);
    if (!measured) return worthless_.insert(all), std::nullopt;
    known = costs_.emplace(kind, *measured).first;
  }
  OptionCost cost = known->second;
  if (options(p)[d].kind == MemoryOption::Kind::States) cost.price /= static_cast<double>(p.cut.passes);
  return cost;
}

// Returns the key of a cost, and the key under which an option is known to be worth nothing.
std::pair<std::string, std::string> MemoryReducer::cost_keys(const Point& p, size_t d, MemoryScope scope) {
  const Evaluation& before = evaluator_.evaluate(p);
  std::string kind = fmt::format("{} {} {} {} {} {} {} {}:", p.stage, p.layer_major, p.deferred, int(p.reach),
                                 int(scope), before.update_fullest, tightest(p, scope).what, d);
  std::string all = kind;
  for (size_t other = 0; other < p.positions.size(); other++) {
    if (p.positions[other] == 0) continue;
    all += fmt::format(" {}", other);
    if (akin(options(p)[other], options(p)[d])) kind += fmt::format(" {}", other);
  }
  return {kind, all};
}

// Compiles in parallel the points with which measuring the costs of these options begins.
void MemoryReducer::evaluate_costs(const Point& p, const std::vector<size_t>& left, MemoryScope scope) {
  std::vector<Point> points;
  for (const size_t d : left) {
    const auto [kind, all] = cost_keys(p, d, scope);
    if (worthless_.contains(all) || costs_.contains(kind)) continue;
    points.push_back(p);
    points.back().positions[d] = options(p)[d].most;
  }
  evaluator_.evaluate_all(points);
}

// Measures an option by enabling it wholly. If that frees nothing, it is enabled halfway, as staging for the rest may
// need more in other memory than it frees; or, if it recomputes, for all layers but the last, whose backward comes at
// once, as recomputing that one may need more than it frees. Prices are as if the step had one pass.
std::optional<MemoryReducer::OptionCost> MemoryReducer::measured_cost(Point p, size_t d, MemoryScope scope) {
  const MemoryOption& option = options(p)[d];
  const double seconds = evaluator_.evaluate(p).seconds, over = excess(p, scope);
  const int64_t at = p.positions[d];
  const int64_t part = option.kind == MemoryOption::Kind::Recompute ? option.most - 1 : std::midpoint(at, option.most);
  for (const int64_t position : {option.most, part}) {
    p.positions[d] = std::max(at, position);
    const double freed = over - excess(p, scope);
    if (freed <= 0) continue;
    const double price = (evaluator_.evaluate(p).seconds - seconds) / freed;
    return OptionCost{option.kind == MemoryOption::Kind::States ? price * static_cast<double>(p.cut.passes) : price,
                      p.positions[d]};
  }
  return std::nullopt;
}

// Sets the option to the least position that is enough; its current position is, and `too_few` is not. Bytes fall
// nearly linearly from position to position, so the line between the ends gives the next guess. A rough search takes
// what it finds at once, any other what takes hardly longer than the least could.
void MemoryReducer::set_to_least(Point& p, size_t d, int64_t too_few, MemoryScope scope, bool exact) {
  auto at = [&](int64_t position) {
    Point q = p;
    q.positions[d] = position;
    return excess(q, scope);
  };
  int64_t enough = p.positions[d];
  auto matters = [&] {
    Point q = p;
    q.positions[d] = too_few;
    const double best = evaluator_.evaluate(q).seconds;
    q.positions[d] = enough;
    return evaluator_.evaluate(q).seconds > (1 + kNegligible) * best;
  };
  for (int evaluations = 0; enough - too_few > 1 && (exact || (rough_ ? evaluations == 0 : matters())); evaluations++) {
    const double over = at(too_few), under = at(enough);
    const double share = evaluations % 3 == 2 ? 0.5 : over / (over - under);
    const int64_t guess = too_few + std::llround(std::ceil(share * static_cast<double>(enough - too_few)));
    const int64_t position = std::clamp(guess, too_few + 1, enough - 1);
    (at(position) <= 0 ? enough : too_few) = position;
  }
  p.positions[d] = enough;
}

// Returns about the farthest position, up to this one, that makes nothing short which is not short now. Bytes rise
// nearly linearly.
int64_t MemoryReducer::most_that_keeps(Point p, size_t d, int64_t position) {
  int64_t kept = p.positions[d];
  const std::vector<Need> now = needs(footprint(p), ranks_, caps_);
  const auto beyond = [&](int64_t at) {
    p.positions[d] = at;
    double most = std::numeric_limits<double>::lowest();
    for (const Need& need : needs(footprint(p), ranks_, caps_)) {
      const auto before = std::ranges::find(now, need.what, &Need::what);
      if (before == now.end() || before->excess() <= 0) most = std::max(most, need.excess());
    }
    return most;
  };
  double under = beyond(kept), over = beyond(position);
  if (over <= 0) return position;
  for (int evaluations = 0; position - kept > 1 && evaluations < kMostEvaluations; evaluations++) {
    const int64_t guess = kept + static_cast<int64_t>(under / (under - over) * static_cast<double>(position - kept));
    const int64_t at = std::clamp(guess, kept + 1, position - 1);
    const double there = beyond(at);
    (there <= 0 ? kept : position) = at;
    (there <= 0 ? under : over) = there;
  }
  return kept;
}

bool MemoryReducer::extend(Point& p, size_t d) {
  const int64_t most = options(p)[d].most;
  for (int64_t by = 1; p.positions[d] < most; by *= 2) {
    const int64_t before = std::exchange(p.positions[d], std::min(p.positions[d] + by, most));
    if (!kept(p, MemoryScope::Node)) continue;
    set_to_least(p, d, before, MemoryScope::Node);
    return true;
  }
  return false;
}

void MemoryReducer::retract(Point& p, size_t d, bool exact) {
  auto suffices = [&](int64_t position) {
    Point q = p;
    q.positions[d] = position;
    return kept(q, MemoryScope::Node);
  };
  if (p.positions[d] == 0 || !suffices(p.positions[d] - 1)) return;
  p.positions[d]--;
  if (p.positions[d] > 0 && suffices(0))
    p.positions[d] = 0;
  else if (p.positions[d] > 0)
    set_to_least(p, d, 0, MemoryScope::Node, exact);
}

}  // namespace snug
