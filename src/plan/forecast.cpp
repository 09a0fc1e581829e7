#include "plan/forecast.h"

#include <algorithm>

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
    case Task::Update:
      return "step";
    case Task::Evaluate:
      return "eval";
    case Task::Save:
    case Task::Export:
      return "save";
    case Task::Prefill:
    case Task::Decode:
      return "generate";
    case Task::Merge:
      return "merge";
  }
  return "";
}

}  // namespace

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
