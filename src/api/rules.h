// Turns options and adapters' files into the rules by which parameters are trained (model/params.h).
#pragma once

#include "api/options.h"
#include "plan/lowering/compile.h"
#include "plan/spec/adapter_files.h"

namespace snug {

// Returns the adapter that is trained: that of --adapter, or of the lora options.
PeftConfig adapter_of(const JobConfig& options);
// Returns the configuration that is written: of one that begins with parts of the base, twice the rank at the same
// scale.
PeftConfig written_adapter(const JobConfig& options);
// Sets the lora options to those of the adapter.
void take_adapter(JobConfig& options, const PeftConfig& adapter);

// Returns the rules of a job that trains. UserError for options of another method, and for those that differ from the
// adapter that is continued.
ParamRules rules_of(const JobConfig& options);

// Gives the model a head of its own where the rules train one that is the embedding apart from it, as PEFT does.
void fit_to_rules(ModelSpec& model, const ParamRules& rules);

// Refuses to train what an adapter's files hold besides its halves and the modules that it says are trained whole.
void refuse_to_train(const AdapterFiles& files, const PeftConfig& adapter);

// Sets the path of the file of a job's initial halves, in the cache, where the job has one and the base's files are
// there.
void place_initial_halves(JobSpec& spec, const JobConfig& options);
// Computes that file unless it is there. The first process says so.
void make_initial_halves(const JobSpec& spec, const Heartbeat& heartbeat);

// Adds lines on what the rules make of the model. `tied` says whether the head was the embedding before.
void note_rules(JobSpec& spec, bool tied);

// Returns words for what is trained: "lora, rank 16".
std::string method_words(const JobSpec& spec);

}  // namespace snug
