// Implements the commands over data sets: tokenize, eval.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "api/corpus.h"
#include "api/image_cache.h"
#include "api/image_job.h"
#include "api/images.h"
#include "api/inputs.h"
#include "api/launch.h"
#include "api/learning.h"
#include "api/no_effect.h"
#include "api/objective.h"
#include "api/use.h"
#include "base/say.h"
#include "cli/commands.h"
#include "cli/sample_printer.h"
#include "model/model_config.h"

namespace snug {

int tokenize_command(const JobConfig& options, const CommandFlags& flags) {
  if (flags.text && options.flags.contains("data"))
    user_error("--text reads standard input: found --data {} beside it, expected one of them",
               fmt::join(options.data, ","));
  const Tokenizer tokenizer = load_tokenizer(options);
  // What is refused is said alone: these lines come before what is printed first.
  std::vector<std::string> notes =
      options_without_effect(options, {.shows_samples = !flags.text, .shows_text = flags.text});
  std::optional<ImageInput> images;
  if (!flags.text) images = image_input(options, tokenizer);
  const SamplePrinter printer(tokenizer, options, images, flags.json);
  if (flags.text) {
    int64_t number = 0;
    for (std::string line; std::getline(std::cin, line);) {
      number++;
      const auto json = line.starts_with('"') ? nlohmann::json::parse(line, nullptr, false) : nlohmann::json();
      const std::vector<int32_t> ids = at_place(fmt::format("standard input, line {}", number), [&] {
        return tokenizer.encode(json.is_string() ? json.get<std::string>() : line);
      });
      say_lines(std::exchange(notes, {}));
      printer.print_text(ids);
    }
    say_lines(notes);
    return 0;
  }
  if (options.data.empty()) user_error("--data or --text is required: what is to be shown as tokens");
  const TextEncoder encoder = encoder_of(tokenizer);
  const ModelTokens model = model_tokens(options);
  const PromptFormat format = prompt_format_of(options, model, &tokenizer);
  notes.insert(notes.begin(), format.notes.begin(), format.notes.end());
  const auto note = [](const std::string& line) { say(line + "\n"); };
  DataOptions data = data_options(options, options.data, model.vocabulary, format, note);
  data.images = images;
  data.image_dir = options.image_dir;
  bool found_images = false;
  const RecordKinds kinds = for_each_sample(data, &encoder, [&](const Sample& sample, const std::string&) {
    found_images = found_images || !sample.images.empty();
    say_lines(std::exchange(notes, {}));
    printer.print(sample);
  });
  say_lines(notes);
  say_lines(image_options_without_effect(options, images, found_images));
  if (found_images) say_lines(images->notes);
  say_lines(options_without_effect(options, {.kinds = kinds}));
  return 0;
}

namespace {

// Returns the scores of pairs, an entry a sample; null for one that was left out.
nlohmann::ordered_json scores_json(const std::vector<std::array<double, 2>>& scores) {
  auto all = nlohmann::ordered_json::array();
  for (const auto& [chosen, rejected] : scores)
    all.push_back(std::isnan(chosen) ? nlohmann::ordered_json()
                                     : nlohmann::ordered_json{{"chosen", chosen}, {"rejected", rejected}});
  return all;
}

// Returns a metric of replies, or of a model that gives scores the one in its place.
std::optional<double> either(const EvaluationResult& result, const char* of_replies, const char* of_scores) {
  const auto found = number_of(result.metrics, of_replies);
  return found ? found : number_of(result.metrics, of_scores);
}
std::optional<double> accuracy_of(const EvaluationResult& result) {
  return either(result, "rewards/accuracies", "accuracy");
}
// NaN where one side has no replies.
double margin_of(const EvaluationResult& result) { return either(result, "rewards/margins", "margin").value(); }

// Returns how often model and teacher expect the same most, where there is a teacher.
std::optional<double> agreement_of(const EvaluationResult& result) { return number_of(result.metrics, "agreement"); }

// Returns what an evaluation finds, as a line for people.
std::string text_of(const EvaluationResult& result, bool of_preferences) {
  if (const std::optional<double> agreement = agreement_of(result))
    return fmt::format("loss {:.4f}  agreement {:.3f}  over {} tokens ({} of them with loss)", result.loss, *agreement,
                       result.tokens, result.loss_tokens);
  if (!of_preferences)
    return fmt::format("loss {:.4f}  perplexity {:.3f}  over {} tokens ({} of them with loss)", result.loss,
                       std::exp(result.loss), result.tokens, result.loss_tokens);
  const std::optional<double> accuracy = accuracy_of(result);
  const double margin = margin_of(result);
  return fmt::format("loss {:.4f}{}{}  over {} {} ({} tokens, {} of them with loss)", result.loss,
                     accuracy ? fmt::format("  accuracy {:.3f}", *accuracy) : std::string(),
                     std::isfinite(margin) ? fmt::format("  margin {:.4f}", margin) : std::string(), result.samples,
                     accuracy ? "pairs" : "replies", result.tokens, result.loss_tokens);
}

// Returns it as JSON has it.
nlohmann::ordered_json json_of(const EvaluationResult& result, bool of_preferences) {
  nlohmann::ordered_json json{{"loss", result.loss}};
  if (agreement_of(result)) {
    // The loss is no cross-entropy, of which a perplexity could be made, and the rest is among the metrics.
  } else if (!of_preferences) {
    json["perplexity"] = std::exp(result.loss);
  } else {
    const std::optional<double> accuracy = accuracy_of(result);
    if (accuracy) json["accuracy"] = *accuracy;
    json.update({{"margin", margin_of(result)}, {accuracy ? "pairs" : "replies", result.samples}});
  }
  json.update({{"tokens", result.tokens}, {"loss_tokens", result.loss_tokens}});
  return json;
}

// Prints what an evaluation finds, of all of the data and of its parts.
void print_evaluation(const Evaluation& found, const std::vector<EvaluationPart>& parts, const StepObjective* objective,
                      const PackingReport& report, const CommandFlags& flags) {
  const bool of_preferences = objective != nullptr && !agreement_of(found.whole);
  if (!flags.json) {
    fmt::print("{}\n", text_of(found.whole, of_preferences));
    if (parts.size() > 1)
      for (size_t i = 0; i < parts.size(); i++)
        fmt::print("{}: {}\n", parts[i].name, text_of(found.parts[i], of_preferences));
    if (flags.scores)
      for (const nlohmann::ordered_json& line : scores_json(objective->scores())) fmt::print("{}\n", to_line(line));
    return;
  }
  nlohmann::ordered_json json = json_of(found.whole, of_preferences);
  json.update({{"samples", report.samples}, {"long_samples", report.long_samples}});
  if (!of_preferences)
    json.update(
        {{"lost_tokens", report.lost_tokens}, {"samples_without_loss", report.without_loss + report.cut_off_loss}});
  for (const auto& [name, value] : found.whole.metrics) json[name] = value;
  if (parts.size() > 1)
    for (size_t i = 0; i < parts.size(); i++) {
      json["files"][parts[i].name] = json_of(found.parts[i], of_preferences);
      for (const auto& [name, value] : found.parts[i].metrics) json["files"][parts[i].name][name] = value;
    }
  if (flags.scores) json["scores"] = scores_json(objective->scores());
  fmt::print("{}\n", to_line(json));
}

// Holds what a rank evaluates, and by which objective.
struct RankEvaluation {
  StreamSource source;
  std::list<StreamSource> files;  // the same by part, where there are several
  RunObjective objective;

  RankEvaluation(const JobSpec& spec, const Corpus& corpus, const JobConfig& options, int rank, Comm* comm)
      : source(evaluation_source(corpus, options, spec.cut.micro_batch, spec.cut.ranks, rank, heartbeat_of(comm))),
        files(evaluation_sources(corpus, options, spec.cut.micro_batch, spec.cut.ranks, rank, heartbeat_of(comm))),
        objective(spec, corpus, source, nullptr) {}

  std::vector<EvaluationPart> parts() {
    std::vector<EvaluationPart> parts = objective.parts_of_data(files);
    if (parts.empty()) parts.push_back({"", &source, source.stream().steps(), objective.of_data()});
    return parts;
  }

  void say(const FoundReferences& references, bool reports) const {
    if (!reports) return;
    objective.keep_references();
    if (!references.line.empty()) snug::say(fmt::format("{}\n", references.line));
  }
};

// Does the work of one rank; rank 0 prints the result.
void evaluate_rank(Session& session, RankEvaluation& rank, const Corpus& corpus, const JobConfig& options,
                   const CommandFlags& flags) {
  const Fields data = data_fields(corpus, options, session.heartbeat());
  session.agree("the data, or its order", hash_of_fields(data, {kBlockFields, kContentFields}));
  const PackingReport& report = rank.source.stream().report();
  if (session.rank() == 0) {
    say_lines(corpus.notes);
    say_lines(evaluation_notes(report, options, "data"));
  }
  rank.say(rank.objective.find_references(session, options, {.keep = [&] { rank.objective.keep_references(); }}),
           session.rank() == 0);
  const std::vector<EvaluationPart> parts = rank.parts();
  const Evaluation found = evaluate(session, parts, rank.objective.of_data());
  if (!std::isfinite(found.whole.loss)) {
    const uint64_t weight = session.least_over_ranks(non_finite_weight(session), kNonFiniteWeight);
    user_error("the loss is {}{}", found.whole.loss,
               weight == UINT64_MAX
                   ? "; every weight is finite: try --compute fp32"
                   : fmt::format(", as '{}' holds a value that is not finite: look at the model's files",
                                 session.spec().table.params[weight].name));
  }
  if (session.rank() == 0) print_evaluation(found, parts, rank.objective.of_data(), report, flags);
}

}  // namespace

int eval_command(JobConfig options, const CommandFlags& flags) {
  std::unique_ptr<Comm> comm = launched("eval");
  const Heartbeat heartbeat = heartbeat_of(comm.get());
  options.validation.clear();
  Corpus corpus = read_corpus(options, heartbeat);
  note_found(corpus, options, heartbeat);
  if (flags.scores && objective_from_name(options.objective) != ObjectiveKind::Reward)
    user_error("--scores: found objective {}, expected reward: other models give no scores", options.objective);
  JobSpec spec = make_job(options, Purpose::Evaluate);
  const bool by_another = spec.objective.reference == Reference::Model;
  if (spec.objective.has_reference() && !by_another && options.adapter.empty())
    user_error(
        "objective: found {}, expected an --adapter beside it, or --reference MODEL: what eval looks at is the model "
        "with its adapter against the model without it, or a model against another; orpo and simpo need no reference",
        options.objective);
  if (spec.objective.reference == Reference::Adapter)
    user_error(
        "reference: found adapter, expected auto: eval sets the model with its adapter against the model without it; "
        "against itself its loss of dpo is ln 2 whatever it learnt; --reference MODEL sets it against another");
  spec.cut.micro_batch = options.micro_batch_size.value_or(1);
  spec.cut.short_eighths = short_passes(filled_share(corpus, options, heartbeat));
  const std::optional<Planned> reference = plan_reference(spec, options, comm.get());
  const Planned planned = plan_use(std::move(spec), options, comm.get());
  if (!comm || comm->topology().rank == 0) {
    say_lines(options_without_effect(options, {.draws_nothing = true, .evaluates = true}));
    say_lines(position_notes(options.sequence_length, "--sequence-length", planned.spec.model));
  }
  std::vector<std::optional<RankEvaluation>> ranks(static_cast<size_t>(planned.spec.cut.ranks));
  const auto of = [&](int rank) -> RankEvaluation& { return *ranks[static_cast<size_t>(rank)]; };
  use_model(
      planned, options, std::move(comm),
      [&](Session& session) { evaluate_rank(session, of(session.rank()), corpus, options, flags); },
      [&](int rank, int place, Comm* all) {
        ranks[static_cast<size_t>(rank)].emplace(planned.spec, corpus, options, rank, all);
        if (!reference) return;
        RunObjective& objective = of(rank).objective;
        of(rank).say(objective.find_references_by(*reference, options, rank, place, all,
                                                  {.keep = [&] { objective.keep_references(); }}),
                     rank == 0);
      });
  return 0;
}

}  // namespace snug
