// Records when ops ran on streams, which their own launches do not know.
#pragma once

#include <optional>
#include <vector>

#include "backend/backend.h"
#include "exec/trace.h"

namespace snug {

class StreamTrace {
 public:
  StreamTrace(const ProgramSet& set, Streams& streams) : set_(set), streams_(streams) {}

  // Begins the record of a traced op. It must be called in the order of issue, before the op is launched, run by the
  // host (which notes its times itself) or skipped; launched() follows its launch.
  void begin(Trace::Event& event) { ops_.push_back({&event, {}, {}}); }
  void launch() { ops_.back().begin = streams_.stamp(lane(*ops_.back().event)); }
  void launched() { ops_.back().end = streams_.stamp(lane(*ops_.back().event)); }

  // Writes when all of them ran, and what held them up. It must be called after Streams::finish().
  void resolve();

 private:
  struct Traced {
    Trace::Event* event;
    std::optional<Streams::Stamp> begin, end;
  };
  const Op& op(const Trace::Event& event) const { return set_.programs[event.program].ops[event.op]; }
  Lane lane(const Trace::Event& event) const { return op(event).lane; }

  const ProgramSet& set_;
  Streams& streams_;
  std::vector<Traced> ops_;
};

}  // namespace snug
