#include "plan/fit.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace snug {
namespace {

// Rough rates of one pass, for ordering arrangements only: operations and bytes a second, and seconds an op costs
// before it does anything.
constexpr double kFlops = 1e11, kBytes = 1e10, kOpSeconds = 2e-5;

// Of a pass: their numbers are 32 bits wide.
constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

// Times closer than this are one: the arrangement with fewer bytes is taken.
constexpr double kEqualTime = 1.02;

double relative_seconds(const Compiled& compiled, const Cut& cut) {
  std::array<double, kLanes> busy{};
  auto walk = [&](Task task, double times) {
    if (!compiled.has(task)) return;
    for (const Op& op : compiled.set.programs[compiled.at(task)].ops) {
      const Work w = work(op);
      busy[index(op.lane)] += times * (kOpSeconds + std::max(w.flops / kFlops, w.bytes / kBytes));
    }
  };
  walk(Task::Pass, 1);
  walk(Task::First, 1);
  walk(Task::Middle, static_cast<double>(cut.passes - 2));
  walk(Task::Last, 1);
  walk(Task::Update, 1);
  return std::ranges::max(busy);
}

// Every way to cut a step that the user left open: all divisors of the batch.
std::vector<Cut> cuts(const Cut& base, const Choices& choices) {
  const int64_t batch = choices.batch_size;
  if (choices.micro_batch && choices.passes && *choices.micro_batch * *choices.passes != batch)
    user_error("micro_batch_size {} times gradient_accumulation_steps {} makes {} blocks, batch_size is {}",
               *choices.micro_batch, *choices.passes, *choices.micro_batch * *choices.passes, batch);
  std::vector<Cut> result;
  for (int64_t micro = 1; micro <= batch; micro++) {
    if (batch % micro != 0 || micro * base.sequence_length > kMostTokens) continue;
    if (choices.micro_batch && micro != *choices.micro_batch) continue;
    if (choices.passes && batch / micro != *choices.passes) continue;
    Cut cut = base;
    cut.micro_batch = micro;
    cut.passes = batch / micro;
    result.push_back(cut);
  }
  if (result.empty() && choices.micro_batch && batch % *choices.micro_batch == 0)
    user_error("micro_batch_size {} of sequence_length {}: found {} tokens a pass, expected at most {}",
               *choices.micro_batch, base.sequence_length, *choices.micro_batch * base.sequence_length, kMostTokens);
  if (result.empty())
    user_error("{} {} does not divide batch_size {}",
               choices.micro_batch ? "micro_batch_size" : "gradient_accumulation_steps",
               choices.micro_batch ? *choices.micro_batch : *choices.passes, batch);
  return result;
}

// Where device and host are one memory, moving block inputs between them gains nothing unless it is asked for.
std::vector<Strategy> strategies(const Strategy& base, const Choices& choices, bool shared_memory, size_t blocks) {
  std::vector<std::vector<Recompute>> recomputes;
  if (choices.recomputed_blocks) {
    std::vector<Recompute> mixed(blocks, Recompute::None);
    std::fill_n(mixed.begin(), std::min<size_t>(blocks, static_cast<size_t>(*choices.recomputed_blocks)),
                Recompute::Block);
    recomputes.push_back(mixed);
  } else if (choices.recompute) {
    recomputes.emplace_back(blocks, *choices.recompute);
  } else {
    for (const Recompute r : {Recompute::None, Recompute::Mlp, Recompute::Attention, Recompute::Block})
      recomputes.emplace_back(blocks, r);
  }
  std::vector<double> shares{0.0};
  if (!shared_memory) shares.push_back(1.0);
  if (choices.offload_activations) shares = {*choices.offload_activations};
  std::vector<Strategy> result;
  for (const auto& recompute : recomputes)
    for (const double share : shares) {
      Strategy strategy = base;
      strategy.recompute = recompute;
      strategy.offloaded_blocks = std::llround(share * static_cast<double>(blocks));
      result.push_back(strategy);
    }
  return result;
}

std::string words(const Cut& cut, const Strategy& strategy) {
  const std::set<Recompute> kinds(strategy.recompute.begin(), strategy.recompute.end());
  const std::string recompute =
      kinds.size() == 1 ? std::string(name(*kinds.begin()))
                        : fmt::format("{} of {} blocks", std::ranges::count(strategy.recompute, Recompute::Block),
                                      strategy.recompute.size());
  return fmt::format("{} {} of {} {}, recompute {}, {}", cut.passes, cut.passes == 1 ? "pass" : "passes",
                     cut.micro_batch, cut.micro_batch == 1 ? "block" : "blocks", recompute,
                     strategy.offloaded_blocks == 0
                         ? std::string("no offload")
                         : fmt::format("{} block inputs on the host", strategy.offloaded_blocks));
}

bool fits(const Forecast& f, const Caps& caps) {
  const uint64_t device = f.arena_bytes[index(Space::Device)], host = f.arena_bytes[index(Space::Host)];
  if (caps.shared) return device + host + caps.driver_bytes <= std::min(caps.device_bytes, caps.host_bytes);
  return device + caps.driver_bytes <= caps.device_bytes && host <= caps.host_bytes;
}

}  // namespace

uint64_t total_bytes(const Arrangement& a) {
  return a.forecast.arena_bytes[index(Space::Device)] + a.forecast.arena_bytes[index(Space::Host)];
}

FitResult fit(const JobSpec& spec, const Choices& choices, const Caps& caps, const OpFacts& facts) {
  FitResult result;
  for (const Cut& cut : cuts(spec.cut, choices))
    for (const Strategy& strategy : strategies(spec.strategy, choices, caps.shared, spec.table.blocks.size())) {
      JobSpec candidate = spec;
      candidate.cut = cut;
      candidate.strategy = strategy;
      const Compiled compiled = compile(candidate, facts);
      Arrangement a{cut, strategy, words(cut, strategy), forecast(compiled), relative_seconds(compiled, cut), false};
      a.fits = fits(a.forecast, caps);
      result.tried.push_back(std::move(a));
    }
  std::ranges::stable_sort(result.tried, {}, &Arrangement::relative_time);
  const auto fastest = std::ranges::find(result.tried, true, &Arrangement::fits);
  if (fastest == result.tried.end()) return result;
  auto chosen = fastest;
  for (auto other = fastest; other != result.tried.end(); ++other)
    if (other->fits && other->relative_time <= kEqualTime * fastest->relative_time &&
        total_bytes(*other) < total_bytes(*chosen))
      chosen = other;
  result.chosen = static_cast<size_t>(chosen - result.tried.begin());
  return result;
}

}  // namespace snug
