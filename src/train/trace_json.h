// Writes traces for chrome://tracing and Perfetto.
#pragma once

#include <string>

#include "exec/trace.h"

namespace snug {

// Returns a JSON array, with times of the machine's monotone clock, so that traces of one host's ranks lie beside one
// another in one view. It has a row for each lane (tid) of the rank (pid), with its name; an event for each op, named
// after its site; and before an op that was held up an event of category "wait" that names the op waited for and, as
// "hazard", the two buffers whose bytes that op and this one share: its own first.
std::string trace_json(const ProgramSet& set, const MemoryPlan& plan, std::span<const Trace::Event> events, int rank);

}  // namespace snug
