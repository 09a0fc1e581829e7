// Arrangements of a tiny job tried one by one, to hold the planner's search against.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "backend/cpu/facts.h"
#include "plan/search/memory_options.h"
#include "plan/search/simplicity.h"

namespace snug {

// A machine on which products cost about as much as moving their operands, as they do at true sizes.
inline Pricing balanced() {
  Pricing pricing;
  TeamRates& team = pricing.machine.teams.front();
  team.op_seconds = 1e-7;
  team.flops = 2e11;
  team.copy = {{1}, {5e9}};
  pricing.machine.link = 1e10;
  pricing.machine.disk.read = pricing.machine.disk.write = 1e9;
  return pricing;
}

// Every arrangement of cuts, stages with whole or resident weights, a kind of recomputation for the first so many
// blocks, and shares of what may be offloaded, on the host and, where it counts the host, on the disk.
class BruteForce {
 public:
  struct Tried {
    double seconds;
    Footprint rank;
    Cut cut;
    Strategy strategy;
    Complexity complexity(const Caps& caps) const { return snug::complexity(cut, strategy, rank, caps); }
  };

  BruteForce(const JobSpec& spec, int64_t batch, int ranks) : spec_(spec), ranks_(ranks) {
    for (const int64_t passes : {1, 2, 4}) {
      if (batch % (passes * ranks) != 0) continue;
      spec_.cut.ranks = ranks;
      spec_.cut.passes = passes;
      spec_.cut.micro_batch = batch / passes / ranks;
      recompute();
    }
  }

  std::string words(const Tried& tried) const { return arrangement_words(tried.cut, tried.strategy, spec_.table); }

  // The fastest whose bytes are allowed; null if there is none.
  const Tried* fastest(const Caps& caps) const {
    const Tried* best = nullptr;
    for (const Tried& tried : tried_)
      if (fits(tried.rank, ranks_, caps) && (!best || tried.seconds < best->seconds)) best = &tried;
    return best;
  }

  // The simplest of those whose bytes are allowed and that take no longer than this.
  const Tried* simplest(const Caps& caps, double seconds) const {
    const Tried* best = nullptr;
    for (const Tried& tried : tried_)
      if (tried.seconds <= seconds && fits(tried.rank, ranks_, caps) &&
          (!best || tried.complexity(caps) < best->complexity(caps)))
        best = &tried;
    return best;
  }

  uint64_t most(Space space) const {
    uint64_t bytes = 0;
    for (const Tried& tried : tried_) bytes = std::max(bytes, tried.rank.arena_bytes[index(space)]);
    return bytes;
  }

  size_t size() const { return tried_.size(); }

 private:
  void recompute() {
    const size_t blocks = spec_.table.layers.size();
    for (const Recompute r : {Recompute::None, Recompute::Mlp, Recompute::Block})
      for (size_t n = 1; n <= (r == Recompute::None ? 1 : blocks); n++)
        for (const int stage : ranks_ == 1 ? std::vector{0} : std::vector{0, 2, 3}) {
          spec_.strategy = plain_strategy(spec_.table);
          std::fill_n(spec_.strategy.activations.begin(), n, policy_of(r));
          set_zero_stage(spec_.strategy, stage);
          offload();
        }
  }

  void offload() {
    const auto groups = static_cast<int64_t>(spec_.strategy.groups.size());
    for (const int64_t inputs : {int64_t{0}, static_cast<int64_t>(spec_.table.layers.size())})
      for (const int64_t states : {int64_t{0}, groups / 2, groups})
        for (const int64_t weights : {int64_t{0}, groups / 2, groups})
          for (const Space space : {Space::Host, Space::Disk}) {
            if (space == Space::Disk && inputs + states + weights == 0) continue;
            JobSpec spec = spec_;
            for (int64_t b = 0; b < inputs; b++) {
              ActivationPolicy& policy = spec.strategy.activations[static_cast<size_t>(b)];
              policy = offloaded(policy);
            }
            spec.strategy.offloaded_to = space;
            for (int64_t g = groups - states; g < groups; g++)
              spec.strategy.groups[static_cast<size_t>(g)].states = space;
            for (int64_t g = groups - weights; g < groups; g++)
              spec.strategy.groups[static_cast<size_t>(g)].weights = space;
            const Compiled compiled = compile(spec, CpuFacts());
            PerSpace<uint64_t> fullest = compiled.plan.reserved_bytes;
            for (spec.rank = 1; spec.rank < ranks_; spec.rank++)
              raise(fullest, compile(spec, CpuFacts()).plan.reserved_bytes);
            Pricing pricing = balanced();
            pricing.lanes = lanes_of(spec.strategy, spec.cut);
            tried_.push_back({step_seconds(compiled, pricing), {fullest}, spec.cut, spec.strategy});
          }
  }

  JobSpec spec_;
  int ranks_;
  std::vector<Tried> tried_;
};

}  // namespace snug
