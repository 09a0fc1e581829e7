// Exports the trained parameters of a checkpoint without the optimizer's state.
#pragma once

#include <filesystem>
#include <functional>

#include "base/heartbeat.h"
#include "plan/spec/sources.h"

namespace snug {

// Writes the trained parameters that a checkpoint holds to a safetensors file, each from all the bits it has there,
// rounded to dtype(its id). `table` is that of the job that trained, whatever ranks it had. Of an adapter
// that began with parts of the base, and of a model, `base` must be given: what an adapter began with is taken off, and
// what of a model is not trained is copied from the base's files. Throws UserError
// for files that are damaged or lack a parameter.
void write_trained(const std::filesystem::path& checkpoint, const ParamTable& table,
                   const std::function<DType(ParamId)>& dtype, const std::filesystem::path& file,
                   const WeightSources* base = nullptr, const Heartbeat& heartbeat = {});

}  // namespace snug
