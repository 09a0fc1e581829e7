// All programs of a job, packed into one arena a space: what `plan` prints and `train` runs.
#pragma once

#include <map>

#include "plan/lowering/export.h"
#include "plan/lowering/persist.h"
#include "plan/lowering/update.h"
#include "plan/spec/sources.h"

namespace snug {

enum class Purpose : uint8_t { Train, Evaluate, Generate, Merge };

// Everything that decides the programs.
struct JobSpec {
  Purpose purpose = Purpose::Train;
  bool outline = false;  // what repeats alone, to look at arrangements: neither verified nor hashed, never run
  ModelSpec model;
  ParamTable table;
  std::optional<PeftConfig> adapter{};  // that is trained
  WeightSources sources;
  Numerics numerics;
  Cut cut;
  Strategy strategy;
  int rank = 0;                         // of cut.ranks
  std::optional<SavedState> saved;      // Train: what is restored; without it, what this rank would save
  bool evaluate = false;                // Train: evaluation between steps
  int64_t cache_positions = 0;          // Generate: tokens of prompt and reply together
  std::optional<DType> export_dtype{};  // of a whole model that is written, if not each tensor's own in the sources
};

// By ParamId. What is merged stays in its file unless it is quantized.
std::vector<Form> forms_of(const JobSpec& spec);

// The programs of a set by what they do; a job has those that its purpose needs.
enum class Task : uint8_t {
  Load,     // sources -> parameters, zero state
  Restore,  // the files of `save` -> trainable parameters and state
  Pass,     // forward and backward of all passes, where they are one program
  First,    // ... and of the first, a middle and the last pass where each is one
  Middle,
  Last,
  PassDeferred,  // Pass and First where the update of the step before is deferred into them
  FirstDeferred,
  Update,
  Flush,    // the deferred update, for who needs the weights before the next step
  Reapply,  // the update that was made within the backward, where clipping changes it
  Evaluate,
  Save,     // trainable parameters and state -> files
  Export,   // adapter or model -> files
  Prefill,  // up to kPrefillTokens of a prompt into the caches, and as many rows behind them as are missing to that
  Decode,   // one token
};
inline constexpr int64_t kPrefillTokens = 64;
std::string_view name(Task task);
// Of Pass or First.
constexpr Task pending(Task task) { return task == Task::Pass ? Task::PassDeferred : Task::FirstDeferred; }

// What tells the programs of a task apart.
struct ProgramKey {
  Task task{};
  bool in_back_buffer = false;  // where state is (Storage::swap_buffers()), if the program differs with that
  int shape = 0;                // of the cut, if it is a pass
  auto operator<=>(const ProgramKey&) const = default;
};

struct Compiled {
  ProgramSet set;
  MemoryPlan plan;
  std::map<ProgramKey, ProgramId> programs;
  std::vector<Task> passes;                           // what repeats, in this order: of a step, all before the update
  OutputFiles saved, exported;                        // files of Save and of Export
  std::vector<std::filesystem::path> restored_files;  // of Restore
  UpdateProgram update;
  // What this rank owns of each parameter, by ParamId: elements, and their bytes.
  struct Owned {
    Span span;                    // of the parameter
    Operand weight;               // as stored
    Operand gradient;             // of trainable parameters, between the last pass and the update that follows it;
                                  // nothing where weights are updated in the backward
    std::vector<Operand> scales;  // of quantized parameters: the fp32 numbers that scale them
  };
  std::vector<Owned> owned;
  uint64_t hash = 0;             // of programs and plan
  uint64_t collective_hash = 0;  // of all collectives in their order: the same on all ranks of a job

  bool has(Task task) const { return programs.contains({task}); }
  ProgramId at(Task task, bool in_back_buffer = false, int shape = 0) const {
    const auto found = programs.find({task, in_back_buffer, shape});
    return found != programs.end() ? found->second : programs.at({task, false, shape});
  }
};

// Pure but for the facts: equal specs give equal programs on every machine. Every result but an outline has passed
// verify().
Compiled compile(const JobSpec& spec, const OpFacts& facts);

// Of a job that trains: what Task::Save of all its ranks writes together, as it lies on a disk.
uint64_t saved_bytes(const JobSpec& spec, const OpFacts& facts);

}  // namespace snug
