#include "cli/reference_model.h"

#include <algorithm>

#include "cli/objective.h"
#include "cli/use.h"
#include "format/model_path.h"
#include "train/step_objective.h"

namespace snug {
namespace {

// Returns the options with that model in the place of the run's own.
Options options_of_reference(const Options& options) {
  Options other = options;
  try {
    other.model = find_model_directory(options.reference).string();
  } catch (const UserError& error) {
    user_error("reference: found '{}', expected auto, adapter or a model: {}", options.reference, error.what());
  }
  other.reference = "auto";
  for (std::string* none : {&other.adapter, &other.given_model, &other.given_adapter, &other.family, &other.checkpoint})
    none->clear();
  other.new_tokens.clear();
  other.given_embeddings = false;
  other.init = "pretrained";
  other.replicas = 1;
  other.base_format.reset();
  return other;
}

}  // namespace

JobSpec reference_job(const Options& options, const ModelSpec& model) {
  const Options other = options_of_reference(options);
  JobSpec spec = make_job(other, Purpose::Evaluate);
  if (spec.model.vocabulary != model.vocabulary)
    user_error("reference: '{}' has a vocabulary of {} tokens, expected that of the model, {}: it scores the same ids",
               options.reference, spec.model.vocabulary, model.vocabulary);
  spec.cut.micro_batch = options.micro_batch_size.value_or(1);
  return spec;
}

std::optional<Planned> plan_reference(const JobSpec& spec, const Options& options, Comm* launched) {
  if (spec.objective.reference != Reference::Model) return std::nullopt;
  return plan_use(reference_job(options, spec.model), options_of_reference(options), launched);
}

std::optional<Planned> look_at_reference(const JobSpec& spec, const Options& options, const Target& target) {
  if (spec.objective.reference != Reference::Model) return std::nullopt;
  return plan_job(reference_job(options, spec.model), options_of_reference(options), target, PlanMode::Look);
}

ScoredPasses score_by_another(const Planned& planned, const Options& options, int rank, int place, Comm* comm,
                              std::span<const ReferencedSamples> all, const ReferenceOptions& reference) {
  const Cut& cut = planned.spec.cut;
  PackingOptions packing = packing_options(options, heartbeat_of(comm));
  packing.shuffle = false;
  std::list<StreamSource> sources;
  std::list<std::unique_ptr<StepObjective>> objectives;
  bool known = true;
  for (const ReferencedSamples& of : all) {
    const StreamSource& source = sources.emplace_back(
        of.dataset, of.samples, packing, StepShape{1, cut.ranks, cut.micro_batch}, RunLength{std::nullopt, 1}, rank);
    objectives.push_back(make_step_objective(planned.spec.objective, of.dataset, source.stream(), &of.references));
    known = known && objectives.back()->knows_all();
  }
  ScoredPasses scored;
  if (known) return scored;
  Session session = rank_session(planned, options, rank, place, comm);
  session.load();
  auto objective = objectives.begin();
  for (StreamSource& source : sources) {
    if (scored.interrupted) break;
    const ScoredPasses more = score_references(session, source, **objective++, reference);
    scored = {scored.passes + more.passes, more.interrupted};
  }
  return scored;
}

}  // namespace snug
