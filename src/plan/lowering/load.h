// The program that begins a run: everything in place.
#pragma once

#include "plan/lowering/transfer.h"

namespace snug {

// Everything that training or evaluation finds in place: parameters by their sources (by ParamId), optimizer state
// zero, the table of rotary angles. Each rank reads its part, group after group, quantised as it comes where the base
// is; who shares an array gathers it.
void lower_load(const JobContext& job, ProgramId program, const std::vector<ParamSource>& sources,
                const std::vector<uint64_t>& file_bytes);

// After every sharer has its part of an array over so many elements in place: all of them have all of it.
void allgather(const JobContext& job, Emitter& e, const ShardedArray& sharded, int64_t elements);

}  // namespace snug
