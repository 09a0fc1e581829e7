#include "program/simulate.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace snug {
namespace {

constexpr double kNotYet = -1;
constexpr size_t kCompute = index(Lane::Compute);

class Simulation {
 public:
  using Seconds = std::function<double(const Op&)>;
  using Taken = std::function<Processors(const Op&)>;

  Simulation(const ProgramSet& set, const std::vector<ProgramId>& sequence, const Seconds& seconds, const Taken& taken)
      : set_(set), sequence_(sequence), seconds_(seconds), taken_(taken), of_lane_(set.programs.size()) {
    for (const ProgramId p : sequence) {
      const std::vector<Op>& ops = set.programs[p].ops;
      runs_.push_back({timeline_.spans.size(), ops.size()});
      for (OpId i = 0; i < ops.size(); i++) timeline_.spans.push_back({p, i, 0, kNotYet});
      const auto is_known = [](const std::vector<OpId>& lane) { return !lane.empty(); };
      if (std::ranges::any_of(of_lane_[p], is_known)) continue;
      for (OpId i = 0; i < ops.size(); i++) of_lane_[p][index(ops[i].lane)].push_back(i);
    }
  }

  Timeline run() {
    for (size_t done = 0; done < timeline_.spans.size();) {
      const size_t before = done;
      for (size_t lane = 0; lane < kLanes; lane++)
        while (const std::optional<Ready> ready = next(lane)) {
          if (ready->takes != Processors::None) break;
          put(lane, *ready);
          done++;
        }
      if (done > before) continue;
      // All ops that are ready take processors: the one that can begin first goes next.
      std::optional<Ready> first;
      size_t of_first = kLanes;
      for (size_t lane = kLanes; lane-- > 0;)
        if (const std::optional<Ready> ready = next(lane); ready && (!first || ready->begin < first->begin)) {
          first = ready;
          of_first = lane;
        }
      check(first.has_value(), "simulate: op {} of {} waits for what comes after it", done, timeline_.spans.size());
      put(of_first, *first);
      done++;
    }
    return std::move(timeline_);
  }

 private:
  struct Run {
    size_t first = 0;  // index of the first of its spans
    size_t left = 0;   // ops that have not run
    double end = 0;    // when the last of its ops that have run ends
  };
  // Holds the head of a lane, once the ends of all ops that it waits for are known.
  struct Ready {
    size_t run = 0;
    OpId op = 0;
    Processors takes = Processors::None;
    double begin = 0;
  };
  struct LaneCursor {
    size_t run = 0, next = 0;
  };

  const Op& op(const Ready& ready) const { return set_.programs[sequence_[ready.run]].ops[ready.op]; }

  std::optional<Ready> next(size_t lane) {
    LaneCursor& place = places_[lane];
    while (place.run < sequence_.size() && place.next == of_lane_[sequence_[place.run]][lane].size())
      place = {place.run + 1, 0};
    if (place.run == sequence_.size()) return std::nullopt;
    Ready ready{place.run, of_lane_[sequence_[place.run]][lane][place.next], Processors::None, lane_end_[lane]};
    const size_t n = ready.run;
    if (n >= 2) {
      if (!finished(n - 1)) return std::nullopt;
      ready.begin = std::max(ready.begin, runs_[n - 2].end);
    }
    const Op& op = this->op(ready);
    for (const Wait& wait : op.waits) {
      double end = 0;
      if (wait.program == sequence_[n] && wait.op < ready.op)
        end = timeline_.spans[runs_[n].first + wait.op].end;
      else if (n > 0 && wait.program == sequence_[n - 1])
        end = timeline_.spans[runs_[n - 1].first + wait.op].end;
      if (end == kNotYet) return std::nullopt;
      ready.begin = std::max(ready.begin, end);
    }
    if (taken_) ready.takes = taken_(op);
    if (ready.takes != Processors::None) ready.begin = std::max(ready.begin, all_taken_until_);
    return ready;
  }

  // Returns whether the first `count` runs are over; then `end` of each of them covers all runs up to it.
  bool finished(size_t count) {
    for (; finished_ < count && runs_[finished_].left == 0; finished_++)
      if (finished_ > 0) runs_[finished_].end = std::max(runs_[finished_].end, runs_[finished_ - 1].end);
    return finished_ >= count;
  }

  void put(size_t lane, const Ready& ready) {
    const double duration = seconds_(op(ready)), end = ready.begin + duration;
    Run& run = runs_[ready.run];
    Timeline::Span& span = timeline_.spans[run.first + ready.op];
    span.begin = ready.begin;
    span.end = end;
    run.left--;
    run.end = std::max(run.end, end);
    timeline_.busy_seconds[lane] += duration;
    timeline_.seconds = std::max(timeline_.seconds, end);
    lane_end_[lane] = end;
    places_[lane].next++;
    if (ready.takes == Processors::All) all_taken_until_ = end;
    if (lane == kCompute)
      computing_ = ready;
    else if (ready.takes != Processors::None && lane_end_[kCompute] > ready.begin)
      prolong(duration);
    else if (ready.takes != Processors::None)
      lane_end_[kCompute] = end;
  }

  // Prolongs the op under way on the compute lane.
  void prolong(double seconds) {
    Run& run = runs_[computing_.run];
    Timeline::Span& span = timeline_.spans[run.first + computing_.op];
    lane_end_[kCompute] = span.end = lane_end_[kCompute] + seconds;
    run.end = std::max(run.end, span.end);
    timeline_.seconds = std::max(timeline_.seconds, span.end);
  }

  const ProgramSet& set_;
  const std::vector<ProgramId>& sequence_;
  const Seconds& seconds_;
  const Taken& taken_;
  std::vector<std::array<std::vector<OpId>, kLanes>> of_lane_;  // by program
  std::vector<Run> runs_;                                       // by place in the sequence
  std::array<LaneCursor, kLanes> places_{};
  Ready computing_;  // the last op that ran on the compute lane
  std::array<double, kLanes> lane_end_{};
  double all_taken_until_ = 0;
  size_t finished_ = 0;
  Timeline timeline_;
};

}  // namespace

Timeline simulate(const ProgramSet& set, const std::vector<ProgramId>& sequence,
                  const std::function<double(const Op&)>& seconds,
                  const std::function<Processors(const Op&)>& processors) {
  return Simulation(set, sequence, seconds, processors).run();
}

}  // namespace snug
