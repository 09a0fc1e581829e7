#include "plan/forecast/forecast.h"

#include <algorithm>
#include <numeric>

#include "program/simulate.h"

namespace snug {
namespace {

std::string_view phase_of(Task task) {
  switch (task) {
    case Task::Load:
    case Task::Restore:
      return "load";
    case Task::Pass:
    case Task::First:
    case Task::Middle:
    case Task::Last:
    case Task::PassDeferred:
    case Task::FirstDeferred:
    case Task::Update:
    case Task::Flush:
    case Task::Reapply:
      return "step";
    case Task::Evaluate:
    case Task::ToAverage:
    case Task::FromAverage:
      return "eval";
    case Task::Score:
      return "reference";
    case Task::Save:
    case Task::Export:
      return "save";
    case Task::Prefill:
    case Task::Decode:
    case Task::Look:
      return "generate";
    case Task::Embed:
      return "images";
  }
  return "";
}

// Passes beyond this number are all alike.
constexpr int64_t kSimulatedPasses = 4;

using LaneSet = std::array<bool, kLanes>;

// Prices the ops of a job; those of the lanes in `free` cost nothing.
class StepPricing {
 public:
  StepPricing(const Compiled& compiled, const Pricing& pricing, const LaneSet& free)
      : compiled_(compiled), pricing_(pricing), free_(free), tasks_(compiled.passes) {
    if (compiled.has(Task::Flush)) tasks_[0] = pending(tasks_[0]);
  }

  double seconds() const {
    if (pricing_.one_by_one()) {
      const std::array<double, kLanes> busy = busy_seconds();
      return std::accumulate(busy.begin(), busy.end(), 0.0);
    }
    std::vector<Task> tasks = tasks_;
    const auto left_out = static_cast<int64_t>(tasks.size()) - kSimulatedPasses;
    if (left_out <= 0) return simulated_seconds(tasks);
    tasks.erase(tasks.begin() + 1, tasks.begin() + 1 + left_out);
    const double all = simulated_seconds(tasks);
    tasks.erase(tasks.begin() + 1);
    return all + static_cast<double>(left_out) * (all - simulated_seconds(tasks));
  }

  double reapply_seconds() const {
    if (!compiled_.has(Task::Reapply)) return 0;
    return simulated({compiled_.at(Task::Reapply)});
  }

  // Returns the seconds of work of each lane.
  std::array<double, kLanes> busy_seconds() const {
    std::array<double, kLanes> busy{};
    for_each_op(
        [&](const Op& op, int64_t times) { busy[index(worker(op))] += static_cast<double>(times) * price(op); });
    return busy;
  }

  std::vector<KernelUse> kernels() const {
    std::map<std::tuple<std::string_view, DType, std::string_view, std::string_view>, KernelUse> uses;
    for_each_op([&](const Op& op, int64_t times) {
      if (worker(op) != Lane::Compute) return;
      const Kernel kernel = pricing_.facts ? pricing_.facts->kernel(op.attrs, op.operands) : Kernel{};
      const std::string_view kind = snug::kind(op.attrs);
      const DType dtype = op.operands.empty() ? DType::F32 : op.operands[0].dtype;
      KernelUse& use = uses[{kind, dtype, kernel.name, kernel.slow}];
      const Work work = snug::work(op);
      const auto count = static_cast<double>(times);
      use = {kind,
             dtype,
             kernel,
             use.ops + times,
             use.seconds + count * price(op),
             {use.work.flops + count * work.flops, use.work.bytes + count * work.bytes}};
    });
    std::vector<KernelUse> sorted;
    for (const auto& [key, use] : uses) sorted.push_back(use);
    std::ranges::stable_sort(sorted, std::greater(), &KernelUse::seconds);
    return sorted;
  }

 private:
  // Calls body(op, how often it runs) for every op of a step.
  template <class Body>
  void for_each_op(const Body& body) const {
    std::map<Task, int64_t> times;
    if (compiled_.has(Task::Update)) times[Task::Update] = 1;
    for (const Task task : tasks_) times[task]++;
    for (const auto& [task, count] : times)
      for (const Op& op : compiled_.set.programs[compiled_.at(task)].ops) body(op, count);
  }

  // Returns the lane that the op keeps at work. Updates and sums beside a walk compute, though they are on the lane of
  // what they wait for.
  static Lane worker(const Op& op) {
    const bool computes = std::holds_alternative<AdamW>(op.attrs) || std::holds_alternative<Lion>(op.attrs) ||
                          std::holds_alternative<ScheduleFreeAdamW>(op.attrs) ||
                          std::holds_alternative<Momentum>(op.attrs) || std::holds_alternative<Descend>(op.attrs) ||
                          std::holds_alternative<SumRanks>(op.attrs) || std::holds_alternative<NormPartials>(op.attrs);
    return computes ? Lane::Compute : op.lane;
  }

  static bool is_product(const Attrs& attrs) {
    return std::holds_alternative<Gemm>(attrs) || std::holds_alternative<Fp8Gemm>(attrs) ||
           std::holds_alternative<AdaptedGemm>(attrs) || std::holds_alternative<SwiGluGemm>(attrs) ||
           std::holds_alternative<SwiGluGemmBackward>(attrs);
  }

  double price(const Op& op) const {
    if (free_[index(worker(op))]) return 0;
    return snug::seconds(op, compiled_.set.buffers, pricing_);
  }

  // Returns the seconds that a second step adds to the first.
  double simulated_seconds(const std::vector<Task>& tasks) const {
    std::vector<ProgramId> step;
    for (const Task task : tasks) step.push_back(compiled_.at(task));
    if (compiled_.has(Task::Update)) step.push_back(compiled_.at(Task::Update));
    std::vector<ProgramId> two = step;
    two.insert(two.end(), step.begin(), step.end());
    return simulated(two) - simulated(step);
  }

  double simulated(const std::vector<ProgramId>& sequence) const {
    const auto processors = [this](const Op& op) {
      if (!pricing_.machine.cards || worker(op) != Lane::Compute) return Processors::None;
      return is_product(op.attrs) ? Processors::All : Processors::Some;
    };
    return simulate(
               compiled_.set, sequence, [this](const Op& op) { return price(op); }, processors)
        .seconds;
  }

  const Compiled& compiled_;
  const Pricing& pricing_;
  LaneSet free_;
  std::vector<Task> tasks_;
};

std::string site_of(const Compiled& compiled, const MemoryPlan::Peak& peak) {
  const auto stays = [&](BufferId id) { return compiled.set.buffers[id].life == Life::Persistent; };
  if (std::ranges::all_of(peak.live, stays)) return "every op";
  const Program& program = compiled.set.programs[peak.program];
  return fmt::format("{}: {}", program.name, program.ops[peak.op].site);
}

}  // namespace

double seconds(const Op& op, const std::vector<Buffer>& buffers, const Pricing& pricing) {
  const int threads = pricing.one_by_one() || op.lane == Lane::Compute ? pricing.threads : 1;
  return seconds(op, buffers, pricing.machine, threads, pricing.nodes, pricing.facts.get());
}

double step_seconds(const Compiled& compiled, const Pricing& pricing) {
  return StepPricing(compiled, pricing, {}).seconds();
}

double reapply_seconds(const Compiled& compiled, const Pricing& pricing) {
  return StepPricing(compiled, pricing, {}).reapply_seconds();
}

std::vector<KernelUse> kernels_of_step(const Compiled& compiled, const Pricing& pricing) {
  return StepPricing(compiled, pricing, {}).kernels();
}

std::vector<Bound> bounds_of_step(const Compiled& compiled, const Pricing& pricing) {
  static const std::vector<std::pair<std::string_view, std::vector<Lane>>> kinds{
      {"computing", {Lane::Compute}},
      {"links", {Lane::Gather, Lane::Reduce}},
      {"bus", {Lane::CopyIn, Lane::CopyOut}},
      {"disk", {Lane::DiskIn, Lane::DiskOut}},
      {"host", {Lane::Host}}};
  const StepPricing whole(compiled, pricing, {});
  const std::array<double, kLanes> busy = whole.busy_seconds();
  const double seconds = whole.seconds();
  std::vector<Bound> bounds;
  for (const auto& [what, lanes] : kinds) {
    Bound bound{what};
    LaneSet free{};
    for (const Lane lane : lanes) {
      bound.busy = std::max(bound.busy, busy[index(lane)]);
      free[index(lane)] = true;
    }
    if (bound.busy == 0) continue;
    bound.adds = seconds - StepPricing(compiled, pricing, free).seconds();
    bounds.push_back(bound);
  }
  std::ranges::stable_sort(bounds, std::greater(), &Bound::adds);
  return bounds;
}

Forecast forecast(const Compiled& compiled) {
  Forecast f;
  f.arena_bytes = compiled.plan.reserved_bytes;
  f.ops = compiled.set.op_count();
  for (const auto& [key, program] : compiled.programs) {
    const std::string_view phase = phase_of(key.task);
    auto found = std::ranges::find(f.phases, phase, &Forecast::Phase::name);
    if (found == f.phases.end()) found = f.phases.insert(f.phases.end(), {std::string(phase), {}});
    raise(found->bytes, compiled.plan.program_bytes[program]);
  }
  const MemoryPlan::Peak& peak = compiled.plan.peak[index(Space::Device)];
  uint64_t left = f.arena_bytes[index(Space::Device)];
  for (const BufferId id : peak.live) {
    const Buffer& buffer = compiled.set.buffers[id];
    auto found = std::ranges::find(f.classes, name(buffer.role), &Forecast::Class::name);
    if (found == f.classes.end()) found = f.classes.insert(f.classes.end(), {std::string(name(buffer.role)), 0});
    found->bytes += buffer.bytes;
    left -= buffer.bytes;
  }
  if (left > 0) f.classes.push_back({"packing", left});
  for (const Space space : kSpaces) f.peak_sites[index(space)] = site_of(compiled, compiled.plan.peak[index(space)]);
  return f;
}

}  // namespace snug
