#include "api/resumed_run.h"

#include <fmt/ranges.h>
#include <algorithm>

#include "api/job_file.h"
#include "api/run_directory.h"
#include "api/saving.h"
#include "base/option_name.h"
#include "format/generation_config.h"
#include "plan/lowering/fingerprint.h"
#include "plan/lowering/persist.h"

namespace snug {
namespace {

// Derives the rest of a cut that the command line names in part: what the run's own file has was derived from the old
// cut.
void derive_again(JobConfig& options, const JobConfig& before) {
  const auto named = [&](const char* key) { return options.flags.contains(key); };
  const bool micro = named("micro_batch_size"), passes = named("gradient_accumulation_steps");
  if (micro && !passes && options.gradient_accumulation_steps == before.gradient_accumulation_steps)
    options.gradient_accumulation_steps.reset();
  if (passes && !micro && options.micro_batch_size == before.micro_batch_size) options.micro_batch_size.reset();
}

// Refuses another adapter: the run's own is restored, whatever it began from.
void refuse_other_adapter(const JobConfig& options, const std::filesystem::path& checkpoint) {
  JobConfig before;
  const std::filesystem::path job = std::filesystem::path(options.out) / "job.yaml";
  if (options.adapter.empty() || !is_file(job)) return;
  read_job_file(job.string(), before);
  const auto plain = [](const std::string& path) { return std::filesystem::weakly_canonical(path); };
  const std::string& given = adapter_as_given(options);
  if (given == before.adapter || (!before.adapter.empty() && plain(given) == plain(before.adapter))) return;
  user_error("adapter: found {}, expected {}, as in {}: {} goes on with the adapter of {}; another {} begins anew",
             given, before.adapter.empty() ? "nothing" : before.adapter, job.string(), option_name("resume"),
             checkpoint.string(), option_name("out"));
}

}  // namespace

void keep_cut_of_run(JobConfig& options) {
  const std::filesystem::path job = std::filesystem::path(options.out) / "job.yaml";
  if (!options.resume || !is_file(job)) return;
  JobConfig before;
  read_job_file(job.string(), before);
  derive_again(options, before);
  const bool named = options.micro_batch_size || options.gradient_accumulation_steps;
  const bool own = options.micro_batch_size == before.micro_batch_size &&
                   options.gradient_accumulation_steps == before.gradient_accumulation_steps;
  if (options.batch_size != before.batch_size || options.ranks != before.ranks) {
    if (own) options.micro_batch_size = options.gradient_accumulation_steps = std::nullopt;
  } else if (!named) {
    options.micro_batch_size = before.micro_batch_size;
    options.gradient_accumulation_steps = before.gradient_accumulation_steps;
  }
}

void keep_ends_of_run(const JobConfig& options, Corpus& corpus) {
  const std::filesystem::path own = std::filesystem::path(options.out) / kRunFormat / "generation_config.json";
  const RecordKinds& kinds = corpus.training.kinds();
  if (!options.resume || !is_file(own) || !(kinds.conversations || kinds.texts)) return;
  std::vector<std::string> notes;
  const auto ids =
      parse_generation_config(read_text(own, kMaxConfigBytes), own.string(), model_tokens(options).vocabulary, notes);
  if (!ids) return;
  const std::vector<int32_t> before(ids->begin(), ids->end());
  std::vector<int32_t>& now = corpus.prompt_format.end_tokens;
  if (std::ranges::is_permutation(before, now)) return;
  corpus.notes.push_back(fmt::format(
      "tokens that end a reply are {} by what model and tokenizer say now, and {} since the run began ({}): "
      "it keeps these",
      fmt::join(now, ", "), fmt::join(before, ", "), own.string()));
  now = before;
}

std::optional<SavedState> saved_by_others(const JobConfig& options, const JobSpec& spec) {
  const Checkpoints checkpoints(options.out, options.keep);
  const auto last = options.resume ? checkpoints.last() : std::nullopt;
  if (!last) return std::nullopt;
  SavedState saved = checkpoints.of_last([&] { return find_saved_state(*last); });
  const bool by_as_many = saved.files.size() == static_cast<size_t>(options.ranks);
  if (by_as_many && (options.ranks == 1 || !restores_of_others(spec.table, spec.numerics))) return std::nullopt;
  return saved;
}

JobSpec job_of_run(const JobConfig& options, const Fields& data, const Heartbeat& heartbeat) {
  const Checkpoints checkpoints(options.out, options.keep);
  const auto last = options.resume ? checkpoints.last() : std::nullopt;
  if (!last) return make_job(options, Purpose::Train);
  const Fields saved = checkpoints.last_state().fields;
  Fields now = saved;
  for (Field& field : now)  // first, as no other option of the adapter matters without it
    if (field.name == "method") field.value = options.method;
  refuse_other_fields(now, saved, *last);
  refuse_other_adapter(options, *last);
  JobSpec spec = make_job(options, Purpose::Train);
  require_weights(spec.sources);
  now = fields_of(spec);
  now.push_back(weights_field(spec, heartbeat));
  now.insert(now.end(), data.begin(), data.end());
  refuse_other_fields(now, saved, *last);
  return spec;
}

}  // namespace snug
