#include "api/saving.h"

#include "api/new_tokens.h"
#include "api/run_directory.h"
#include "api/text.h"
#include "base/disk.h"
#include "base/option_name.h"
#include "base/rounding.h"
#include "format/side_files.h"
#include "train/export.h"

namespace snug {
namespace {

// The small files beside tensors take this many bytes: state.json, checksums, entries of directories.
constexpr uint64_t kSmallFiles = 64 << 10;

// Returns how often a run of `steps` steps saves at most: it saves at the last step in any case.
int64_t saves_of(const Cadence& cadence, int64_t steps) {
  if (cadence.unit != Cadence::Unit::Steps) return steps;
  return cadence.count == 0 ? 1 : ceil_div(steps, cadence.count);
}

// Returns the bytes that are copied into the directory of a whole model, or of an adapter with a tokenizer of its own.
uint64_t side_bytes(const JobConfig& options) {
  constexpr uint64_t kTokenBytes = 512;  // of a new token's entries, besides its text
  const bool lora = options.method == "lora";
  if (lora && !writes_tokenizer(options)) return 0;
  const std::filesystem::path from = lora ? tokenizer_directory(options) : std::filesystem::path(options.model);
  uint64_t bytes = 0;
  for (const std::string& name : lora ? tokenizer_files(from) : side_files(from))
    bytes += std::filesystem::file_size(from / name);
  for (const AddedToken& token : options.found.new_tokens) bytes += kTokenBytes + 4 * token.content.size();
  return bytes;
}

// Returns the bytes of the largest file of the first rank's checkpoint, as the others' are alike, and of its export.
uint64_t largest_file(const Compiled& compiled) {
  uint64_t bytes = 0;
  for (const OutputFiles* files : {&compiled.saved, &compiled.exported})
    for (const SafetensorsLayout& layout : files->layouts) bytes = std::max(bytes, layout.file_bytes);
  return bytes;
}

}  // namespace

SavingPlan saving_plan(const Planned& planned, const JobConfig& options, std::optional<int64_t> steps) {
  const auto ranks = static_cast<uint64_t>(planned.spec.cut.ranks);
  // The files beside the weights are also written when the run starts.
  const uint64_t copies = planned.spec.purpose == Purpose::Train ? 2 : 1;
  const auto here = static_cast<uint64_t>(planned.caps.ranks_of_node(planned.spec.cut.ranks));
  return {.out = options.out.empty() ? default_out(options) : options.out,
          .keep = options.keep,
          .saves = saves_of(options.save_every, steps.value_or(std::numeric_limits<int32_t>::max())),
          .keeps_best = planned.spec.evaluate,
          .checkpoint_bytes = planned.checkpoint_bytes + ranks * kSmallFiles,
          .export_bytes = planned.compiled.exported.disk_bytes() + copies * (side_bytes(options) + kSmallFiles),
          .largest_file = largest_file(planned.compiled),
          .replaces = options.overwrite,
          .offload_directory = disk_directory(options),
          .offloaded_bytes = here * planned.compiled.plan.reserved_bytes[index(Space::Disk)]};
}

uint64_t saved_in_memory(const Planned& planned, const JobConfig& options) {
  const Purpose purpose = planned.spec.purpose;
  const bool elsewhere = planned.mode == PlanMode::Look && !options.machine.empty();
  const std::filesystem::path out = out_directory(options);
  if (elsewhere || (purpose != Purpose::Train && purpose != Purpose::Merge) || !is_in_memory(existing_part(out)))
    return 0;
  const SavingPlan saving = saving_plan(planned, options, std::nullopt);
  if (purpose == Purpose::Merge) return saving.export_bytes;
  if (saving.keep < 0 && saving.saves > 1)
    user_error("keep: found all, {} is on tmpfs, which is memory: expected a number of checkpoints, or another {}",
               out.string(), option_name("out"));
  return saving.saved_bytes();
}

}  // namespace snug
