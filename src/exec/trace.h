// Records when ops ran, and what held them up.
#pragma once

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "program/program.h"

namespace snug {

// Holds the events of traced runs. It takes all its memory at construction. Events may be read when the runs are done.
class Trace {
 public:
  struct Event {
    ProgramId program = 0;
    OpId op = 0;
    int64_t begin = 0, end = 0;  // nanoseconds of the monotone clock; equal where the op was skipped
    int64_t blocked_since = 0;   // when the lane was free and a wait began to hold the op up; 0: no wait did
    size_t wait = 0;             // the last such wait, an index of Op::waits
  };

  // Records whole runs of these programs, as long as there is room.
  Trace(std::vector<ProgramId> programs, size_t events) : programs_(std::move(programs)), events_(events) {}

  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // Returns room for a run of a program, by op; null if it is not traced or no room is left.
  Event* room(ProgramId program, size_t ops) {
    if (std::ranges::find(programs_, program) == programs_.end()) return nullptr;
    full_ = full_ || ops > events_.size() - used_;
    if (full_) return nullptr;
    Event* const first = events_.data() + used_;
    for (size_t i = 0; i < ops; i++) first[i] = {.program = program, .op = static_cast<OpId>(i)};
    used_ += ops;
    return first;
  }

  std::span<const Event> events() const { return std::span(events_).first(used_); }

 private:
  std::vector<ProgramId> programs_;
  std::vector<Event> events_;
  size_t used_ = 0;
  bool full_ = false;
};

}  // namespace snug
