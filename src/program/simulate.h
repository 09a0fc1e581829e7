// Computes how long a sequence of programs takes, by measured rates.
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

// Says what an op takes of the processors that lanes share. Some, for an op of the compute lane: an op of another lane
// that takes processors may begin beside it, and delays its end by as long as that other op takes. All means that no op
// that takes processors begins before this one ends, as with a product on a card, whose blocks of threads stay where
// they are until they are done. The compute lane waits for ops that other lanes have begun; other lanes do not wait for
// each other.
enum class Processors : uint8_t { None, Some, All };

// Returns when each op runs. Lanes run in order, waits are honoured, and at most two programs are in flight; `seconds`
// gives an op's duration. Where several ops may take the processors, those of other lanes go before those of the
// compute lane.
Timeline simulate(const ProgramSet& set, const std::vector<ProgramId>& sequence,
                  const std::function<double(const Op&)>& seconds,
                  const std::function<Processors(const Op&)>& processors = {});

}  // namespace snug
