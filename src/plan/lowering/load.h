// Emits the program that begins a run: it puts everything in place.
#pragma once

#include "plan/lowering/transfer.h"

namespace snug {

// Fills everything that training or evaluation expects in place: parameters from their sources (by ParamId), optimizer
// state with zeros, the table of rotary angles. Each rank reads its part, group after group, and quantises it at once
// where the base is quantised; ranks that share an array gather it.
void lower_load(const JobContext& job, ProgramId program, const std::vector<ParamSource>& sources,
                const std::vector<uint64_t>& file_bytes);

// Gathers an array over `elements` elements, so that all sharers have all of it once each has its part in place.
void allgather(const JobContext& job, Emitter& e, const ShardedArray& sharded, int64_t elements);

}  // namespace snug
