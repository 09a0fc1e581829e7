#include "plan/forecast.h"

#include <algorithm>

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
    case Task::PassPending:
    case Task::FirstPending:
    case Task::Update:
    case Task::Flush:
      return "step";
    case Task::Evaluate:
      return "eval";
    case Task::Save:
    case Task::Export:
      return "save";
    case Task::Prefill:
    case Task::Decode:
      return "generate";
  }
  return "";
}

// Passes beyond these are all alike.
constexpr int64_t kSimulatedPasses = 4;

double inline_seconds(const Compiled& compiled, const std::vector<Task>& tasks, const Pricing& pricing) {
  std::map<Task, double> by_task;
  auto seconds_of = [&](Task task) {
    const auto [known, missing] = by_task.try_emplace(task, 0.0);
    if (missing)
      for (const Op& op : compiled.set.programs[compiled.at(task)].ops)
        known->second += seconds(op, compiled.set.buffers, pricing.machine, pricing.threads);
    return known->second;
  };
  double sum = compiled.has(Task::Update) ? seconds_of(Task::Update) : 0;
  for (const Task task : tasks) sum += seconds_of(task);
  return sum;
}

// What a second step adds to the first.
double simulated_seconds(const Compiled& compiled, const std::vector<Task>& tasks, const Pricing& pricing) {
  std::vector<ProgramId> step;
  for (const Task task : tasks) step.push_back(compiled.at(task));
  if (compiled.has(Task::Update)) step.push_back(compiled.at(Task::Update));
  std::vector<ProgramId> two = step;
  two.insert(two.end(), step.begin(), step.end());
  auto price = [&](const Op& op) {
    return seconds(op, compiled.set.buffers, pricing.machine, op.lane == Lane::Compute ? pricing.threads : 1);
  };
  return simulate(compiled.set, two, price).seconds - simulate(compiled.set, step, price).seconds;
}

}  // namespace

double step_seconds(const Compiled& compiled, const Pricing& pricing) {
  std::vector<Task> tasks = compiled.passes;
  if (compiled.has(Task::Flush)) tasks[0] = pending(tasks[0]);
  if (pricing.lanes == Lanes::Inline && !pricing.machine.cards) return inline_seconds(compiled, tasks, pricing);
  const auto left_out = static_cast<int64_t>(tasks.size()) - kSimulatedPasses;
  if (left_out <= 0) return simulated_seconds(compiled, tasks, pricing);
  tasks.erase(tasks.begin() + 1, tasks.begin() + 1 + left_out);
  const double all = simulated_seconds(compiled, tasks, pricing);
  tasks.erase(tasks.begin() + 1);
  return all + static_cast<double>(left_out) * (all - simulated_seconds(compiled, tasks, pricing));
}

Forecast forecast(const Compiled& compiled) {
  Forecast f;
  f.arena_bytes = compiled.plan.reserved_bytes;
  for (const auto& [task, program] : compiled.programs) {
    const std::string_view phase = phase_of(task);
    auto found = std::ranges::find(f.phases, phase, &Forecast::Phase::name);
    if (found == f.phases.end()) found = f.phases.insert(f.phases.end(), {std::string(phase), {}});
    for (const Space space : kSpaces) {
      uint64_t& bytes = found->bytes[index(space)];
      bytes = std::max(bytes, compiled.plan.program_bytes[program][index(space)]);
    }
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
  f.classes.push_back({"packing", left});
  const Program& program = compiled.set.programs[peak.program];
  f.peak_site = fmt::format("{}: {}", program.name, program.ops[peak.op].site);
  return f;
}

}  // namespace snug
