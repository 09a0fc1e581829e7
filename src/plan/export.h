// The program that writes what others load: an adapter, or a model.
#pragma once

#include "plan/transfer.h"

namespace snug {

// Adapters in fp32 (one file), or a whole model in `dtype`, in files of at most `max_bytes`.
Output adapter_output(const JobContext& job);
Output model_output(const JobContext& job, DType dtype, uint64_t max_bytes);

// Gathers group after group; rank 0 writes. A weight that is coded is written as products see it. In a model adapters
// are merged: W + scale B A, in fp32, rounded once to what the file holds.
void lower_export(const JobContext& job, ProgramId program, Output output);

}  // namespace snug
