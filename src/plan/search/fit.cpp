#include "plan/search/fit.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "base/rounding.h"
#include "plan/search/simplifier.h"

namespace snug {
namespace {

// Returns the factor within which times count as equal, so that fewer bytes decide. A processor's times vary by more
// than a card's.
double equal_time(const Pricing& pricing) { return pricing.machine.cards ? 1.003 : 1.02; }

// After this many larger passes that are no faster, only the largest is still tried.
constexpr int kSlowerCuts = 2;

// This many arrangements are worked out: of different cuts and stages, and one beside the fastest of them.
constexpr size_t kTried = 4;

// A candidate within this factor of the fastest may be faster once it is worked out as well.
constexpr double kClose = 1.1;

// Refining ends after this many ops and arrangements compiled.
constexpr uint64_t kRefining = 400'000;
constexpr size_t kRefinements = 60;

// The search of another order may compile this many ops, however many were compiled before.
constexpr uint64_t kOtherOrder = 1'200'000;

// An arrangement of more ops takes long to compile.
constexpr uint64_t kExpensiveOps = 15'000;

// With more layers in all passes together a program in layer-major order takes too long to compile, but where weights
// lie on the disk, which are read once for all passes of a layer then.
constexpr int64_t kMostLayers = 256, kMostLayersFromDisk = 512;
int64_t most_layers(bool from_disk) { return from_disk ? kMostLayersFromDisk : kMostLayers; }

}  // namespace

double time_margin(const Pricing& pricing) {
  if (!pricing.measured()) return equal_time(pricing);
  return pricing.machine.cards ? 1.02 : 1.05;
}

class Fitter::Search {
 public:
  Search(const JobSpec& spec, const Choices& choices, const OpFacts& facts, const Pricing& pricing,
         const Heartbeat& heartbeat)
      : choices_(spec.purpose == Purpose::Train ? choices : without_training(choices, spec.cut)),
        evaluator_(spec, choices_, facts, pricing, heartbeat),
        reducer_(evaluator_, choices.ranks),
        solver_(evaluator_, reducer_),
        equal_time_(equal_time(pricing)),
        simplifier_(evaluator_, reducer_, solver_, choices_, time_margin(pricing), equal_time_),
        is_priced_(pricing.measured()),
        layers_(spec.table.layers.size()) {}

  // Finds the arrangement. Only the first and the chosen one are compiled with loading, saving and evaluating, as these
  // take nearly as much in all others beside what stays on a rank. Where they take more, the choice is adjusted.
  FitResult fit(const Caps& caps) {
    reducer_.set_caps(caps);
    solver_.forget();
    std::vector<Candidate> all = search();
    if (is_priced_) simplifier_.search();
    if (std::ranges::none_of(all, &Candidate::fits)) search_for_host(all, caps);
    for (;;) {  // this ends, as each that does not fit has more around its steps than any before
      FitResult result = choose(all);
      if (result.chosen) reducer_.note_other_programs(result.compiled, evaluate(chosen_));
      if (!result.chosen || result.tried[*result.chosen].fits) return result;
      reducer_.allow(kRefining);  // however much was spent: with nothing left, everything would be enabled at once
      const std::optional<Candidate> adjusted = solver_.adjusted(chosen_);
      all = {adjusted ? *adjusted : solver_.judge(chosen_, true)};
      solver_.replace_by_least(all[0]);
      if (all[0].fits)
        vary(all);
      else
        all = search();
    }
  }

  std::optional<Arrangement> near(const Caps& caps) {
    reducer_.set_caps(caps);
    reducer_.set_rough(true);
    const std::vector<Cut>& cuts = evaluator_.cuts();
    const auto here = std::ranges::find(cuts, chosen_.cut.micro_batch, &Cut::micro_batch) - cuts.begin();
    const std::ptrdiff_t reach =
        evaluator_.ops() > kExpensiveOps * evaluator_.compiled() || chosen_.layer_major ? 0 : 1;
    std::optional<Candidate> best = solver_.adjusted(chosen_);
    if (const auto other = fastest_ ? solver_.adjusted(*fastest_) : std::nullopt;
        other && (!best || other->seconds < best->seconds))
      best = other;
    // An arrangement found under other caps may still fit; with more room nothing is slower than with less.
    if (near_ && reducer_.kept(*near_, MemoryScope::Node) && (!best || evaluate(*near_).seconds < best->seconds))
      best = solver_.judge(*near_, true);
    for (auto i = std::max(here - reach, std::ptrdiff_t{0}); i <= std::min(here + reach, std::ssize(cuts) - 1); i++) {
      Point p = baseline(chosen_);
      p.cut = cuts[static_cast<size_t>(i)];
      const auto found = solver_.least(p, best ? best->seconds : kNoLimit);
      if (found && found->fits && (!best || found->seconds < best->seconds)) best = found;
    }
    if (!best) return std::nullopt;
    near_ = best->point;
    return arrangement(*near_);
  }

  Arrangement smallest(const Caps& caps) {
    reducer_.set_caps(caps);
    reducer_.set_rough(true);
    const Point baseline = evaluator_.baseline_point(evaluator_.cuts()[0], evaluator_.stages().back());
    Point p = reducer_.all_on(baseline);
    if (!reducer_.kept(p, MemoryScope::Node) && !reducer_.is_hopeless(baseline, 0))
      p = solver_.least(baseline, kNoLimit)->point;
    if (!reducer_.kept(p, MemoryScope::Node)) return arrangement(p);
    const Compiled whole = evaluator_.compiled_in_full(p);
    return arrangement(p, &whole);
  }

  size_t compiled() const { return evaluator_.compiled(); }
  uint64_t ops() const { return evaluator_.ops(); }
  const std::string& fastest_words() const { return solver_.fastest_words(); }

 private:
  // Counts what was compiled so far.
  struct Effort {
    uint64_t ops = 0;
    size_t arrangements = 0;
  };
  Effort effort() const { return {evaluator_.ops(), evaluator_.compiled()}; }
  bool out_of_effort(const Effort& since) const {
    return evaluator_.ops() - since.ops > kRefining || evaluator_.compiled() - since.arrangements > kRefinements;
  }

  const Evaluation& evaluate(const Point& p) { return evaluator_.evaluate(p); }

  // Returns the position less an eighth of it, at least less one.
  static int64_t an_eighth_less(int64_t position) { return position - ceil_div(position, 8); }

  // ---- The search ---------------------------------------------------------------------------------------------------

  std::vector<Candidate> search() {
    reducer_.set_rough(true);
    solver_.forget_fastest();
    std::vector<Candidate> all;
    const auto any_fits = [&] { return std::ranges::any_of(all, &Candidate::fits); };
    const Reach first = choices_.speculate ? Reach::FarAhead : Reach::Near;
    for (const int stage : stages()) search_cuts(stage, first, all);
    for (const int stage : stages())
      if (first != Reach::Near && !any_fits()) search_cuts(stage, Reach::Near, all);
    if (!any_fits()) return all;
    try_single_options(all);
    const bool late = reducer_.spent();
    if (late) reducer_.allow(kRefining);  // however long it took to find these, they are refined for a while
    improve(all);
    vary(all);  // however much was spent: another order may gain more than all options
    if (!late) polish_fastest(all);
    return all;
  }

  // Tries options by themselves. The search enables them one by one, each by the cost of its bytes beside those enabled
  // before, so that cheap ones that are not enough are followed by expensive ones where a single expensive one would
  // have sufficed. Sharding of weights, where it is open, is tried alone and beside each of the others, as it leaves
  // them less to do.
  void try_single_options(std::vector<Candidate>& all) {
    const auto seconds = [](const Candidate& found) { return found.fits ? found.seconds : kNoLimit; };
    const Candidate best = *std::ranges::min_element(all, {}, seconds);
    if (enabled_of(best.point).empty()) return;
    Point p = baseline(best.point);
    std::vector<size_t> sharded;
    std::optional<Candidate> other;
    const auto consider = [&](const std::vector<size_t>& left) {
      const Candidate found = solver_.solve(p, left, sharded, other ? other->seconds : best.seconds);
      if (found.fits && (!other || found.seconds < other->seconds)) other = found;
    };
    const std::vector<MemoryOption>& options = evaluator_.options(p);
    if (const auto shard = std::ranges::find(options, MemoryOption::Kind::Shard, &MemoryOption::kind);
        shard != options.end()) {
      sharded = {static_cast<size_t>(shard - options.begin())};
      p.positions[sharded[0]] = shard->most;
      consider(reducer_.helping(p));
    }
    for (const size_t d : reducer_.helping(p)) {
      const bool sent = options[d].kind == MemoryOption::Kind::Activations && !options[d].frees_host;
      if (!sent && options[d].kind != MemoryOption::Kind::Recompute) continue;
      // Most of what is offloaded is copied after the pass that made it.
      p.reach = sent && best.point.reach == Reach::Near ? Reach::FarBehind : best.point.reach;
      consider({d});
    }
    if (other) all.push_back(*other);
  }

  // Finds what the job takes of the host if that cap alone is exceeded: a search that gives up has turned to the disk.
  void search_for_host(std::vector<Candidate>& all, Caps caps) {
    const uint64_t allowed = std::exchange(caps.host_bytes, Caps{}.host_bytes);
    reducer_.set_caps(caps);
    const auto found =
        solver_.least(evaluator_.baseline_point(evaluator_.cuts()[0], evaluator_.stages().back()), kNoLimit);
    caps.host_bytes = allowed;
    reducer_.set_caps(caps);
    solver_.forget_fastest();
    if (found && found->fits) all.push_back(solver_.judge(found->point, false));
  }

  // Keeps the fastest few that fit, and refines them.
  void improve(std::vector<Candidate>& all) {
    reducer_.set_rough(false);
    std::erase_if(all, [](const Candidate& found) { return !found.fits; });
    std::ranges::stable_sort(all, {}, &Candidate::seconds);
    all.resize(std::min(all.size(), kTried));
    const bool is_open = all.size() > 1 && all[1].seconds < kClose * all[0].seconds;
    Effort before = effort();
    for (size_t i = 0; i < all.size(); i++) {
      if (i == 1 && is_open) {  // the second may become the first once it is refined: it gets a budget of its own
        before = effort();
        if (reducer_.spent()) reducer_.allow(kRefining);
      }
      if (reducer_.spent() || out_of_effort(before)) break;
      solver_.replace_by_least(all[i]);
      refine(all[i], before, false);
    }
  }

  // Returns the stages to search: stage 2 without stage 0 if it is as fast, as it takes fewer bytes.
  std::vector<int> stages() {
    if (evaluator_.stages().size() == 1) return evaluator_.stages();
    const Cut& cut = evaluator_.cuts()[0];
    const double sharded = evaluate(evaluator_.baseline_point(cut, 2)).seconds,
                 whole = evaluate(evaluator_.baseline_point(cut, 0)).seconds;
    return sharded <= equal_time_ * whole ? std::vector{2} : std::vector{0, 2};
  }

  // Searches the cuts. The more blocks a pass has, the fewer gathers and the larger products a step has, and the more
  // must be enabled to make room. The largest is tried in any case, as a single pass needs no accumulators and compiles
  // soonest.
  void search_cuts(int stage, Reach reach, std::vector<Candidate>& all) {
    const std::vector<Cut>& cuts = evaluator_.cuts();
    std::vector<Point> baseline;
    for (const Cut& cut : cuts) baseline.push_back(evaluator_.baseline_point(cut, stage));
    for (Point& p : baseline) p.reach = reach;
    evaluator_.evaluate_all(baseline);
    int worse = 0;
    for (size_t i = 0; i < cuts.size(); i++) {
      const double limit = solver_.fastest() / equal_time_;
      const std::optional<Candidate> found = solver_.least(baseline[i], limit);
      if (found) all.push_back(*found);
      worse = found && found->fits && found->seconds <= limit ? 0 : worse + 1;
      if (found && !found->fits) worse = kSlowerCuts;
      if (i + 1 == cuts.size()) return;
      const bool enough = reducer_.spent() && std::isfinite(solver_.fastest());
      if (enough) reducer_.allow(0);  // a whole budget for the largest
      if (enough || worse >= kSlowerCuts) i = cuts.size() - 2;
    }
  }

  // Tries without one of the enabled options or, if `partly`, with less of one, with others enabled further: prices
  // were measured one by one, and the last option is enabled only as far as needed.
  void refine(Candidate& best, const Effort& before, bool partly) {
    if (evaluate(baseline(best.point)).seconds >= kBetter * best.seconds) return;
    SideEffects side_effects =
        SideEffects::Allow;  // until something does not fit: then take no more of the host than it has
    for (bool better = true; std::exchange(better, false);)
      for (const size_t d : partly ? dearest_first(best.point) : enabled_of(best.point)) {
        const int64_t now = best.point.positions[d];
        for (const int64_t left : {an_eighth_less(now), now / 2, int64_t{0}}) {
          if (out_of_effort(before)) return;
          if (left >= best.point.positions[d] || (left > 0 && !partly)) continue;
          const double limit = kBetter * best.seconds;
          Point less = best.point;
          less.positions[d] = left;
          const std::vector<size_t> others = without(reducer_.helping(less), d);
          Candidate found = solver_.solve(less, others, enabled_of(less), partly ? limit : kNoLimit, side_effects);
          if (partly && !found.fits && found.seconds < limit && side_effects == SideEffects::Allow) {
            side_effects = SideEffects::Forbid;
            found = solver_.solve(less, others, enabled_of(less), limit, side_effects);
          }
          if (!found.fits || found.seconds >= limit) continue;
          best = found;
          better = true;
        }
      }
  }

  // Returns the enabled options, ordered by the seconds that a step saves with a little less of each.
  std::vector<size_t> dearest_first(const Point& p) {
    const auto less = [&](size_t d) {
      Point less = p;
      less.positions[d] = an_eighth_less(p.positions[d]);
      return less;
    };
    std::vector<size_t> enabled = enabled_of(p);
    std::vector<Point> points;
    for (const size_t d : enabled) points.push_back(less(d));
    evaluator_.evaluate_all(points);
    std::ranges::stable_sort(enabled, {}, [&](size_t d) { return evaluate(less(d)).seconds; });
    return enabled;
  }

  // Polishes the fastest, and candidates that may be as fast once polished: the fastest of the other order of passes
  // and layers, and that of another cut, with the fastest's reach and in its order if there are any.
  void polish_fastest(std::vector<Candidate>& all) {
    std::erase_if(all, [](const Candidate& found) { return !found.fits; });
    std::ranges::stable_sort(all, {}, &Candidate::seconds);
    polish(all[0]);
    const Candidate best = all[0];
    const auto of_order = [&](const Candidate& found) { return found.point.layer_major == best.point.layer_major; };
    const auto other = std::ranges::find_if_not(all, of_order);
    if (other != all.end() && other->seconds < kClose * best.seconds) polish(*other);
    const auto of_cut = [&](const Candidate& found) { return found.point.cut.passes == best.point.cut.passes; };
    auto cut = std::ranges::find_if(all, [&](const Candidate& found) { return of_order(found) && !of_cut(found); });
    if (cut == all.end() && other != all.end()) cut = std::find_if_not(std::next(other), all.end(), of_cut);
    if (cut == all.end() || cut->seconds >= kClose * best.seconds) return;
    if (Point p = cut->point; std::exchange(p.reach, best.point.reach) != best.point.reach)
      if (const Candidate found = solver_.solve(p, reducer_.helping(p), enabled_of(p));
          found.fits && found.seconds < cut->seconds)
        *cut = found;
    polish(*cut);
  }

  // Works out one candidate: it may do better with the options of another order, or with less of one option and more of
  // others. A rough search decides that; then what is not needed is taken back.
  void polish(Candidate& best) {
    reducer_.set_rough(true);
    solver_.replace_by_least(best);
    refine(best, effort(), true);
    reducer_.set_rough(false);
    const std::optional<Candidate> least = solver_.adjusted(best.point);
    if (least && least->seconds <= best.seconds) best = *least;
  }

  // Tries the fastest in other orders, where transfers can overlap with computing.
  void vary(std::vector<Candidate>& all) {
    Candidate best = *std::ranges::min_element(all, {}, &Candidate::seconds);
    if (lanes_of(evaluator_.strategy(best.point), best.point.cut) == LaneMode::Inline) return;
    reducer_.set_rough(true);
    auto consider = [&](const Candidate& other) {
      if (!other.fits || other.seconds >= kBetter * best.seconds) return;
      all.push_back(other);
      best = other;
    };
    auto attempt = [&](const Point& p) {
      if (evaluate(p).seconds >= kBetter * best.seconds) return;
      const std::vector<size_t> enabled = enabled_of(p);
      if (!reducer_.kept(p, MemoryScope::Node))
        for (const size_t d : enabled)  // costs are those of whole options, and a little more of one may suffice
          if (Point further = p; reducer_.extend(further, d)) consider(solver_.judge(further, true));
      consider(solver_.solve(p, reducer_.helping(p), enabled));
    };
    auto attempt_with = [&](auto Point::*order, auto value) {
      Point p = best.point;
      p.*order = value;
      attempt(p);
    };
    attempt_with(&Point::reach, Reach::FarBehind);
    attempt_with(&Point::reach, Reach::FarAhead);
    if (!evaluator_.strategy(best.point).update_in_backward) attempt_with(&Point::deferred, true);
    const auto from_disk = [](const GroupPlacement& group) { return group.weights == Space::Disk; };
    const bool reads_disk = std::ranges::any_of(evaluator_.strategy(best.point).groups, from_disk);
    const int64_t passes = best.point.cut.passes;
    if (!choices_.layer_major && passes > 1 && passes * static_cast<int64_t>(layers_) <= most_layers(reads_disk))
      attempt_with(&Point::layer_major, true);
    const auto away = [](const GroupPlacement& group) { return group.states != Space::Device; };
    const bool reads_often = reads_disk && best.point.cut.passes * static_cast<int64_t>(layers_) > kMostLayers;
    if (!reads_often && std::ranges::none_of(evaluator_.strategy(best.point).groups, away)) return;
    for (const Candidate& found : in_other_order(best, reads_disk)) {
      if (found.seconds >= kBetter * best.seconds && found.seconds < kClose * best.seconds) all.push_back(found);
      consider(found);
    }
    if (best.point.reach == Reach::Near) attempt_with(&Point::reach, Reach::FarBehind);
  }

  // Searches the cuts in the other order and returns the fastest few. With a whole forward beside which updates run, or
  // all of a layer's passes together, other options may be worth their seconds.
  std::vector<Candidate> in_other_order(const Candidate& best, bool reads_disk) {
    std::vector<Candidate> all;
    const bool early = choices_.speculate || evaluator_.strategy(best.point).update_in_backward;
    reducer_.allow_at_least(kOtherOrder);
    for (const Cut& cut : evaluator_.cuts_for_other_order(best.point.cut.passes, reads_disk)) {
      Point p = evaluator_.baseline_point(cut, best.point.stage);
      p.layer_major = choices_.layer_major.value_or(true) && cut.passes > 1;
      p.deferred = !early;
      if (early) p.reach = best.point.reach;
      if ((p.layer_major && cut.passes * static_cast<int64_t>(layers_) > most_layers(reads_disk)) || reducer_.spent())
        continue;
      const std::optional<Candidate> found = solver_.least(p, best.seconds);
      if (found && found->fits) all.push_back(*found);
    }
    improve(all);
    return all;
  }

  // ---- The choice ---------------------------------------------------------------------------------------------------

  Arrangement arrangement(const Point& p, const Compiled* whole = nullptr) {
    Arrangement a = evaluator_.arrangement(p, whole);
    if (!whole) static_cast<Footprint&>(a.forecast) = reducer_.footprint(p);
    a.fits = reducer_.fit_all(a.forecast);
    return a;
  }

  // Drops candidates that were found twice, with equal bytes and words.
  void drop_repeated(std::vector<Candidate>& all) {
    std::set<std::tuple<bool, uint64_t, std::string>> seen;
    std::erase_if(all, [&](const Candidate& found) {
      return !seen.emplace(found.fits, found.bytes, evaluator_.words(found.point)).second;
    });
  }

  FitResult choose(std::vector<Candidate> all) {
    FitResult result;
    std::ranges::stable_sort(all, {}, &Candidate::seconds);
    drop_repeated(all);
    auto chosen = std::ranges::min_element(all, {}, &Candidate::missing);
    const std::optional<Candidate> simplest = is_priced_ ? simplifier_.simplest() : std::nullopt;
    if (simplest) {
      const auto same = [&](const Candidate& found) {
        return found.fits && evaluator_.words(found.point) == evaluator_.words(simplest->point);
      };
      chosen = std::ranges::find_if(all, same);
      if (chosen == all.end())
        chosen = all.insert(std::ranges::upper_bound(all, simplest->seconds, {}, &Candidate::seconds), *simplest);
      result.chosen = static_cast<size_t>(chosen - all.begin());
    } else if (std::ranges::any_of(all, &Candidate::fits)) {
      const double limit = equal_time_ * all[0].seconds;
      const auto equal = std::ranges::find_if(all, [&](const Candidate& found) { return found.seconds > limit; });
      chosen = std::ranges::min_element(all.begin(), equal, {}, &Candidate::bytes);
      result.chosen = static_cast<size_t>(chosen - all.begin());
    } else {
      all = {*chosen};
      chosen = all.begin();
    }
    chosen_ = chosen->point;
    fastest_.reset();
    if (simplest && all.front().fits && chosen != all.begin()) fastest_ = all.front().point;
    near_.reset();
    result.compiled = evaluator_.compiled_in_full(chosen_, &result.ranks);
    for (const Candidate& found : all)
      result.tried.push_back(arrangement(found.point, &found == &*chosen ? &result.compiled : nullptr));
    return result;
  }

  Choices choices_;
  Evaluator evaluator_;
  MemoryReducer reducer_;
  Solver solver_;
  const double equal_time_;
  Simplifier simplifier_;
  const bool is_priced_;  // by a profile or by name; else times only order arrangements
  size_t layers_;
  Point chosen_;
  std::optional<Point> fastest_;  // if it is not the chosen one
  std::optional<Point> near_;     // what near() found last
};

Fitter::Fitter(const JobSpec& spec, const Choices& choices, const OpFacts& facts, const Pricing& pricing,
               const Heartbeat& heartbeat)
    : search_(std::make_unique<Search>(spec, choices, facts, pricing, heartbeat)) {}
Fitter::~Fitter() = default;

FitResult Fitter::fit(const Caps& caps) { return search_->fit(caps); }
std::optional<Arrangement> Fitter::near(const Caps& caps) { return search_->near(caps); }
Arrangement Fitter::smallest(const Caps& caps) { return search_->smallest(caps); }
size_t Fitter::compiled() const { return search_->compiled(); }
uint64_t Fitter::ops() const { return search_->ops(); }
std::string Fitter::fastest() const { return search_->fastest_words(); }

FitResult fit(const JobSpec& spec, const Choices& choices, const Caps& caps, const OpFacts& facts,
              const Pricing& pricing, const Heartbeat& heartbeat) {
  return Fitter(spec, choices, facts, pricing, heartbeat).fit(caps);
}

}  // namespace snug
