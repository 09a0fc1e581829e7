#include "api/objective.h"

#include <algorithm>
#include <chrono>

#include "api/rules.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/option_name.h"
#include "plan/lowering/fingerprint.h"

namespace snug {
namespace {

// Says of which objectives an option is.
struct OfObjective {
  const char* key;
  std::string_view objectives;
  bool used;
};

void refuse_useless(const JobConfig& options, const ObjectiveOptions& objective) {
  const bool dpo = objective.kind == ObjectiveKind::Dpo, pairs = objective.pairs() && !objective.scores();
  const bool smooths =
      dpo && (objective.preference_loss == PreferenceLoss::Cdpo || objective.preference_loss == PreferenceLoss::Robust);
  const bool distills = objective.has_teacher();
  const bool kto = objective.kind == ObjectiveKind::Kto, sft = objective.kind == ObjectiveKind::Sft;
  const OfObjective all[] = {
      {"preference_loss", "objective dpo", dpo},
      {"beta", "objectives dpo, orpo, simpo and kto", pairs || kto},
      {"desirable_weight", "objective kto", kto},
      {"undesirable_weight", "objective kto", kto},
      {"label_smoothing", "objective sft, and preference_loss cdpo and robust of objective dpo", smooths || sft},
      {"z_loss", "objective sft", sft},
      {"nll_weight", "objectives dpo, orpo and simpo", pairs},
      {"simpo_gamma", "objective simpo", objective.kind == ObjectiveKind::SimPo},
      {"center_coefficient", "objective reward", objective.scores()},
      {"reference", "objectives dpo and kto", objective.has_reference()},
      {"reference_cache", "objectives dpo, kto and distill", objective.has_reference() || distills},
      {"teacher", "objective distill", distills},
      {"teacher_top_k", "objective distill", distills},
      {"distill_beta", "objective distill", distills},
      {"distill_temperature", "objective distill", distills},
      {"distill_weight", "objective distill", distills},
  };
  for (const OfObjective& of : all) {
    const OptionSpec& spec = find_option(of.key, "table");
    if (of.used || spec.get(options) == spec.get(JobConfig())) continue;
    user_error("{}: found {}, expected nothing: it is of {}, and this is objective {}{}", of.key, spec.get(options),
               of.objectives, options.objective,
               dpo ? fmt::format(", preference_loss {}", options.preference_loss) : std::string());
  }
}

// Refuses what says how samples of another kind are read or cut.
void refuse_beside_replies(const JobConfig& options) {
  const auto refuse = [&](const char* key, const std::string& found, std::string_view why) {
    user_error("{}: found {}, expected nothing: {} (objective {})", key, found, why, options.objective);
  };
  if (options.long_samples == "split") refuse("long_samples", "split", "what is judged is cut, or dropped");
  if (options.train_on != "assistant") refuse("train_on", options.train_on, "replies are what is judged");
}

Reference reference_of(const JobConfig& options) {
  if (options.reference == "auto") return Reference::Auto;
  if (options.reference == "adapter") {
    if (options.adapter.empty())
      user_error("reference: found adapter, expected auto: without {} there is none to set the model against",
                 option_name("adapter"));
    return Reference::Adapter;
  }
  if (options.reference == "none")
    user_error(
        "reference: found none, expected auto, adapter or a model: objectives dpo and kto need one; orpo and simpo "
        "need "
        "none");
  return Reference::Model;
}

void take_distillation(const JobConfig& options, ObjectiveOptions& objective) {
  if (options.teacher.empty())
    user_error("teacher: found nothing, expected a model: objective distill learns from what it expects");
  objective.reference = Reference::Model;
  objective.distill_beta = options.distill_beta;
  objective.distill_temperature = options.distill_temperature;
  objective.distill_weight = options.distill_weight;
  objective.teacher_top_k = options.teacher_top_k;
}

}  // namespace

ObjectiveOptions objective_of(const JobConfig& options) {
  ObjectiveOptions objective;
  objective.kind = objective_from_name(options.objective);
  objective.preference_loss = preference_loss_from_name(options.preference_loss);
  refuse_useless(options, objective);
  objective.label_smoothing = options.label_smoothing;
  objective.z_loss = options.z_loss;
  if (objective.has_teacher()) take_distillation(options, objective);
  if (!objective.weighs_rows()) return objective;
  refuse_beside_replies(options);
  objective.center_coefficient = options.center_coefficient;
  if (objective.scores()) return objective;
  objective.beta = options.beta.value_or(objective.kind == ObjectiveKind::SimPo ? 2 : 0.1);
  if (objective.label_smoothing >= 0.5)
    user_error(
        "label_smoothing: found {}, expected less than 0.5, as pairs of which half are the wrong way round "
        "teach nothing (objective dpo)",
        objective.label_smoothing);
  objective.nll_weight = options.nll_weight.value_or(objective.kind == ObjectiveKind::Orpo ? 1 : 0);
  if (objective.beta == 0)
    user_error("beta: found 0, expected more: it weighs what is preferred, and with 0 of it {}",
               objective.nll_weight > 0 ? "the cross-entropy alone is left, which is objective sft on chosen replies"
                                        : "nothing is learnt");
  objective.simpo_gamma = options.simpo_gamma;
  objective.desirable_weight = options.desirable_weight;
  objective.undesirable_weight = options.undesirable_weight;
  if (objective.scores_others() && objective.desirable_weight == 0 && objective.undesirable_weight == 0)
    user_error(
        "desirable_weight, undesirable_weight: found 0 for both, expected more for one: nothing would be learnt");
  if (objective.has_reference()) objective.reference = reference_of(options);
  return objective;
}

std::string objective_words(const ObjectiveOptions& objective) {
  std::string words(name(objective.kind));
  const auto add = [&](std::string_view key, double value, bool said) {
    if (said) words += fmt::format(", {} {}", key, value);
  };
  if (objective.kind == ObjectiveKind::Dpo) words += fmt::format(" ({})", name(objective.preference_loss));
  add("beta", objective.beta, objective.weighs_rows() && !objective.scores());
  add("center_coefficient", objective.center_coefficient, objective.center_coefficient > 0);
  add("label_smoothing", objective.label_smoothing, objective.label_smoothing > 0);
  add("z_loss", objective.z_loss, objective.z_loss > 0);
  add("simpo_gamma", objective.simpo_gamma, objective.kind == ObjectiveKind::SimPo);
  add("nll_weight", objective.nll_weight, objective.nll_weight > 0);
  add("desirable_weight", objective.desirable_weight, objective.desirable_weight != 1);
  add("undesirable_weight", objective.undesirable_weight, objective.undesirable_weight != 1);
  if (objective.has_teacher()) {
    add("distill_beta", objective.distill_beta, true);
    add("distill_temperature", objective.distill_temperature, objective.distill_temperature != 1);
    add("distill_weight", objective.distill_weight, objective.distill_weight != 1);
    words += fmt::format("; teacher: another model, of whose tokens the {} most likely are kept before the first step",
                         objective.teacher_top_k);
  }
  constexpr std::string_view kWhose[] = {"the model as it is, without an adapter",
                                         "the model with its adapter as it is", "another model"};
  if (objective.has_reference())
    words += fmt::format("; reference: {}, whose log-probabilities are computed before the first step and kept",
                         kWhose[static_cast<size_t>(objective.reference)]);
  return words;
}

namespace {

// Returns as one text what decides a reference's log-probabilities besides the replies.
std::string reference_key(const JobSpec& spec, const Heartbeat& heartbeat) {
  const auto counts = [&](size_t i) {
    return !spec.table.params[i].adapter || spec.objective.reference == Reference::Adapter;
  };
  bool drawn = false;
  for (size_t i = 0; i < spec.table.params.size(); i++)
    drawn = drawn || (counts(i) && std::holds_alternative<RandomFill>(spec.sources.params[i]));
  std::string key = fmt::format("weights {}\n", hex(hash_of_files(spec.sources, heartbeat, counts)));
  if (drawn) key += fmt::format("drawn by {}\n", spec.numerics.seed);
  for (const Field& field : fields_of(spec)) {
    const bool of_products = field.name == "compute" || field.name == "base_format" || field.name == "fp8_products" ||
                             field.name == "plain_scales";
    if (field.group == kModelFields || of_products) key += fmt::format("{} {}\n", field.name, field.value);
  }
  // What is trained is in the products' format when they read it.
  const bool frozen =
      std::ranges::any_of(spec.table.params, [](const ParamSpec& param) { return !param.trainable && !param.adapter; });
  key += fmt::format("base {}\n", name(frozen ? spec.numerics.base : spec.numerics.compute));
  return key;
}

}  // namespace

RunObjective::RunObjective(const JobSpec& spec, const Corpus& corpus, StreamSource& data, StreamSource* validation)
    : spec_(spec), corpus_(corpus), data_source_(data), validation_source_(validation) {
  if (!spec.objective.has_metrics()) return;
  const auto references_of = [&](const Dataset& dataset) -> References& {
    for (auto& [of, references] : references_)
      if (of == &dataset) return references;
    return references_.emplace_back(&dataset, References(dataset)).second;
  };
  const auto serve = [&](const Dataset& dataset, const StreamSource& source) {
    References* references = nullptr;
    if (spec.objective.has_teacher()) taught_.push_back({dataset, source.stream().documents_of_data()});
    if (spec.objective.has_reference()) {
      references = &references_of(dataset);
      referenced_.push_back({dataset, source.stream().documents_of_data(), *references});
    }
    return make_step_objective(spec.objective, dataset, source.stream(), references);
  };
  data_ = serve(corpus.training, data);
  if (validation) validation_ = serve(corpus.validation(), *validation);
  teach(data);
  if (validation) teach(*validation);
}

std::vector<EvaluationPart> RunObjective::parts(const Dataset& dataset, StepObjective* whole,
                                                const std::vector<NamedSamples>& names,
                                                std::list<StreamSource>& sources) {
  References* known = nullptr;
  for (auto& [of, references] : references_)
    if (of == &dataset) known = &references;
  std::vector<EvaluationPart> parts;
  auto name = names.begin();
  for (StreamSource& source : sources) {
    EvaluationPart& part = parts.emplace_back();
    part.name = (name++)->name;
    part.source = &source;
    part.passes = source.stream().steps();
    if (!whole) continue;
    teach(source);
    parts_.push_back(make_step_objective(spec_.objective, dataset, source.stream(), known));
    parts_.back()->belong_to(*whole);
    part.objective = parts_.back().get();
  }
  return parts;
}

std::vector<EvaluationPart> RunObjective::parts_of_data(std::list<StreamSource>& sources) {
  return parts(corpus_.training, data_.get(), corpus_.training_parts, sources);
}

std::vector<EvaluationPart> RunObjective::parts_of_validation(std::list<StreamSource>& sources) {
  return parts(corpus_.validation(), validation_.get(), corpus_.validation_parts, sources);
}

namespace {

std::filesystem::path directory_of(const JobConfig& options) {
  if (!options.reference_cache.empty()) return options.reference_cache;
  return options.out.empty() ? std::filesystem::path() : std::filesystem::path(options.out) / "reference";
}

}  // namespace

std::string RunObjective::read_known(const JobSpec& reference, const JobConfig& options, const Heartbeat& heartbeat) {
  key_ = reference_key(reference, heartbeat);
  const std::filesystem::path directory = directory_of(options);
  if (!directory.empty()) file_ = directory / (hex(hash_of(key_)) + kReferencesExtension);
  try {
    if (!file_.empty()) read_references(file_, key_, referenced_);
  } catch (const UserError& error) {
    if (!options.overwrite || !options.reference_cache.empty()) throw;
    return fmt::format("{} ({} replaces it)\n", error.what(), option_name("overwrite"));
  }
  return "";
}

uint64_t RunObjective::hash_of_known() const {
  uint64_t hash = 0;
  for (const Referenced& of : referenced_) hash = hash_of(std::span(std::as_const(of.references).all()), hash);
  return hash;
}

int64_t RunObjective::known() const { return data_->known() + (validation_ ? validation_->known() : 0); }

FoundReferences RunObjective::found(const std::string& damaged, int64_t before, const ScoredPasses& scored,
                                    std::chrono::duration<double> spent) const {
  int64_t all = std::ssize(data_source_.stream().samples_of_data());
  if (validation_source_) all += std::ssize(validation_source_->stream().samples_of_data());
  const std::string where = file_.empty() ? "" : fmt::format(" ({})", file_.parent_path().string());
  return {fmt::format("{}reference: of {} {} {} were known{}, {} were scored in {} passes, {:.1f} s", damaged, all,
                      spec_.objective.pairs() ? "pairs" : "replies", before, where, known() - before, scored.passes,
                      spent.count()),
          scored.interrupted, known(), file_};
}

FoundReferences RunObjective::find_references(Session& session, const JobConfig& options,
                                              const ReferenceOptions& reference) {
  if (!spec_.objective.has_reference() || spec_.objective.reference == Reference::Model) return {};
  const std::string damaged = read_known(spec_, options, session.heartbeat());
  const int64_t before = known();
  session.agree("the log-probabilities of the reference that are kept", hash_of_known());
  const auto begin = std::chrono::steady_clock::now();
  computed_ = true;  // while they are scored: what is kept by then is more than the file has
  ScoredPasses scored = score_references(session, data_source_, *data_, reference);
  if (validation_ && !scored.interrupted) {
    const ScoredPasses more = score_references(session, *validation_source_, *validation_, reference);
    scored = {scored.passes + more.passes, more.interrupted};
  }
  computed_ = scored.passes > 0;
  return found(damaged, before, scored, std::chrono::steady_clock::now() - begin);
}

FoundReferences RunObjective::find_references_by(const Planned& planned, const JobConfig& options, int rank, int place,
                                                 Comm* comm, const ReferenceOptions& reference) {
  if (spec_.objective.has_teacher()) return ask_teacher_by(planned, options, rank, place, comm, reference);
  const std::string damaged = read_known(planned.spec, options, heartbeat_of(comm));
  const int64_t before = known();
  if (comm) comm->agree("the log-probabilities of the reference that are kept", hash_of_known());
  const auto begin = std::chrono::steady_clock::now();
  std::vector<ReferencedSamples> all;
  for (const Referenced& of : referenced_) {
    const bool trains = &of == referenced_.data();
    const StreamSource& source = trains ? data_source_ : *validation_source_;
    all.push_back({of.dataset, source.stream().samples_of_data(), of.references});
  }
  computed_ = true;  // as above
  const ScoredPasses scored = score_by_another(planned, options, rank, place, comm, all, reference);
  computed_ = scored.passes > 0;
  return found(damaged, before, scored, std::chrono::steady_clock::now() - begin);
}

void RunObjective::teach(StreamSource& source) {
  if (!spec_.objective.has_teacher()) return;
  pupils_.push_back(&source);
  if (teacher_) source.learn_from(*teacher_, spec_.model.vocabulary);
}

FoundReferences RunObjective::ask_teacher_by(const Planned& planned, const JobConfig& options, int rank, int place,
                                             Comm* comm, const ReferenceOptions& reference) {
  const Heartbeat heartbeat = heartbeat_of(comm);
  std::string key = reference_key(planned.spec, heartbeat);
  key += fmt::format("temperature {}\n", spec_.objective.distill_temperature);
  for (const TaughtDocuments& of : taught_) {
    uint64_t hash = 0;
    for (const DocumentSpan& document : of.documents)
      hash = hash_of(std::span<const DocumentSpan>(&document, 1), hash ^ hash_of_reply(of.dataset, document));
    key += fmt::format("documents {}\n", hex(hash));
  }
  const std::filesystem::path directory = directory_of(options);
  if (directory.empty())
    user_error("reference_cache: found nothing, expected a directory: what the teacher says of the data is kept there");
  const int64_t top_k = spec_.objective.teacher_top_k;
  file_ = directory / (hex(hash_of(fmt::format("{}top_k {}\n", key, top_k))) + kTeacherExtension);
  if (rank == 0) TeacherFile::prepare(file_, key, top_k, taught_, heartbeat);
  if (comm) comm->barrier("the file of what a teacher says");
  TeacherFile& teacher = teacher_.emplace(file_, key, top_k, taught_);
  if (comm) comm->agree("what a teacher has said", teacher.hash_of_known());
  for (StreamSource* const pupil : pupils_) pupil->learn_from(teacher, spec_.model.vocabulary);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<TaughtSamples> all;
  for (const TaughtDocuments& of : taught_) {
    const bool trains = &of == taught_.data();
    all.push_back({of.dataset, (trains ? data_source_ : *validation_source_).stream().samples_of_data()});
  }
  const ScoredPasses scored = ask_another(planned, options, rank, place, comm, all, teacher, reference);
  if (comm) comm->barrier("what a teacher says of all data");
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
  const int64_t known = teacher.known();
  return {fmt::format("teacher: what it says of {} of {} documents was known ({}), it was asked in {} passes, {:.1f} s",
                      known, teacher.documents(), directory.string(), scored.passes, spent.count()),
          scored.interrupted, known, file_};
}

void RunObjective::keep_references() const {
  if (spec_.objective.has_teacher()) return;  // its file is written as it speaks
  if (!file_.empty() && (computed_ || !is_file(file_))) write_references(file_, key_, referenced_);
}

}  // namespace snug
