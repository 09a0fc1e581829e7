// Finds where model and adapter lie, and reports on them before they are used.
#pragma once

#include "api/options.h"
#include "comm/comm.h"
#include "plan/lowering/compile.h"

namespace snug {

// Finds the directories of model and adapter, where they were given as ids of Hugging Face's hub in its local cache,
// and says so on standard error; a GGUF file is imported to --cache-dir first, where it has not been yet, and a model
// that api/import.h reads, where its weights are needed. Directories with a tokenizer and nothing else are found where
// that is all that is needed. UserError that says what lies there, if they are none of these.
enum class Needed { Weights, Config, Tokenizer };
void find_inputs(JobConfig& options, Needed needed = Needed::Weights);

// If an adapter is named and no model, takes the base that its adapter_config.json names, and says so on standard
// error.
void take_adapters_base(JobConfig& options);

// Throws UserError in all launched processes unless they use one checkpoint: of a run that goes on, a process may have
// found a newer one to be the last.
void agree_on_inputs(const JobConfig& options, Comm& launched);

// Returns a line for each thing in the model's files that is passed over, and for dropout of a model that is trained.
std::vector<std::string> notes_of(const JobSpec& spec);

}  // namespace snug
