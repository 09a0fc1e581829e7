// From options to what is compiled.
#pragma once

#include "cli/advice.h"
#include "cli/limits.h"
#include "cli/options.h"
#include "cli/target.h"
#include "format/prompt_format.h"
#include "plan/search/fit.h"
#include "train/session.h"

namespace snug {

// The job without cut and strategy; reads config.json, the adapter's configuration and the headers of weight files.
JobSpec make_job(const Options& options, Purpose purpose);

// The tokens of the model with --adapter: some bring a vocabulary of their own.
ModelTokens model_tokens(const Options& options);
// The adapter that is trained: of --adapter, or of the lora options.
PeftConfig adapter_of(const Options& options);
// The lora options as that adapter has them.
void take_adapter(Options& options, const PeftConfig& adapter);

// Of a target with GPUs those that there are to run on: here, of a run, whatever machine it is priced by.
const Cards& cards_of(const Target& target, PlanMode mode);

// Where --batch-size names no number: 16, or the next multiple of the ranks. Where --ranks names none: one for each of
// the GPUs, on all --nodes, or on the machine of each launched process, which those of one machine share; or one, in
// each process. UserError if launched processes would not all have the same number, on the same ground.
void resolve_ranks(Options& options, const Target& target, PlanMode mode, Comm* launched = nullptr);

// What the user pinned of cut and strategy, of a job whose ranks are settled.
Choices choices_of(const Options& options);

// Rates of --machine, else rough ones; for a rank with so many threads.
Pricing pricing_of(const Options& options, const Target& target, int threads);

// Threads of each of so many ranks of this machine: --threads, or their share of the cores that this process may use;
// where a launcher started it, of those that it has without the launcher's binding.
int thread_count(const Options& options, int node_ranks = 1, bool launched = false);

struct Planned {
  Target target;
  PlanMode mode;
  JobSpec spec;  // with the cut and strategy of `shown`
  Compiled compiled{};
  uint64_t checkpoint_bytes = 0;  // on the disk, of what all ranks save together; of a job that trains
  FitResult fit{};
  Caps free, caps;                                 // without the user's own caps, and with them
  Pricing pricing;                                 // and the threads that each rank runs with
  std::optional<std::vector<Alternative>> more{};  // memory, if something fits and the mode is to look
  std::optional<Arrangement> less{};               //   likewise
  std::vector<Change> changes{};                   // if nothing fits
  // The arrangement that is chosen; where none fits, what comes nearest.
  const Arrangement& shown() const;
};

// Searches the arrangements of a job, whose options' ranks are settled; the ranks of a launched one find the same.
Planned plan_job(JobSpec spec, const Options& options, Target target, PlanMode mode, Comm* launched = nullptr);
// Of training; `saved`: what is restored, if other ranks saved it.
Planned plan_training(JobSpec spec, const Options& options, Target target, bool evaluate, PlanMode mode,
                      Comm* launched = nullptr, std::optional<SavedState> saved = std::nullopt);

// CapacityError that says what the nearest arrangement needs, what is allowed and what would help, if none fits.
void require_fit(const Planned& planned, const Options& options);

// What a need's cap means to a reader: "allowed" by an option, "free", or "free within ulimit -v".
std::string limit_word(const Options& options, const Need& need);

// The session of a rank of a planned job, in arenas as planned, on the GPU of this number if the job is on GPUs. On the
// thread that runs it; all ranks at the same time.
Session rank_session(const Planned& planned, const Options& options, int rank, int device, Comm* comm);

}  // namespace snug
