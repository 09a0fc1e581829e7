// Declares the tables of what other programs call their options: a row an option, with its verdict, snug's key and how
// its value becomes snug's.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "translate/settings.h"

namespace snug {

// Says what becomes of an option. Refused changes what is trained and ends in exit code 2; Left does not.
enum class Mark : uint8_t { Same, Changed, Decided, Refused, Left };

char letter(Mark mark);  // '=', '~', '.', 'x', 'x'

class Translator;
struct Row;
using Rule = void (*)(Translator&, const Setting&, const Row&);

struct Row {
  std::string_view names;  // with spaces between them; a '*' at an end stands for anything
  Mark mark = Mark::Same;
  // snug's key; for Decided "key: value", which pins it; "@name": it is held, and judged with the others that it needs.
  std::string_view ours = {};
  std::string_view say = {};  // the reason; {option} and {value} are filled in
  Rule rule = nullptr;        // where a value is not simply copied
};

// Holds an option that a program has where nothing is said, if snug's default is another one.
struct Default {
  std::string_view name, value;
  bool always = false;          // written even where it is snug's
  std::string_view tasks = {};  // of which Translator::task() it is, with spaces between them; empty: of all
};

std::span<const Row> rows_of(Dialect dialect);
std::span<const Default> defaults_of(Dialect program);
// Returns the dialects in whose tables an option of this one is looked for, in that order.
std::span<const Dialect> tables_of(Dialect dialect);
// Returns the row of an option; null if no table has it.
const Row* find_row(const Setting& setting);

// Files of a table each.
std::span<const Row> launcher_rows();
std::span<const Row> environment_rows();
std::span<const Row> trainer_rows();
std::span<const Row> llama_factory_rows();
std::span<const Row> llama_recipes_rows();
std::span<const Row> openrlhf_rows();
std::span<const Row> minicpm_rows();
std::span<const Row> axolotl_rows();
std::span<const Row> trl_rows();
std::span<const Row> deepspeed_rows();
std::span<const Row> accelerate_rows();
std::span<const Row> dataset_info_rows();

// What is said of options of which many programs have some.
namespace say {
inline constexpr std::string_view kAttention = "attention goes by tiles";
inline constexpr std::string_view kKernels = "kernels need no choice";
inline constexpr std::string_view kLoading = "weights are read by slices, into where they belong";
inline constexpr std::string_view kSharding = "what is sharded is chosen so that it fits";
inline constexpr std::string_view kWorkers = "data is encoded on all cores, once";
inline constexpr std::string_view kHub = "nothing is sent anywhere";
inline constexpr std::string_view kCode = "no code of a model is ever run";
inline constexpr std::string_view kEvaluation = "evaluation is cut as training is";
inline constexpr std::string_view kProgress = "progress is a line, shown on terminals alone";
inline constexpr std::string_view kMetrics = "steps are in out/metrics.jsonl; snug report shows them";
inline constexpr std::string_view kParallel =
    "snug splits weights, gradients and states over ranks, not layers, tensors or sequences; "
    "batch_size is the same however they are split";
inline constexpr std::string_view kAdapterKind =
    "snug's adapters are LoRA and DoRA; without this option it is translated as that";
inline constexpr std::string_view kLoss = "snug's cross-entropy has label smoothing and z-loss, and nothing else";
inline constexpr std::string_view kOptimizer =
    "snug has AdamW, schedule-free too, Lion, Muon, Adafactor and APOLLO; "
    "state_format: 8bit keeps AdamW's moments in 2 bytes a parameter";
inline constexpr std::string_view kSchedule =
    "snug's schedules are constant, linear, cosine, cosine_with_restarts, polynomial, inverse_sqrt and "
    "warmup_stable_decay";
inline constexpr std::string_view kObjective = "snug's objectives are sft, dpo, orpo, simpo, kto, reward and distill";
inline constexpr std::string_view kTail = "every token of a reply counts alike";
inline constexpr std::string_view kReference =
    "the reference is the model as it is before the first step, and stays so";
inline constexpr std::string_view kPairLength =
    "where a pair is too long both prompts lose tokens at their beginning, and replies none";
inline constexpr std::string_view kData = "say it in the file, as snug reads files as they are";
inline constexpr std::string_view kParts =
    "train_modules and freeze say by modules what full trains: layers.30-31, norm";
inline constexpr std::string_view kImages =
    "sound, films and ways to cut images other than the model's are not supported yet";
inline constexpr std::string_view kVocabulary =
    "tokenizer, vocabulary and rope are the model directory's; change them there";
inline constexpr std::string_view kStored =
    "give the original model and base_format: int8 or nf4, or one stored so, which is read";
inline constexpr std::string_view kBest = "the best checkpoint is kept; checkpoint: best uses it";
inline constexpr std::string_view kGeneration = "nothing is generated while snug trains";
}  // namespace say

}  // namespace snug
