#include "train/trace_json.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"

namespace snug {
namespace {

struct Hazard {
  const Operand *earlier = nullptr, *later = nullptr;
};

// Returns the operands that order two ops: they share packed bytes, and one writes them.
std::optional<Hazard> hazard_between(const ProgramSet& set, const MemoryPlan& plan, const Op& earlier,
                                     const Op& later) {
  const auto space = [&](const Operand& o) { return set.buffers[o.buffer].space; };
  const auto begin = [&](const Operand& o) { return plan.offset[o.buffer] + o.offset; };
  for (const Operand& a : earlier.operands)
    for (const Operand& b : later.operands)
      if ((a.writes() || b.writes()) && space(a) == space(b) && begin(a) < begin(b) + b.extent() &&
          begin(b) < begin(a) + a.extent())
        return Hazard{&a, &b};
  return std::nullopt;
}

std::string_view kind_of(const Hazard& hazard) {
  if (!hazard.earlier->writes()) return "write after read";
  return hazard.later->reads() ? "read after write" : "write after write";
}

class Writer {
 public:
  Writer(const ProgramSet& set, const MemoryPlan& plan, int rank) : set_(set), plan_(plan), rank_(rank) {
    for (size_t lane = 0; lane < kLanes; lane++)
      add({{"name", "thread_name"},
           {"ph", "M"},
           {"pid", rank},
           {"tid", lane},
           {"args", {{"name", name(static_cast<Lane>(lane))}}}});
  }

  void add_op(const Trace::Event& event) {
    const Program& program = set_.programs[event.program];
    const Op& op = program.ops[event.op];
    if (event.blocked_since != 0) add_wait(event, op);
    complete(op.site, kind(op.attrs), op.lane, event.begin, event.end - event.begin,
             {{"program", program.name}, {"op", event.op}});
  }

  std::string take() { return std::move(text_) + "\n]\n"; }

 private:
  void add_wait(const Trace::Event& event, const Op& op) {
    const Wait& wait = op.waits[event.wait];
    const Op& other = set_.programs[wait.program].ops[wait.op];
    const auto hazard = hazard_between(set_, plan_, other, op);
    check(hazard.has_value(), "'{}' waits for '{}', with which it shares nothing", op.site, other.site);
    complete("wait for " + other.site, "wait", op.lane, event.blocked_since, event.begin - event.blocked_since,
             {{"site", other.site},
              {"op", wait.op},
              {"program", set_.programs[wait.program].name},
              {"before", op.site},
              {"hazard", {set_.buffers[hazard->later->buffer].name, set_.buffers[hazard->earlier->buffer].name}},
              {"kind", kind_of(*hazard)}});
  }

  // Adds an event; the format's times are in microseconds.
  void complete(std::string_view name, std::string_view category, Lane lane, int64_t begin, int64_t duration,
                const nlohmann::ordered_json& args) {
    add({{"name", name},
         {"cat", category},
         {"ph", "X"},
         {"ts", static_cast<double>(begin) / 1e3},
         {"dur", static_cast<double>(duration) / 1e3},
         {"pid", rank_},
         {"tid", index(lane)},
         {"args", args}});
  }

  void add(const nlohmann::ordered_json& event) {
    text_ += text_.empty() ? "[\n" : ",\n";
    text_ += event.dump();
  }

  const ProgramSet& set_;
  const MemoryPlan& plan_;
  int rank_;
  std::string text_;
};

}  // namespace

std::string trace_json(const ProgramSet& set, const MemoryPlan& plan, std::span<const Trace::Event> events, int rank) {
  Writer writer(set, plan, rank);
  for (const Trace::Event& event : events) writer.add_op(event);
  return writer.take();
}

}  // namespace snug
