#include "exec/stream_trace.h"

#include <array>
#include <map>

namespace snug {

void StreamTrace::resolve() {
  std::array<int64_t, kLanes> free{};                      // since when the lane is free
  std::map<std::pair<ProgramId, OpId>, int64_t> finished;  // when the op last finished
  for (const Traced& traced : ops_) {
    Trace::Event& event = *traced.event;
    int64_t& free_since = free[index(lane(event))];
    if (traced.begin) {
      event.begin = std::max(streams_.when(*traced.begin), free_since);
      event.end = std::max(streams_.when(*traced.end), event.begin);
    } else if (event.begin == event.end) {  // skipped
      event.begin = event.end = std::max(event.begin, free_since);
    }
    const std::vector<Wait>& waits = op(event).waits;
    int64_t last = free_since;
    for (size_t i = 0; i < waits.size() && free_since > 0; i++) {
      const auto found = finished.find({waits[i].program, waits[i].op});
      if (found == finished.end() || found->second <= last || found->second > event.begin) continue;
      last = found->second;
      event.blocked_since = free_since;
      event.wait = i;
    }
    finished[{event.program, event.op}] = free_since = event.end;
  }
  ops_.clear();
}

}  // namespace snug
