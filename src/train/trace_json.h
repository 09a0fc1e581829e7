// Traces for chrome://tracing and Perfetto.
#pragma once

#include <string>

#include "exec/trace.h"

namespace snug {

// A JSON array: a row for each lane (tid) of the rank (pid) with its name; an event for each op, named after its site;
// and before an op that was held up one of category "wait" that names the op waited for and, as "hazard", the two
// buffers whose bytes that op and this one share: its own first.
std::string trace_json(const ProgramSet& set, const MemoryPlan& plan, std::span<const Trace::Event> events, int rank);

}  // namespace snug
