// Computes when a buffer's bytes may hold nothing else.
#pragma once

#include "program/program.h"

namespace snug {

// Holds ops [begin, end) of a program, in issue order.
struct LiveSpan {
  ProgramId program = 0;
  OpId begin = 0, end = 0;
  bool operator==(const LiveSpan&) const = default;
};

// Returns the live spans of every buffer, by BufferId, ordered by program and op. A Program-life buffer has one span,
// from its first use to the latest `retire` of its users. A carried buffer has several, over all programs where its
// contents may still be read; it has none between its last read and the ops that write all of it anew. Only dense
// operands count as writing it anew, and bytes that no program reads need not be written. A persistent buffer has no
// spans, as it is always live; an unused buffer has none either.
//
// Throws InternalError where the programs are not sound, as pack() says, or where a program reads a carried buffer that
// neither it nor a program that may come before it writes.
std::vector<std::vector<LiveSpan>> live_spans(const ProgramSet& set);

}  // namespace snug
