// Runs programs on the streams of a device: every lane is one, and the host issues.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "exec/executor.h"
#include "exec/stream_trace.h"

namespace snug {

class StreamExecutor final : public Executor {
 public:
  // The backend must have streams; otherwise as make_executor().
  StreamExecutor(const ProgramSet& set, const MemoryPlan& plan, Backend& backend, Arena& arena, Comm* comm,
                 HostHandler host);

 private:
  void issue(Instance& instance, Instance& before) override;
  void drain(Instance& newest) override;
  void note(Trace::Event& event) override { trace_.begin(event); }
  void launch(const Launch& bound, const RuntimeScalars& runtime, Trace::Event* event) override;

  void make_marks();
  void issue_ops(Instance& instance, OpId& id);
  const Op* pending_collective(OpId issued) const;
  void stay_near(size_t stretch);

  // With other ranks, the host is at most two stretches of this many ops ahead of the compute lane.
  static constexpr size_t kNear = 64;
  static constexpr std::array kStreamLanes{Lane::Compute, Lane::Gather, Lane::Reduce, Lane::CopyIn, Lane::CopyOut};
  using Ends = std::array<Streams::Mark, kStreamLanes.size()>;  // marks behind all of a run's work

  Streams& streams_;
  StreamTrace trace_;
  std::array<Ends, 2> ends_{};  // of the run that is issued, or was issued last, and of the one before
  std::array<Streams::Mark, 2> near_{};
  std::vector<std::vector<std::optional<Streams::Mark>>>
      marks_;                           // by program, op: marks for which ops of other lanes wait
  ProgramId program_ = 0, before_ = 0;  // the program that was issued last, and the one before
};

}  // namespace snug
