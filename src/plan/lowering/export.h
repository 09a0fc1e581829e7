// Emits the program that writes what other programs load: an adapter, or a model.
#pragma once

#include "plan/lowering/transfer.h"
#include "plan/spec/sources.h"

namespace snug {

// Returns the output of adapters in fp32 (one file). Those that began with parts of the base have twice their rank:
// what they began with is taken off.
Output adapter_output(const JobContext& job, const WeightSources& sources);
// Returns the output of a whole model, in files of at most `max_bytes`. All of it is in `dtype` if that is given; else
// each tensor is as the model's files have it, and in the products' dtype where these do not have it as numbers.
// Tensors that are not held are copied from those files, and so are those that belong to no parameter.
Output model_output(const JobContext& job, const WeightSources& sources, std::optional<DType> dtype,
                    uint64_t max_bytes);

// Gathers group after group; rank 0 writes. A quantized weight is written as products see it. In a model adapters are
// merged: W + scale B A, in fp32, rounded once to the file's dtype; W comes from the model's files where it is not
// held. The program's files are those that it writes, then those of the sources.
void lower_export(const JobContext& job, ProgramId program, const WeightSources& sources, Output output);

}  // namespace snug
