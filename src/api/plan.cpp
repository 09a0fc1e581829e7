#include "api/plan.h"

#include <algorithm>

#include "api/checkpoint_choice.h"
#include "api/corpus.h"
#include "api/image_cache.h"
#include "api/image_job.h"
#include "api/inputs.h"
#include "api/learning.h"
#include "api/no_effect.h"
#include "api/objective.h"
#include "api/run.h"
#include "base/option_name.h"
#include "base/parallel.h"
#include "base/say.h"

namespace snug {

Plan Job::plan() const {
  JobConfig options = config_;
  refuse_disk_dir(options, PlanMode::Look);
  Target target(options);
  target.say_strange_cards();
  resolve_ranks(options, target, PlanMode::Look);
  std::optional<DataSummary> data;
  std::vector<std::string> notes;
  const auto add = [&](std::vector<std::string> more) { std::ranges::move(more, std::back_inserter(notes)); };
  Corpus corpus;  // held while free memory is measured, as a run holds it
  if (!options.data.empty()) {
    corpus = read_corpus(options, {});
    note_found(corpus, options);
    const BlockStream stream(corpus.training, corpus.training_samples, packing_options(options),
                             {1, 1, options.batch_size}, run_length(options));
    data = summarise(stream);
    add(corpus.notes);
    add(learning_notes(stream, model_config_of(options).spec, options));
    if (corpus.validates())
      add(evaluation_notes(validation_source(corpus, options, 1, 1, 0).stream().report(), options, "validation"));
  } else {
    options.found.block_patches = patches_of_tokens(options);
  }
  JobSpec spec = make_job(options, Purpose::Train);
  if (data) spec.cut.short_eighths = short_passes(data->filled(options.sequence_length));
  const ImageCache cache = find_image_cache(spec, corpus, options, target, PlanMode::Look, nullptr);
  use_image_cache(cache, spec, corpus, options);
  JobsBefore before{look_at_reference(spec, options, target),
                    plan_embedding(cache, spec, options, target, PlanMode::Look, nullptr)};
  Planned planned =
      plan_training(std::move(spec), options, std::move(target), !options.validation.empty(), PlanMode::Look);
  add(options_without_effect(options, {.cut = planned.spec.cut, .job = &planned.spec}));
  add(notes_of(planned.spec));
  return {std::move(options), std::move(planned), data, std::move(before), std::move(notes)};
}

Job::Job(JobConfig config) : config_(std::move(config)), used_(find_job(config_)) {}

Job Job::of_found(JobConfig config) {
  Job job;
  job.config_ = std::move(config);
  return job;
}

FileLock find_job(JobConfig& config, Needed needed, bool needs_model) {
  set_log_format(config.log_format == "json" ? LogFormat::Json : LogFormat::Text);
  require_memory_for_process(thread_count(config));
  FileLock used = choose_checkpoint(config);
  take_adapters_base(config);
  if (config.model.empty() && config.resume)
    user_error("{}: found no job.yaml, expected a run to go on with",
               config.out.empty() ? option_name("out") : config.out);
  if (config.model.empty() && needs_model)
    user_error("{} is required: a model directory in Hugging Face's layout, its id, or a GGUF file",
               option_name("model"));
  find_inputs(config, needed);
  set_threads(thread_count(config));
  return used;
}

void require_fit(const Plan& plan) {
  const auto require = [&](const std::optional<Planned>& job, const std::string& what) {
    if (job) try {
        require_fit(*job, plan.config);
      } catch (const CapacityError& error) {
        throw CapacityError(fmt::format("{}: {}", what, error.what()));
      }
  };
  require_fit(plan.planned, plan.config);
  const bool teaches = !plan.config.teacher.empty();
  require(plan.before.reference, teaches ? "teacher " + plan.config.teacher : "reference " + plan.config.reference);
  require(plan.before.embedding, "the rows of images");
}

}  // namespace snug
