// When the bytes of each buffer must be its own.
#pragma once

#include "program/program.h"

namespace snug {

// Ops [begin, end) of a program, in issue order.
struct LiveSpan {
  ProgramId program = 0;
  OpId begin = 0, end = 0;
  bool operator==(const LiveSpan&) const = default;
};

// By BufferId, ordered by program and op. A Program-life buffer has one span, from its first use to the latest `retire`
// of its users. A carried buffer has several, over all programs where its contents may still be read; between its last
// read and the ops that write all of it anew it has none. Only dense operands count as writing it anew, and bytes that
// no program reads need not be written. A persistent buffer has none, as it is always alive; an unused one neither.
//
// InternalError where the programs are not sound, as pack() says, or where a carried buffer is read that neither this
// program nor one that may come before it makes.
std::vector<std::vector<LiveSpan>> live_spans(const ProgramSet& set);

}  // namespace snug
