// Exports the trained parameters of a checkpoint without the optimizer's state.
#pragma once

#include <filesystem>
#include <functional>

#include "base/heartbeat.h"
#include "model/params.h"
#include "plan/spec/adapter_files.h"
#include "plan/spec/sources.h"

namespace snug {

// Writes the trained parameters that a checkpoint holds to a safetensors file, each from all the bits it has there,
// rounded to dtype(its id). `table` is that of the job that trained, whatever ranks it had. Of an adapter that began
// with parts of the base, and of a model, `base` must be given: what an adapter began with is taken off; what of a
// model is not trained, and tensors that are no parameter's, are copied from the base's files. Throws UserError for
// files that are damaged or lack a parameter.
void write_trained(const std::filesystem::path& checkpoint, const ParamTable& table,
                   const std::function<DType(ParamId)>& dtype, const std::filesystem::path& file,
                   const WeightSources* base = nullptr, const Heartbeat& heartbeat = {});

// Throws UserError for a half that is missing from an adapter or has another shape than the table's.
void require_halves(const AdapterFiles& adapter, const ParamTable& table);

// Writes the tensors of the plain adapter that stands for one whose first halves are taken off of the base: every half
// beside that with which it began, as write_trained() does, and all else as it is. `base` has the first halves' file.
// Throws UserError as require_halves() does.
void write_plain_adapter(const AdapterFiles& adapter, const ParamTable& table, const WeightSources& base,
                         const std::filesystem::path& file);

}  // namespace snug
