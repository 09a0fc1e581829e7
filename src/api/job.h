// Makes of options what is compiled.
#pragma once

#include "api/advice.h"
#include "api/limits.h"
#include "api/options.h"
#include "api/target.h"
#include "format/prompt_format.h"
#include "model/model_config.h"
#include "plan/search/fit.h"
#include "train/session.h"

namespace snug {

// Return the configuration of the options' model, as one that gives scores where the objective, or the adapter, asks
// for that: as the files have it, and without its tower where the data has no images. Throw UserError where they ask
// for different things.
ModelConfig whole_model_config_of(const JobConfig& options);
ModelConfig model_config_of(const JobConfig& options);

// Returns a token to fill up texts with that are scored: the model's own, if no text ends with it, as readers take the
// last token that is another one for a text's last. `ends` are tokens with which texts end.
int64_t pad_token_of(const JobConfig& options, const std::vector<int64_t>& ends);

// Returns the job without cut and strategy; reads config.json, the adapter's configuration and the headers of weight
// files.
JobSpec make_job(const JobConfig& options, Purpose purpose);
// Refuses a model that gives a text a score, as make_job() does: for commands that read a tokenizer before.
void require_logits(const JobConfig& options);

// Returns the tokens of the model with --adapter, as some adapters bring their own vocabulary.
ModelTokens model_tokens(const JobConfig& options);

// Returns the GPUs to run on, of a target with GPUs: for a run those of this machine, whatever machine prices it.
const Cards& cards_of(const Target& target, PlanMode mode);

// Settles --batch-size and --ranks. A batch size that is not given becomes 16, or the next multiple of the ranks. Ranks
// that are not given become one for each of the GPUs, on all --nodes or on the machine of each launched process, which
// the processes of a machine share; or one in each process. Throws UserError if launched processes would not all have
// as many ranks, or are not alike (Target::require_alike()).
void resolve_ranks(JobConfig& options, const Target& target, PlanMode mode, Comm* launched = nullptr);

// Returns what the user pinned of cut and strategy, for a job whose ranks are settled.
Choices choices_of(const JobConfig& options);

// Returns the rates of --machine, else rough ones, for a rank with this many threads.
Pricing pricing_of(const JobConfig& options, const Target& target, int threads);

// Returns the threads of each of `node_ranks` ranks of this machine: --threads, or their share of the cores that this
// process may use; if a launcher started it, of those that it has without the launcher's binding.
int thread_count(const JobConfig& options, int node_ranks = 1, bool launched = false);

struct Planned {
  Target target;
  PlanMode mode;
  JobSpec spec;  // with the cut and strategy of `shown`
  Compiled compiled{};
  uint64_t checkpoint_bytes = 0;  // what all ranks save together takes on the disk, for a job that trains
  FitResult fit{};
  Caps free, caps;                                 // without the user's own caps, and with them
  Pricing pricing;                                 // with the threads that each rank runs with
  std::optional<std::vector<Alternative>> more{};  // with more memory, if something fits and the mode looks for it
  std::optional<Arrangement> less{};               // with less memory, on these conditions too
  std::vector<Change> changes{};                   // if nothing fits
  // Returns the arrangement that is chosen; if none fits, the one that comes nearest.
  const Arrangement& shown() const;
};

// Searches the arrangements of a job with settled ranks; the ranks of a launched job find equal ones.
Planned plan_job(JobSpec spec, const JobConfig& options, Target target, PlanMode mode, Comm* launched = nullptr);
// Plans training; `saved` is what is restored, if other ranks saved it.
Planned plan_training(JobSpec spec, const JobConfig& options, Target target, bool evaluate, PlanMode mode,
                      Comm* launched = nullptr, std::optional<SavedState> saved = std::nullopt);

// Throws CapacityError if no arrangement fits, which says what the nearest needs, what is allowed and what would help.
void require_fit(const Planned& planned, const JobConfig& options);

// Returns words for a need's cap: "allowed" by an option, "free", or "free within ulimit -v".
std::string limit_word(const JobConfig& options, const Need& need);

// Returns the session of a rank of a planned job, in arenas as planned, on the GPU of this number if the job is on
// GPUs. It must be called on the thread that runs it, by all ranks together.
Session rank_session(const Planned& planned, const JobConfig& options, int rank, int device, Comm* comm);

}  // namespace snug
