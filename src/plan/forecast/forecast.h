// Forecasts what a compiled job takes, divided by phase and by class.
#pragma once

#include <memory>

#include "plan/forecast/machine.h"
#include "plan/lowering/compile.h"
#include "plan/spec/caps.h"

namespace snug {

struct Forecast : Footprint {
  struct Phase {
    std::string name;  // "load", "step", "eval", "reference", "save", "generate"
    PerSpace<uint64_t> bytes{};
  };
  std::vector<Phase> phases;
  struct Class {
    std::string name;  // "weights", "gradients", ..., "packing"
    uint64_t bytes = 0;
  };
  std::vector<Class> classes;  // of the device arena where it is fullest; they sum to its bytes
  PerSpace<std::string>
      peak_sites;  // program and op at which each arena is fullest; "every op": nothing comes and goes
};

Forecast forecast(const Compiled& compiled);

// Holds what prices a step. Rough rates say which arrangement is faster, but not how long a step takes.
struct Pricing {
  Machine machine = rough_machine();
  int threads = 1;                         // of the team that computes
  LaneMode lanes = LaneMode::Inline;       // without cards; the lanes of cards are streams
  Nodes nodes{};                           // where the ranks are
  std::shared_ptr<const OpFacts> facts{};  // which kernels run; nothing: those of the rough machine
  std::string file{};                      // the profile that the machine was read from; empty: rough rates

  bool measured() const { return !file.empty(); }
  // Returns whether ops follow each other, so that each has the whole team of threads.
  bool one_by_one() const { return lanes == LaneMode::Inline && !machine.cards; }
};

// Returns the seconds of an op by itself; `buffers` are its program set's.
double seconds(const Op& op, const std::vector<Buffer>& buffers, const Pricing& pricing);

// Returns the seconds of a training step in a sequence of steps: its passes and the update, as if documents filled
// their blocks and every token had a loss.
double step_seconds(const Compiled& compiled, const Pricing& pricing);

// Returns by how many seconds a speculative step is longer if it is clipped; 0 if no group speculates.
double reapply_seconds(const Compiled& compiled, const Pricing& pricing);

// Describes all ops of a step that run one kind of kernel.
struct KernelUse {
  std::string_view kind;  // as kind() names it
  DType dtype = DType::F32;
  Kernel kernel;
  int64_t ops = 0;
  double seconds = 0;  // sum of each op's by itself
  Work work;
};
// Returns the kernels of all ops of a training step that compute, by the pricing's facts; the longest comes first.
std::vector<KernelUse> kernels_of_step(const Compiled& compiled, const Pricing& pricing);

// Describes what keeps a step from being shorter.
struct Bound {
  std::string_view what;  // "computing", "links", "bus", "disk", "host"
  double busy = 0;        // seconds of a step that its busiest lane is at work
  double adds = 0;        // seconds by which a step would be shorter if its lanes took no time
};
// Returns the bounds of all that a step has work for; the one that adds the most comes first.
std::vector<Bound> bounds_of_step(const Compiled& compiled, const Pricing& pricing);

}  // namespace snug
