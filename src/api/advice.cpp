#include "api/advice.h"

#include <algorithm>
#include <set>
#include <utility>

#include "api/job.h"
#include "base/option_name.h"

namespace snug {
namespace {

constexpr double kFaster = 0.995;
constexpr int64_t kShortest = 64, kLowestRank = 8;
constexpr uint64_t kEffort = 300'000;  // ops compiled, after which fewer amounts in between are tried

// Holds options by key, with the text that they get.
using Settings = std::vector<std::pair<std::string, std::string>>;

class Adviser {
 public:
  Adviser(const JobConfig& options, bool evaluate, const OpFacts& facts, const Caps& caps, const Pricing& pricing,
          const Heartbeat& heartbeat)
      : options_(options), evaluate_(evaluate), facts_(facts), caps_(caps), pricing_(pricing), heartbeat_(heartbeat) {}

  std::vector<Change> changes() {
    lift_pins();
    const bool has_formats = options_.optimizer == name(Optimizer::AdamW);
    if (has_formats && options_.state_format == "fp32")
      try_word("state_format", "bf16", "moments are rounded stochastically");
    if (has_formats && options_.state_format != "8bit" && options_.compute == "bf16")
      try_word("state_format", "8bit",
               "moments are codes near them, and the trained weights themselves are rounded stochastically");
    if (options_.method == "lora")
      for (const std::string_view format : {"int8", "nf4"})
        if (options_.base_format != format) try_word("base_format", format, "frozen weights are rounded");
    if (options_.method == "lora" && options_.adapter.empty())
      try_less("lora_rank", &JobConfig::lora_rank, kLowestRank, "adapters have fewer parameters");
    try_less("sequence_length", &JobConfig::sequence_length, kShortest, "longer samples are cut");
    if (options_.method == "full" && options_.train_modules.empty() && options_.freeze.empty())
      try_word("method", "lora", "adapters are trained instead of all weights");
    return std::move(changes_);
  }

 private:
  std::optional<Arrangement> fitting(const JobConfig& changed) const {
    JobSpec spec = make_job(changed, Purpose::Train);
    spec.evaluate = evaluate_;
    Arrangement least = Fitter(spec, choices_of(changed), facts_, pricing_, heartbeat_).smallest(caps_);
    return least.fits ? std::optional(std::move(least)) : std::nullopt;
  }

  bool add(const Settings& settings, std::string_view effect) {
    JobConfig changed = options_;
    std::string flags;
    for (const auto& [key, value] : settings) {
      const OptionSpec& option = find_option(key, "advice");
      option.set(changed, value);
      flags += fmt::format("{}{} {}", flags.empty() ? "" : " ", option_name(option.key), value);
    }
    const std::optional<Arrangement> found = fitting(changed);
    if (found) changes_.push_back({flags, std::string(effect), *found});
    return found.has_value();
  }
  bool add(const std::string& key, const std::string& value, std::string_view effect) {
    return add({{key, value}}, effect);
  }

  // Lifts what the user pinned of cut and strategy: one pin, or else all of them.
  void lift_pins() {
    constexpr std::string_view kSameBits = "changes no bit", kOtherSums = "passes are summed in another order";
    Settings all;
    bool lifted = false;
    auto lift = [&](const Settings& pins, std::string_view effect) {
      all.insert(all.end(), pins.begin(), pins.end());
      lifted |= add(pins, effect);
    };
    const int64_t passes = options_.batch_size / options_.ranks;
    Settings cut;
    if (options_.micro_batch_size.value_or(1) > 1) cut.emplace_back("micro_batch_size", "1");
    if (options_.gradient_accumulation_steps.value_or(passes) < passes)
      cut.emplace_back("gradient_accumulation_steps", fmt::format("{}", passes));
    if (!cut.empty()) lift(cut, kOtherSums);
    size_t pins = cut.empty() ? 0 : 1;
    for (const std::string key : {"recompute", "zero", "order", "offload_states", "offload_gradients",
                                  "offload_parameters", "offload_activations", "speculative_updates"}) {
      const OptionSpec& spec = find_option(key, "advice");
      const std::string default_value = spec.get(JobConfig());
      if (spec.get(options_) == default_value) continue;
      lift({{key, default_value}}, kSameBits);
      pins++;
    }
    if (!lifted && pins > 1) add(all, cut.empty() ? kSameBits : kOtherSums);
  }

  // Tries a format; where a milder format of the option fits, the harder one is not named.
  void try_word(const std::string& key, std::string_view value, std::string_view effect) {
    if (!tried_.contains(key) && add(key, std::string(value), effect)) tried_.insert(key);
  }

  // Tries smaller values by halving, and keeps the largest that fits.
  void try_less(const std::string& key, int64_t JobConfig::*field, int64_t least, std::string_view effect) {
    if (options_.*field <= least || !add(key, fmt::format("{}", least), effect)) return;
    for (int64_t value = options_.*field / 2; value > least; value /= 2) {
      if (!add(key, fmt::format("{}", value), effect)) continue;
      changes_.erase(changes_.end() - 2);
      return;
    }
  }

  const JobConfig& options_;
  bool evaluate_;
  const OpFacts& facts_;
  const Caps& caps_;
  const Pricing& pricing_;
  const Heartbeat& heartbeat_;
  std::set<std::string> tried_;
  std::vector<Change> changes_;
};

}  // namespace

std::vector<Alternative> what_more_buys(Fitter& fitter, const Caps& caps, const FitResult& fit) {
  // Only what is faster than the fastest that fits already counts; the chosen one may be a simpler neighbour of that.
  const Arrangement& chosen = fit.tried[*fit.chosen];
  double seconds = chosen.step_seconds;
  for (const Arrangement& a : fit.tried)
    if (a.fits) seconds = std::min(seconds, a.step_seconds);
  auto with = [&](int64_t gigabytes) {
    const auto more = static_cast<uint64_t>(gigabytes) << 30;
    Caps larger = caps;
    larger.device_bytes += more;
    if (caps.shared) larger.host_bytes += more * static_cast<uint64_t>(caps.ranks_of_node(chosen.cut.ranks));
    std::optional<Arrangement> found = fitter.near(larger);
    // As nearly equal times count as one, this may be an arrangement that was not taken for its bytes.
    if (found && fits(found->forecast, found->cut.ranks, caps)) found.reset();
    return found;
  };
  const std::optional<Arrangement> most = with(kMostMore);
  if (!most || most->step_seconds > kFaster * seconds) return {};
  std::vector<Alternative> bought;
  const uint64_t before = fitter.ops();
  for (int64_t gigabytes = 1; gigabytes <= kMostMore; gigabytes *= 2) {
    if (gigabytes < kMostMore && fitter.ops() - before > kEffort) continue;
    const std::optional<Arrangement> best = gigabytes < kMostMore ? with(gigabytes) : most;
    if (!best || best->step_seconds > kFaster * seconds) continue;
    seconds = best->step_seconds;
    bought.push_back({gigabytes, *best});
  }
  return bought;
}

std::optional<Arrangement> with_less(Fitter& fitter, const Caps& caps, const Arrangement& chosen) {
  const uint64_t device = caps.taken(chosen.forecast, Space::Device),
                 taken = (device + caps.taken(chosen.forecast, Space::Host)) *
                         static_cast<uint64_t>(caps.ranks_of_node(chosen.cut.ranks));
  Caps smaller = caps;
  smaller.device_bytes = device - device / 4;
  if (caps.shared) smaller.host_bytes = taken - taken / 4;
  return fitter.near(smaller);
}

std::vector<Change> changes_that_fit(const JobConfig& options, bool evaluate, const OpFacts& facts, const Caps& caps,
                                     const Pricing& pricing, const Heartbeat& heartbeat) {
  return Adviser(options, evaluate, facts, caps, pricing, heartbeat).changes();
}

}  // namespace snug
