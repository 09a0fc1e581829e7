#include "api/reference_model.h"

#include <algorithm>

#include "api/objective.h"
#include "api/use.h"
#include "format/model_path.h"
#include "train/step_objective.h"

namespace snug {
namespace {

// Returns the option that names the other model, and what it says.
std::string_view option_of(const JobConfig& options) { return options.teacher.empty() ? "reference" : "teacher"; }
const std::string& name_of(const JobConfig& options) {
  return options.teacher.empty() ? options.reference : options.teacher;
}

// Returns the options with that model in the place of the run's own.
JobConfig options_of_reference(const JobConfig& options) {
  JobConfig other = options;
  try {
    other.model = find_model_directory(name_of(options)).string();
  } catch (const UserError& error) {
    user_error("{}: found '{}', expected {}a model: {}", option_of(options), name_of(options),
               options.teacher.empty() ? "auto, adapter or " : "", error.what());
  }
  other.reference = "auto";
  if (!options.teacher.empty()) {
    const JobConfig none;
    other.objective = none.objective;  // reference_job() gives it a part of the run's
    other.teacher = none.teacher;
    other.reference_cache = none.reference_cache;
    other.distill_beta = none.distill_beta;
    other.distill_temperature = none.distill_temperature;
    other.distill_weight = none.distill_weight;
    other.teacher_top_k = none.teacher_top_k;
  }
  for (std::string* none :
       {&other.adapter, &other.found.given_model, &other.found.given_adapter, &other.family, &other.checkpoint})
    none->clear();
  other.found.new_tokens.clear();
  other.found.given_embeddings = false;
  other.init = "pretrained";
  other.replicas = 1;
  other.base_format.reset();
  return other;
}

// Refuses a teacher whose ids are other tokens than the model's, where both have tokenizers.
void refuse_other_tokens(const JobConfig& options, const std::string& teacher, int64_t vocabulary) {
  const std::filesystem::path own = tokenizer_directory(options);
  if (!has_tokenizer(own) || !has_tokenizer(teacher)) return;
  const Tokenizer ours = Tokenizer::load(own), theirs = Tokenizer::load(teacher);
  const auto word = [](const std::optional<std::string>& token) {
    return token ? fmt::format("'{}'", *token) : std::string("nothing");
  };
  for (int32_t id = 0; id < vocabulary; id++)
    if (const auto a = ours.token(id), b = theirs.token(id); a != b)
      user_error("teacher: '{}' has {} as token {}, expected {}, which the model has: it speaks of the same ids",
                 options.teacher, word(b), id, word(a));
}

}  // namespace

JobSpec reference_job(const JobConfig& options, const ModelSpec& model) {
  const JobConfig other = options_of_reference(options);
  JobSpec spec = make_job(other, Purpose::Evaluate);
  if (spec.model.vocabulary != model.vocabulary)
    user_error("{}: '{}' has a vocabulary of {} tokens, expected that of the model, {}: it scores the same ids",
               option_of(options), name_of(options), spec.model.vocabulary, model.vocabulary);
  if (!options.teacher.empty()) {
    if (options.teacher_top_k > model.vocabulary)
      user_error("teacher_top_k: found {}, expected at most {}, the tokens of the vocabulary", options.teacher_top_k,
                 model.vocabulary);
    refuse_other_tokens(options, other.model, model.vocabulary);
    spec.objective = objective_of(options);
    spec.objective.reference = Reference::Auto;
  }
  spec.cut.micro_batch = options.micro_batch_size.value_or(1);
  return spec;
}

std::optional<Planned> plan_reference(const JobSpec& spec, const JobConfig& options, Comm* launched) {
  if (spec.objective.reference != Reference::Model) return std::nullopt;
  return plan_use(reference_job(options, spec.model), options_of_reference(options), launched);
}

std::optional<Planned> look_at_reference(const JobSpec& spec, const JobConfig& options, const Target& target) {
  if (spec.objective.reference != Reference::Model) return std::nullopt;
  return plan_job(reference_job(options, spec.model), options_of_reference(options), target, PlanMode::Look);
}

ScoredPasses score_by_another(const Planned& planned, const JobConfig& options, int rank, int place, Comm* comm,
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

ScoredPasses ask_another(const Planned& planned, const JobConfig& options, int rank, int place, Comm* comm,
                         std::span<const TaughtSamples> all, TeacherFile& teacher, const ReferenceOptions& reference) {
  ScoredPasses scored;
  if (teacher.known() == teacher.documents()) return scored;
  const Cut& cut = planned.spec.cut;
  PackingOptions packing = packing_options(options, heartbeat_of(comm));
  packing.shuffle = false;
  Session session = rank_session(planned, options, rank, place, comm);
  session.load();
  for (const TaughtSamples& of : all) {
    if (scored.interrupted) break;
    StreamSource source(of.dataset, of.samples, packing, {1, cut.ranks, cut.micro_batch}, {std::nullopt, 1}, rank);
    const ScoredPasses more = ask_teacher(session, source, of.dataset, teacher, reference);
    scored = {scored.passes + more.passes, more.interrupted};
  }
  return scored;
}

}  // namespace snug
