#include "program/simulate.h"

#include <algorithm>

namespace snug {

Timeline simulate(const ProgramSet& set, const std::vector<ProgramId>& sequence,
                  const std::function<double(const Op&)>& seconds, const std::function<bool(const Op&)>& computes) {
  Timeline timeline;
  std::array<double, kLanes> lane_end{};
  std::vector<double> ends, ends_before;     // by op: of the program walked, and of the one before it
  double finished = 0, finished_before = 0;  // of all programs up to the previous one, and up to the one before that
  for (size_t n = 0; n < sequence.size(); n++) {
    const ProgramId p = sequence[n];
    const std::vector<Op>& ops = set.programs[p].ops;
    ends.clear();
    for (OpId i = 0; i < ops.size(); i++) {
      const Op& op = ops[i];
      double begin = std::max(lane_end[index(op.lane)], finished_before);
      for (const Wait& wait : op.waits) {
        if (wait.program == p && wait.op < i)
          begin = std::max(begin, ends[wait.op]);
        else if (n > 0 && wait.program == sequence[n - 1])
          begin = std::max(begin, ends_before[wait.op]);
      }
      const double duration = seconds(op), end = begin + duration;
      timeline.spans.push_back({p, i, begin, end});
      timeline.busy_seconds[index(op.lane)] += duration;
      timeline.seconds = std::max(timeline.seconds, end);
      lane_end[index(op.lane)] = end;
      if (op.lane != Lane::Compute && computes && computes(op)) lane_end[index(Lane::Compute)] += duration;
      ends.push_back(end);
    }
    finished_before = finished;
    finished = timeline.seconds;
    std::swap(ends, ends_before);
  }
  return timeline;
}

}  // namespace snug
