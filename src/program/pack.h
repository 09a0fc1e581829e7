// Gives every buffer of a set of programs its byte offset in its space's arena.
//
// A buffer is live from its first use to the `retire` of its last, in issue order, in every program where it is used;
// a carried buffer also through the programs that lie between (liveness over Program::next), a persistent one always.
// Buffers share bytes only if they are never live at the same op; sync() then makes that safe across lanes.
// Persistent buffers come first, in table order from offset 0; then the others, each in the tightest hole, largest
// first (Pisarchyk and Lee, arXiv:2001.03288). Where that leaves over 1 % in holes, other orders are tried and the best
// is taken.
#pragma once

#include "program/program.h"

namespace snug {

// Returns the place of every buffer. Equal programs give equal plans on every machine. `alignment` is in bytes, a power
// of two; buffers of the host and disk spaces are aligned for direct I/O as well. Throws InternalError if an operand
// leaves its buffer, an op retires before it is issued, a Program-life buffer is used by two programs, or a
// Program-life buffer is read before it is written.
MemoryPlan pack(const ProgramSet& set, uint64_t alignment);

}  // namespace snug
