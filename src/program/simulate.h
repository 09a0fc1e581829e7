// The time a sequence of programs takes, by walking it with measured rates.
#pragma once

#include <functional>

#include "program/program.h"

namespace snug {

struct Timeline {
  double seconds = 0;
  std::array<double, kLanes> busy_seconds{};
  struct Span {
    ProgramId program = 0;
    OpId op = 0;
    double begin = 0, end = 0;  // seconds
  };
  std::vector<Span> spans;  // in issue order
};

// Lanes run in order, waits are honoured, at most two programs are in flight; `seconds` gives an op's duration.
// `computes`: of an op of another lane, whether it takes the compute lane's processors, which then has so much less
// time.
Timeline simulate(const ProgramSet& set, const std::vector<ProgramId>& sequence,
                  const std::function<double(const Op&)>& seconds, const std::function<bool(const Op&)>& computes = {});

}  // namespace snug
