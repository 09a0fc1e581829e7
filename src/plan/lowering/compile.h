// Compiles all programs of a job, packed into one arena a space: what `plan` prints and `train` runs.
#pragma once

#include <map>

#include "objective/objective.h"
#include "plan/lowering/export.h"
#include "plan/lowering/persist.h"
#include "plan/lowering/update.h"
#include "plan/spec/sources.h"

namespace snug {

// Embed: what a tower makes of images, for jobs with JobSpec::given_embeddings.
enum class Purpose : uint8_t { Train, Evaluate, Generate, Merge, Embed };

// Holds everything that decides the programs.
struct JobSpec {
  Purpose purpose = Purpose::Train;
  bool step_only = false;  // only what a step repeats, to compare arrangements: neither verified nor hashed, never run
  ModelSpec model;
  ParamTable table;
  ParamRules rules{};  // Train: by which the table was made
  WeightSources sources;
  Numerics numerics;
  ObjectiveOptions objective{};
  Cut cut;
  Strategy strategy;
  int rank = 0;                         // of cut.ranks
  bool given_embeddings = false;        // Train, Evaluate: passes are given what the frozen tower makes of images, of
                                        // which no weight is held
  bool new_adapter = false;             // Train: an adapter that changes nothing yet begins with this run
  std::optional<SavedState> saved;      // Train: what is restored; without it, what this rank would save
  bool evaluate = false;                // Train: evaluation between steps
  int64_t cache_positions = 0;          // Generate: tokens of prompt and reply together; cut.patches: of its images
  std::optional<int64_t> pad_token{};   // of a model that gives scores, where it is written
  std::optional<DType> export_dtype{};  // of a whole model that is written; nothing: each tensor's in the sources
};

// Returns the form of each parameter, by ParamId. A weight that is merged stays in its file unless it is quantized, and
// so do all but the tower's where images are embedded, and the tower's where embeddings are given.
std::vector<Form> forms_of(const JobSpec& spec);

// Names what a program does. A job has the programs that its purpose needs.
enum class Task : uint8_t {
  Load,     // sources -> parameters, zero state
  Restore,  // the files of `save` -> trainable parameters and state
  Pass,     // forward and backward of all passes, where they are one program
  First,    // forward and backward of the first, a middle and the last pass, where each is a program
  Middle,
  Last,
  PassDeferred,  // Pass and First where they also make the update that the step before deferred
  FirstDeferred,
  Update,
  Flush,    // the deferred update, for callers that need the weights before the next step
  Reapply,  // the update that was made within the backward, where clipping changes it
  Evaluate,
  Score,        // log-probabilities under the reference, before the first step
  ToAverage,    // y -> the average of schedule-free training, before what uses_average()
  FromAverage,  // the average -> y, after that
  Save,         // trainable parameters and state -> files
  Export,       // adapter or model -> files
  Prefill,      // up to kPrefillTokens of a prompt into the caches, padded to that number
  Decode,       // one token
  Look,         // the images of a prompt: what the tower makes of them, for the prefills that follow
  Embed,        // images: what the tower makes of them, for the host
};
inline constexpr int64_t kPrefillTokens = 64;
std::string_view name(Task task);
// Returns the task with the deferred update for Pass or First.
constexpr Task pending(Task task) { return task == Task::Pass ? Task::PassDeferred : Task::FirstDeferred; }

// Returns whether the task is about what a run makes of a model, which in schedule-free training is the average.
constexpr bool uses_average(Task task) {
  return task == Task::Evaluate || task == Task::Save || task == Task::Export || task == Task::ToAverage;
}

// Tells the programs of a task apart.
struct ProgramKey {
  Task task{};
  bool in_back_buffer = false;  // where state is (Storage::swap_buffers()), if the program depends on it
  int shape = 0;                // of the cut, if it is a pass
  auto operator<=>(const ProgramKey&) const = default;
};

struct Compiled {
  ProgramSet set;
  MemoryPlan plan;
  std::map<ProgramKey, ProgramId> programs;
  std::vector<Task> passes;                           // the passes of a step in their order, all before the update
  OutputFiles saved, exported;                        // files of Save and of Export
  std::vector<std::filesystem::path> restored_files;  // of Restore
  UpdateProgram update;
  // Holds what this rank owns of a parameter, by ParamId: elements, and their bytes.
  struct Owned {
    Span span;                    // of the parameter
    Operand weight;               // as stored
    Operand gradient;             // of trainable parameters, between the last pass and the update that follows it;
                                  // nothing where weights are updated in the backward
    std::vector<Operand> scales;  // of quantized parameters: the fp32 numbers that scale them
  };
  std::vector<Owned> owned;
  uint64_t hash = 0;             // of programs and plan
  uint64_t collective_hash = 0;  // of all collectives in their order: equal on all ranks of a job

  bool has(Task task) const { return programs.contains({task}); }
  ProgramId at(Task task, bool in_back_buffer = false, int shape = 0) const {
    const auto found = programs.find({task, in_back_buffer, shape});
    return found != programs.end() ? found->second : programs.at({task, false, shape});
  }
};

// Compiles a job. Equal specs and facts give equal programs on every machine. Every result but that of steps alone has
// passed verify().
Compiled compile(const JobSpec& spec, const OpFacts& facts);

// Returns the bytes that the Task::Save programs of a training job's ranks write together, as they lie on a disk.
uint64_t saved_bytes(const JobSpec& spec, const OpFacts& facts);

}  // namespace snug
