#include "plan/fit.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <utility>

#include "plan/prober.h"

namespace snug {
namespace {

// Times closer than this are one: the arrangement with fewer bytes is taken. A processor's own times wander by more
// than a card's.
double equal_time(const Pricing& pricing) { return pricing.machine.cards ? 1.007 : 1.02; }

// Larger passes that are no faster, after which none is looked at but the largest.
constexpr int kPatience = 2;

// Of different cuts and stages, the chosen one among them.
constexpr size_t kTried = 3;

// What is no faster than by this share was not worth looking, and what costs no more than that need not be mended.
constexpr double kBetter = 0.995;

// The price, by share of a step, of a dial that is turned further than it need be.
constexpr double kNegligible = 0.001;

// Ops and arrangements compiled, after which refining ends; and ops, after which the search is content with what fits.
constexpr uint64_t kRefining = 400'000, kMostOps = 2'500'000;
constexpr size_t kRefinements = 60;

// Ops of an arrangement that takes long to compile.
constexpr uint64_t kDearOps = 15'000;

// Where turning everything on leaves this share of what is allowed missing, nothing fits.
constexpr double kHopeless = 0.25;

// Blocks of all passes of a program in layer-major order, beyond which it takes too long to compile.
constexpr int64_t kMostBlocks = 256;

// What must be relieved first: a rank's device, then the node's memory.
enum class Place : uint8_t { Device, Node };

// What turning a dial costs, in seconds a byte, and how far it is to be turned.
struct Offer {
  double price = 0;
  int64_t position = 0;
};

}  // namespace

class Fitter::Search {
 public:
  Search(const JobSpec& spec, const Choices& choices, const OpFacts& facts, const Pricing& pricing, const Alive& alive)
      : choices_(spec.purpose == Purpose::Train ? choices : without_training(choices, spec.cut)),
        prober_(spec, choices_, facts, pricing, alive),
        equal_time_(equal_time(pricing)),
        blocks_(spec.table.blocks.size()) {}

  // Only the first arrangement and what is chosen are compiled with loading, saving and evaluating: these take nearly
  // as much in all others beside what stays on a rank. Where they take more, what is chosen is mended.
  FitResult fit(const Caps& caps) {
    caps_ = caps;
    started_at_ = prober_.ops();
    std::vector<Found> all = search();
    for (;;) {  // ends: what does not fit has more around its steps than any before
      FitResult result = choose(all);
      if (result.chosen) note_around(result.compiled, probe(chosen_));
      if (!result.chosen || result.tried[*result.chosen].fits) return result;
      all = {judged(chosen_, true)};
      work_out(all[0]);
      if (!all[0].fits) all = search();
    }
  }

  std::optional<Arrangement> near(const Caps& caps) {
    caps_ = caps;
    started_at_ = prober_.ops();
    rough_ = false;  // of what was chosen more is turned on, or what is not needed is turned back
    const Found same = settled(chosen_, helping(chosen_), turned_of(chosen_));
    rough_ = true;
    const std::vector<Cut>& cuts = prober_.cuts();
    const auto here = std::ranges::find(cuts, chosen_.cut.micro_batch, &Cut::micro_batch) - cuts.begin();
    const std::ptrdiff_t beside = prober_.ops() > kDearOps * prober_.compiled() || chosen_.layer_major ? 0 : 1;
    std::optional<Found> best = same.fits ? std::optional(same) : std::nullopt;
    for (auto i = std::max(here - beside, std::ptrdiff_t{0}); i <= std::min(here + beside, std::ssize(cuts) - 1); i++) {
      Point p = undialled(chosen_);
      p.cut = cuts[static_cast<size_t>(i)];
      const auto found = least(p, best ? best->seconds : std::numeric_limits<double>::infinity());
      if (found && found->fits && (!best || found->seconds < best->seconds)) best = found;
    }
    return best ? std::optional(arrangement(best->point)) : std::nullopt;
  }

  Arrangement smallest(const Caps& caps) {
    caps_ = caps;
    rough_ = true;
    started_at_ = prober_.ops();
    const Point undialled = prober_.undialled_point(prober_.cuts()[0], prober_.stages().back());
    Point p = all_on(undialled);
    if (!kept(p, Place::Node) && !is_hopeless(p, 0))
      p = least(undialled, std::numeric_limits<double>::infinity())->point;
    if (!kept(p, Place::Node)) return arrangement(p);
    const Compiled whole = prober_.compiled_in_full(p);
    return arrangement(p, &whole);
  }

  size_t compiled() const { return prober_.compiled(); }
  uint64_t ops() const { return prober_.ops(); }
  const std::string& fastest_words() const { return fastest_words_; }

 private:
  struct Found {
    Point point;
    double seconds = 0;
    uint64_t bytes = 0;  // of a rank, wherever
    bool fits = false;
  };

  Found judged(const Point& p, bool fits) {
    const Probe& at = probe(p);
    if (fits && at.seconds < fastest_) {
      fastest_ = at.seconds;
      fastest_words_ = prober_.words(p);
    }
    const PerSpace<uint64_t> bytes = bytes_of(p);
    return {p, at.seconds, std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}), fits};
  }

  // Of compiling, so far.
  struct Effort {
    uint64_t ops = 0;
    size_t arrangements = 0;
  };
  Effort effort() const { return {prober_.ops(), prober_.compiled()}; }
  bool tired(const Effort& since) const {
    return prober_.ops() - since.ops > kRefining || prober_.compiled() - since.arrangements > kRefinements;
  }
  bool spent(uint64_t times = 1) const { return prober_.ops() - started_at_ > times * kMostOps; }

  const std::vector<Dial>& dials(const Point& p) const { return prober_.dials(p); }
  const Probe& probe(const Point& p) { return prober_.probe(p); }

  bool fit_all(const PerSpace<uint64_t>& bytes) const {
    return std::ranges::all_of(needs(bytes, choices_.ranks, caps_),
                               [](const Need& need) { return need.bytes <= need.allowed; });
  }

  // Of a step, or what loading, saving and evaluating take, if that is known to be more: about as much in all
  // arrangements beside what stays on a rank, and worked out where it decides.
  PerSpace<uint64_t> bytes_of(const Point& p) {
    const Probe& step = probe(p);
    PerSpace<uint64_t> bytes = step.bytes;
    for (size_t space = 0; space < bytes.size(); space++)
      if (around_[space] > 0) bytes[space] = std::max(bytes[space], step.persistent[space] + around_[space]);
    return bytes != step.bytes && fit_all(step.bytes) && !fit_all(bytes) ? prober_.whole_bytes(p) : bytes;
  }
  void note_around(const Compiled& whole, const Probe& step) {
    for (size_t space = 0; space < around_.size(); space++)
      around_[space] = std::max(around_[space], whole.plan.reserved_bytes[space] - step.persistent[space]);
  }

  // ---- What a place has ---------------------------------------------------------------------------------------------

  // The need beyond its cap by most, or nearest to it. Place::Node: of all of them.
  Need tightest(const Point& p, Place place) {
    const PerSpace<uint64_t> bytes = bytes_of(p);
    std::vector<Need> all = needs(bytes, choices_.ranks, caps_);
    if (place == Place::Device)
      all = {{"the device of a rank", bytes[index(Space::Device)] + caps_.beside(bytes), caps_.device_bytes}};
    return *std::ranges::max_element(all, {}, excess_of);
  }
  static double excess_of(const Need& need) {
    return static_cast<double>(need.bytes) - static_cast<double>(need.allowed);
  }
  double excess(const Point& p, Place place) { return excess_of(tightest(p, place)); }
  bool kept(const Point& p, Place place) { return excess(p, place) <= 0; }

  bool device_is_apart() const { return !caps_.shared || caps_.device_bytes < caps_.host_bytes; }

  // On the way to the disk nothing stays on the host; where that is what is short, only the disk helps.
  std::vector<size_t> helping(const Point& p, Place place) const {
    std::vector<size_t> found;
    for (size_t d = 0; d < dials(p).size(); d++) {
      const Dial& dial = dials(p)[d];
      const bool compute = dial.kind == Dial::Kind::Recompute || dial.kind == Dial::Kind::Shard;
      if (compute || dial.to_disk == (place == Place::Node)) found.push_back(d);
    }
    return found;
  }
  std::vector<size_t> helping(const Point& p) const {
    if (!device_is_apart()) return helping(p, Place::Node);
    std::vector<size_t> all(p.at.size());
    std::iota(all.begin(), all.end(), size_t{0});
    return all;
  }
  // The same cut, stage and order.
  static Point undialled(Point p) {
    std::ranges::fill(p.at, 0);
    return p;
  }
  std::vector<size_t> turned_of(const Point& p) const {
    std::vector<size_t> turned;
    for (size_t d = 0; d < p.at.size(); d++)
      if (p.at[d] > 0) turned.push_back(d);
    return turned;
  }

  // ---- The search ---------------------------------------------------------------------------------------------------

  std::vector<Found> search() {
    rough_ = true;
    fastest_ = std::numeric_limits<double>::infinity();
    std::vector<Found> all;
    const auto any_fits = [&] { return std::ranges::any_of(all, &Found::fits); };
    for (const int stage : stages()) climb(stage, choices_.speculate, all);  // which fetches far ahead, if it may
    for (const int stage : stages())
      if (choices_.speculate && !any_fits()) climb(stage, false, all);
    if (!any_fits()) return all;
    improve(all);
    if (!spent()) vary(all);
    return all;
  }

  // Leaves the fastest few that fit. However long it took to find these, they are worked on for a while.
  void improve(std::vector<Found>& all) {
    rough_ = false;
    if (spent()) started_at_ = prober_.ops() + kRefining - kMostOps;
    std::erase_if(all, [](const Found& found) { return !found.fits; });
    std::ranges::stable_sort(all, {}, &Found::seconds);
    all.resize(std::min(all.size(), kTried));
    const Effort before = effort();
    for (Found& found : all) {
      if (spent() || tired(before)) break;
      work_out(found);
      refine(found, before);
    }
  }

  // The least that is needed under the caps as they are known now, in the same cut and order.
  void work_out(Found& found) {
    const Found least = *this->least(undialled(found.point), std::numeric_limits<double>::infinity());
    if (!kept(found.point, Place::Node) || (least.fits && least.seconds < found.seconds)) found = least;
  }

  // Stage 2 alone if it is as fast as stage 0: it takes fewer bytes.
  std::vector<int> stages() {
    if (prober_.stages().size() == 1) return prober_.stages();
    const Cut& cut = prober_.cuts()[0];
    const double sharded = probe(prober_.undialled_point(cut, 2)).seconds,
                 whole = probe(prober_.undialled_point(cut, 0)).seconds;
    return sharded <= equal_time_ * whole ? std::vector{2} : std::vector{0, 2};
  }

  // The more blocks a pass has the fewer gathers and the larger products a step has, and the more must be turned on to
  // make room. The largest is looked at in any case, as a single pass needs no accumulators, and is compiled soonest.
  void climb(int stage, bool far_ahead, std::vector<Found>& all) {
    const std::vector<Cut>& cuts = prober_.cuts();
    std::vector<Point> undialled;
    for (const Cut& cut : cuts) undialled.push_back(prober_.undialled_point(cut, stage));
    for (Point& p : undialled) p.far_ahead = far_ahead;
    prober_.look_at(undialled);
    int worse = 0;
    for (size_t i = 0; i < cuts.size(); i++) {
      const double limit = fastest_ / equal_time_;
      const std::optional<Found> found = least(undialled[i], limit);
      if (found) all.push_back(*found);
      worse = found && found->fits && found->seconds <= limit ? 0 : worse + 1;
      if (found && !found->fits) worse = kPatience;
      if (i + 1 == cuts.size()) return;
      const bool enough = spent() && std::isfinite(fastest_);
      if (enough) started_at_ = prober_.ops() - kMostOps;  // as much again for the largest
      if (enough || worse >= kPatience) i = cuts.size() - 2;
    }
  }

  Point all_on(Point p) {
    for (const size_t d : helping(p)) p.at[d] = dials(p)[d].most;
    return p;
  }
  // Whether this share of the memory that is allowed is missing with all on; of disks others may need less.
  bool is_hopeless(const Point& all_on, double share) {
    PerSpace<uint64_t> bytes = bytes_of(all_on);
    bytes[index(Space::Disk)] = 0;
    return std::ranges::any_of(needs(bytes, choices_.ranks, caps_), [&](const Need& need) {
      return excess_of(need) > share * static_cast<double>(need.allowed);
    });
  }

  // The least that must be turned on at a cut and stage; with all on where that is not enough. First with the host's
  // help, then, if that asks too much of the host, without. Nothing if it takes longer than `limit` with all off.
  std::optional<Found> least(const Point& undialled, double limit) {
    if (probe(undialled).seconds > limit) return std::nullopt;
    if (!kept(undialled, Place::Node) && is_hopeless(all_on(undialled), kHopeless))
      return judged(all_on(undialled), false);
    std::optional<Found> best;
    if (device_is_apart()) {
      Point p = undialled;
      std::vector<size_t> turned;
      const bool relieved = relieve(p, Place::Device, helping(p, Place::Device), turned);
      const bool sufficed = relieved && kept(p, Place::Node);
      best = settled(p, helping(p, Place::Node), turned);
      if (sufficed || (best->fits && probe(undialled).seconds >= kBetter * best->seconds)) return best;
    }
    const Found other = settled(undialled, helping(undialled, Place::Node), {});
    const bool better = !best || !best->fits || (other.fits && other.seconds < best->seconds);
    return better ? other : best;
  }

  // With the dials `left` turned on as far as it takes, and those that were `turned` before turned back as far as goes.
  Found settled(Point p, std::vector<size_t> left, std::vector<size_t> turned) {
    if (!relieve(p, Place::Node, std::move(left), turned)) return judged(p, false);
    for (auto d = turned.rbegin(); d != turned.rend() && !rough_ && !spent(); ++d) turn_back(p, *d);
    return judged(p, true);
  }

  // Prices were measured one by one, and the last dial goes only so far: perhaps it is faster without one of its dials,
  // and others turned further.
  void refine(Found& best, const Effort& before) {
    if (probe(undialled(best.point)).seconds >= kBetter * best.seconds) return;
    for (bool better = true; std::exchange(better, false);)
      for (size_t d = 0; d < best.point.at.size() && !tired(before); d++) {
        if (best.point.at[d] == 0) continue;
        Point without = best.point;
        without.at[d] = 0;
        std::vector<size_t> others = helping(without);
        std::erase(others, d);
        const Found found = settled(without, others, turned_of(without));
        if (!found.fits || found.seconds >= kBetter * best.seconds) continue;
        best = found;
        better = true;
      }
  }

  // The fastest in other orders, where transfers can hide behind computing.
  void vary(std::vector<Found>& all) {
    Found best = *std::ranges::min_element(all, {}, &Found::seconds);
    if (lanes_of(prober_.strategy(best.point), best.point.cut) == Lanes::Inline) return;
    rough_ = true;
    auto consider = [&](const Found& other) {
      if (!other.fits || other.seconds >= kBetter * best.seconds) return;
      all.push_back(other);
      best = other;
    };
    auto attempt = [&](const Point& p) {
      if (probe(p).seconds < kBetter * best.seconds) consider(settled(p, helping(p), turned_of(p)));
    };
    auto attempt_with = [&](bool Point::*order) {
      Point p = best.point;
      p.*order = true;
      attempt(p);
    };
    attempt_with(&Point::far_ahead);
    attempt_with(&Point::deferred);
    const int64_t passes = best.point.cut.passes;
    if (!choices_.layer_major && passes > 1 && passes * static_cast<int64_t>(blocks_) <= kMostBlocks)
      attempt_with(&Point::layer_major);
    const auto away = [](const GroupPlacement& group) { return group.states != Space::Device; };
    if (std::ranges::none_of(prober_.strategy(best.point).groups, away)) return;
    for (const Found& found : in_deferred_order(best)) consider(found);
  }

  // The fastest few cuts: with a whole forward for updates other dials are worth their seconds.
  std::vector<Found> in_deferred_order(const Found& best) {
    std::vector<Found> all;
    for (const Cut& cut : prober_.cuts() | std::views::reverse) {  // those of few passes are compiled soonest
      Point p = prober_.undialled_point(cut, best.point.stage);
      p.layer_major = choices_.layer_major.value_or(true) && cut.passes > 1;
      p.deferred = true;
      if ((p.layer_major && cut.passes * static_cast<int64_t>(blocks_) > kMostBlocks) || spent()) continue;
      const std::optional<Found> found = least(p, best.seconds);
      if (found && found->fits) all.push_back(*found);
    }
    improve(all);
    return all;
  }

  // ---- Dials --------------------------------------------------------------------------------------------------------

  // Turns dials on, those first that cost the fewest seconds for the bytes they free, and the last of them only as far
  // as it takes. False where all that frees something is on, and not enough. All at once where it has taken too long.
  bool relieve(Point& p, Place place, std::vector<size_t> left, std::vector<size_t>& turned) {
    std::erase_if(left, [&](size_t d) { return p.at[d] == dials(p)[d].most; });
    std::vector<size_t> useless;  // as the others stand now
    while (!kept(p, place)) {
      if (spent(2)) {
        p = all_on(p);
        return kept(p, place);
      }
      look_at_offers(p, left, place);
      std::optional<Offer> best;
      size_t chosen = 0;
      for (const size_t d : left) {
        if (std::ranges::count(useless, d) > 0) continue;
        const std::optional<Offer> offer = offer_of(p, d, place);
        if (offer && (!best || offer->price < best->price)) {
          best = offer;
          chosen = d;
        }
      }
      if (!best) return false;
      Point q = p;
      q.at[chosen] = std::max(p.at[chosen], best->position);
      if (excess(q, place) >= excess(p, place)) {  // an offer of another cut, or with other dials on
        best = measured_offer(p, chosen, place);
        if (!best) {
          useless.push_back(chosen);
          continue;
        }
        q.at[chosen] = best->position;
      }
      useless.clear();
      std::erase(left, chosen);
      turned.push_back(chosen);
      const int64_t before = std::exchange(p.at[chosen], q.at[chosen]);
      if (kept(p, place)) turn_to_least(p, chosen, before, place);
    }
    return true;
  }

  // Offers are measured once for all cuts and caps: whatever the cut, the product of passes and of tokens in each is
  // the same, so that computing again frees as much less, and transfers of weights come as much more often, as there
  // are more passes. Only states are fetched once a step. What is worth something depends on which dials of its kind
  // are on, and on where bytes are short; what is worth nothing, on all of them.
  std::optional<Offer> offer_of(const Point& p, size_t d, Place place) {
    const auto [kind, all] = offer_keys(p, d, place);
    if (worthless_.contains(all)) return std::nullopt;
    auto known = offers_.find(kind);
    if (known == offers_.end()) {
      const std::optional<Offer> measured = measured_offer(p, d, place);
      if (!measured) return worthless_.insert(all), std::nullopt;
      known = offers_.emplace(kind, *measured).first;
    }
    Offer offer = known->second;
    if (dials(p)[d].kind == Dial::Kind::States) offer.price /= static_cast<double>(p.cut.passes);
    return offer;
  }

  // By what an offer is known, and by what it is known to be none.
  std::pair<std::string, std::string> offer_keys(const Point& p, size_t d, Place place) {
    const Probe& before = probe(p);
    std::string kind = fmt::format("{} {} {} {} {} {} {} {}:", p.stage, p.layer_major, p.deferred, p.far_ahead,
                                   int(place), before.update_fullest, tightest(p, place).what, d);
    std::string all = kind;
    for (size_t other = 0; other < p.at.size(); other++) {
      if (p.at[other] == 0) continue;
      all += fmt::format(" {}", other);
      if (akin(dials(p)[other], dials(p)[d])) kind += fmt::format(" {}", other);
    }
    return {kind, all};
  }

  // Compiles at once what measuring the offers of these dials begins with.
  void look_at_offers(const Point& p, const std::vector<size_t>& left, Place place) {
    std::vector<Point> points;
    for (const size_t d : left) {
      const auto [kind, all] = offer_keys(p, d, place);
      if (worthless_.contains(all) || offers_.contains(kind)) continue;
      points.push_back(p);
      points.back().at[d] = dials(p)[d].most;
    }
    prober_.look_at(points);
  }

  // Whether they move the same bytes.
  static bool akin(const Dial& a, const Dial& b) {
    const auto values = [](const Dial& dial) {
      return dial.kind == Dial::Kind::Recompute || dial.kind == Dial::Kind::Activations;
    };
    const auto weights = [](const Dial& dial) {
      return dial.kind == Dial::Kind::Shard || dial.kind == Dial::Kind::Weights;
    };
    return a.kind == b.kind || (values(a) && values(b)) || (weights(a) && weights(b));
  }

  // Wholly; where that frees nothing, halfway, as staging for the rest may need more elsewhere than it frees, or for
  // all blocks but the last, whose backward comes at once, as computing that again may need more than it frees. Prices
  // are as if the step had one pass.
  std::optional<Offer> measured_offer(Point p, size_t d, Place place) {
    const Dial& dial = dials(p)[d];
    const double seconds = probe(p).seconds, over = excess(p, place);
    const int64_t at = p.at[d];
    const int64_t part = dial.kind == Dial::Kind::Recompute ? dial.most - 1 : std::midpoint(at, dial.most);
    for (const int64_t position : {dial.most, part}) {
      p.at[d] = std::max(at, position);
      const double freed = over - excess(p, place);
      if (freed <= 0) continue;
      const double price = (probe(p).seconds - seconds) / freed;
      return Offer{dial.kind == Dial::Kind::States ? price * static_cast<double>(p.cut.passes) : price, p.at[d]};
    }
    return std::nullopt;
  }

  // Where the dial stands now is enough, at `too_few` it is not. Bytes fall nearly evenly from position to position, so
  // that the line between the ends says where to look. A rough look is content with what it finds at once, any other
  // with what takes next to no longer than the least could.
  void turn_to_least(Point& p, size_t d, int64_t too_few, Place place) {
    auto at = [&](int64_t position) {
      Point q = p;
      q.at[d] = position;
      return excess(q, place);
    };
    int64_t enough = p.at[d];
    auto matters = [&] {
      Point q = p;
      q.at[d] = too_few;
      const double best = probe(q).seconds;
      q.at[d] = enough;
      return probe(q).seconds > (1 + kNegligible) * best;
    };
    for (int looks = 0; enough - too_few > 1 && (rough_ ? looks == 0 : matters()); looks++) {
      const double over = at(too_few), under = at(enough);
      const double share = looks % 3 == 2 ? 0.5 : over / (over - under);
      const int64_t guess = too_few + std::llround(std::ceil(share * static_cast<double>(enough - too_few)));
      const int64_t position = std::clamp(guess, too_few + 1, enough - 1);
      (at(position) <= 0 ? enough : too_few) = position;
    }
    p.at[d] = enough;
  }

  // Later dials may have freed what this one was for.
  void turn_back(Point& p, size_t d) {
    auto suffices = [&](int64_t position) {
      Point q = p;
      q.at[d] = position;
      return kept(q, Place::Node);
    };
    if (p.at[d] == 0 || !suffices(p.at[d] - 1)) return;
    p.at[d]--;
    if (p.at[d] > 0 && suffices(0))
      p.at[d] = 0;
    else if (p.at[d] > 0)
      turn_to_least(p, d, 0, Place::Node);
  }

  // ---- The choice ---------------------------------------------------------------------------------------------------

  Arrangement arrangement(const Point& p, const Compiled* whole = nullptr) {
    Arrangement a = prober_.arrangement(p, whole);
    a.fits = fit_all(whole ? a.forecast.arena_bytes : bytes_of(p));
    return a;
  }

  FitResult choose(std::vector<Found> all) {
    FitResult result;
    std::ranges::stable_sort(all, {}, &Found::seconds);
    auto chosen = std::ranges::min_element(all, {}, &Found::bytes);
    if (std::ranges::any_of(all, &Found::fits)) {
      const double limit = equal_time_ * all[0].seconds;
      const auto equal = std::ranges::find_if(all, [&](const Found& found) { return found.seconds > limit; });
      chosen = std::ranges::min_element(all.begin(), equal, {}, &Found::bytes);
      result.chosen = static_cast<size_t>(chosen - all.begin());
    } else {
      all = {*chosen};
      chosen = all.begin();
    }
    chosen_ = chosen->point;
    result.compiled = prober_.compiled_in_full(chosen_, &result.ranks);
    for (const Found& found : all)
      result.tried.push_back(arrangement(found.point, &found == &*chosen ? &result.compiled : nullptr));
    return result;
  }

  Choices choices_;
  Prober prober_;
  const double equal_time_;
  size_t blocks_;
  std::map<std::string, Offer> offers_;
  std::set<std::string> worthless_;
  Caps caps_;
  PerSpace<uint64_t> around_{};  // what loading, saving and evaluating took beside what persists
  bool rough_ = false;
  uint64_t started_at_ = 0;  // Prober::ops() then
  Point chosen_;
  double fastest_ = std::numeric_limits<double>::infinity();
  std::string fastest_words_;
};

Fitter::Fitter(const JobSpec& spec, const Choices& choices, const OpFacts& facts, const Pricing& pricing,
               const Alive& alive)
    : search_(std::make_unique<Search>(spec, choices, facts, pricing, alive)) {}
Fitter::~Fitter() = default;

FitResult Fitter::fit(const Caps& caps) { return search_->fit(caps); }
std::optional<Arrangement> Fitter::near(const Caps& caps) { return search_->near(caps); }
Arrangement Fitter::smallest(const Caps& caps) { return search_->smallest(caps); }
size_t Fitter::compiled() const { return search_->compiled(); }
uint64_t Fitter::ops() const { return search_->ops(); }
std::string Fitter::fastest() const { return search_->fastest_words(); }

FitResult fit(const JobSpec& spec, const Choices& choices, const Caps& caps, const OpFacts& facts,
              const Pricing& pricing, const Alive& alive) {
  return Fitter(spec, choices, facts, pricing, alive).fit(caps);
}

}  // namespace snug
