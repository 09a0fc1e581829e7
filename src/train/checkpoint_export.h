// Exports the trained parameters of a checkpoint without the optimizer's state.
#pragma once

#include <filesystem>
#include <functional>

#include "base/heartbeat.h"
#include "model/params.h"
#include "plan/spec/sources.h"

namespace snug {

// Writes the trained parameters that a checkpoint holds to a safetensors file, each from all the bits it has there,
// rounded to dtype(its id); behind them, of `base`, tensors that are no parameter's, as they are. `table` is that of
// the job that trained, whatever ranks it had. Throws UserError for files that are damaged or lack a parameter.
void write_trained(const std::filesystem::path& checkpoint, const ParamTable& table,
                   const std::function<DType(ParamId)>& dtype, const std::filesystem::path& file,
                   const WeightSources& base = {}, const Heartbeat& heartbeat = {});

}  // namespace snug
