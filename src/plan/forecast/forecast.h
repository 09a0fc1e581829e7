// What a compiled job takes, told apart by phase and by class.
#pragma once

#include <memory>

#include "plan/forecast/machine.h"
#include "plan/lowering/compile.h"
#include "plan/spec/caps.h"

namespace snug {

struct Forecast : Footprint {
  struct Phase {
    std::string name;  // "load", "step", "eval", "save", "generate"
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

// What prices a step. Rough rates say which arrangement is faster, and nothing of seconds.
struct Pricing {
  Machine machine = rough_machine();
  int threads = 1;                         // of the team that computes
  LaneMode lanes = LaneMode::Inline;       // where there are no cards, whose lanes are streams
  Nodes nodes{};                           // where the ranks are
  std::shared_ptr<const OpFacts> facts{};  // what kernels run; nothing: those of the rough machine
  std::string file{};                      // the profile that the machine was read from; empty: rough rates

  bool measured() const { return !file.empty(); }
  // Ops follow each other, and each has the whole team.
  bool one_by_one() const { return lanes == LaneMode::Inline && !machine.cards; }
};

// Seconds of an op by itself; `buffers` are its program set's.
double seconds(const Op& op, const std::vector<Buffer>& buffers, const Pricing& pricing);

// Seconds of a training step where one follows the other: its passes and the update, as if documents filled their
// blocks and every token had a loss.
double step_seconds(const Compiled& compiled, const Pricing& pricing);

// What a step that speculated takes longer where it is clipped; 0 if none speculates.
double reapply_seconds(const Compiled& compiled, const Pricing& pricing);

// What ops of one kind run as in a step, together.
struct KernelUse {
  std::string_view kind;  // as kind() names it
  DType dtype = DType::F32;
  Kernel kernel;
  int64_t ops = 0;
  double seconds = 0;  // by themselves
  Work work;
};
// Of all ops of a training step that compute; what takes longest comes first. By the pricing's facts.
std::vector<KernelUse> kernels_of_step(const Compiled& compiled, const Pricing& pricing);

// What keeps a step from being shorter.
struct Bound {
  std::string_view what;  // "computing", "links", "bus", "disk", "host"
  double busy = 0;        // seconds of a step that its busiest lane is at work
  double adds = 0;        // by so many a step would be shorter if its lanes took no time
};
// Of everything that a step has work for; what adds the most comes first.
std::vector<Bound> bounds_of_step(const Compiled& compiled, const Pricing& pricing);

}  // namespace snug
