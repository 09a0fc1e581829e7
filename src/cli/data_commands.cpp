// Implements the commands over data sets: tokenize, plan, eval.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>

#include "base/say.h"
#include "cli/commands.h"
#include "cli/corpus.h"
#include "cli/image_job.h"
#include "cli/images.h"
#include "cli/inputs.h"
#include "cli/kernel_report.h"
#include "cli/launch.h"
#include "cli/learning.h"
#include "cli/no_effect.h"
#include "cli/objective.h"
#include "cli/sample_printer.h"
#include "cli/use.h"
#include "model/model_config.h"

namespace snug {

int tokenize_command(const Options& options, const CommandFlags& flags) {
  if (flags.text && options.flags.contains("data"))
    user_error("--text reads standard input: found --data {} beside it, expected one of them",
               fmt::join(options.data, ","));
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_directory(options));
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
  const RecordKinds kinds = for_each_sample(data, &encoder, [&](const Sample& sample, const std::string&) {
    say_lines(std::exchange(notes, {}));
    printer.print(sample);
  });
  say_lines(notes);
  say_lines(image_options_without_effect(options, images));
  say_lines(options_without_effect(options, {.kinds = kinds}));
  return 0;
}

int plan_command(Options options, const CommandFlags& flags) {
  refuse_disk_dir(options, PlanMode::Look);
  Target target(options);
  target.say_strange_cards();
  resolve_ranks(options, target, PlanMode::Look);
  std::optional<DataSummary> summary;
  std::vector<std::string> notes;
  Corpus corpus;  // held while free memory is measured, as train holds it
  if (!options.data.empty()) {
    corpus = read_corpus(options, {});
    options.disk_taken = corpus.cache_bytes;
    options.block_patches = block_patches(corpus, options);
    const BlockStream stream(corpus.training, corpus.training_samples, packing_options(options),
                             {1, 1, options.batch_size}, run_length(options));
    summary = summarise(stream);
    notes = learning_notes(stream, model_config_of(options).spec, options);
    if (corpus.validates())
      std::ranges::move(
          evaluation_notes(validation_source(corpus, options, 1, 1, 0).stream().report(), options, "validation"),
          std::back_inserter(notes));
  }
  if (options.data.empty()) options.block_patches = patches_of_tokens(options);
  JobSpec spec = make_job(options, Purpose::Train);
  if (summary) spec.cut.short_eighths = short_passes(summary->filled(options.sequence_length));
  spec.cut.patches = patch_shapes(options, spec);
  const Planned planned =
      plan_training(std::move(spec), options, std::move(target), !options.validation.empty(), PlanMode::Look);
  say_lines(corpus.notes);
  say_lines(notes);
  say_lines(options_without_effect(options, {.cut = planned.spec.cut}));
  say_notes(planned.spec);
  if (flags.json) {
    nlohmann::ordered_json json = plan_json(planned, options, summary);
    try {
      require_fit(planned, options);
    } catch (const CapacityError& error) {
      json["reason"] = error.what();
    }
    fmt::print("{}\n", json.dump(2, ' ', false, kReplace));
    return planned.fit.chosen ? 0 : 3;
  }
  fmt::print("{}", plan_text(planned, options, summary));
  if (flags.verbose) fmt::print("{}", kernels_text(planned));
  require_fit(planned, options);
  return 0;
}

namespace {

// Prints what an evaluation finds of preferences.
void say_of_preferences(const EvaluationResult& result, const PackingReport& report, bool json) {
  const std::optional<double> accuracy = number_of(result.metrics, "rewards/accuracies");
  const double margin = number_of(result.metrics, "rewards/margins").value();
  const std::string_view what = accuracy ? "pairs" : "replies";
  if (!json) {
    fmt::print("loss {:.4f}{}  margin {:.4f}  over {} {} ({} tokens, {} of them with loss)\n", result.loss,
               accuracy ? fmt::format("  accuracy {:.3f}", *accuracy) : std::string(), margin, result.samples, what,
               result.tokens, result.loss_tokens);
    return;
  }
  nlohmann::ordered_json line{{"loss", result.loss}};
  if (accuracy) line["accuracy"] = *accuracy;
  line.update({{"margin", margin},
               {what, result.samples},
               {"tokens", result.tokens},
               {"loss_tokens", result.loss_tokens},
               {"samples", report.samples},
               {"long_samples", report.long_samples}});
  for (const auto& [name, value] : result.metrics) line[name] = value;
  fmt::print("{}\n", to_line(line));
}

// Does the work of one rank; rank 0 prints the result.
void evaluate_rank(Session& session, const Corpus& corpus, const Options& options, bool json) {
  const Cut& cut = session.spec().cut;
  const Fields data = data_fields(corpus, options, session.heartbeat());
  session.agree("the data, or its order", hash_of_fields(data, {kBlockFields, kContentFields}));
  StreamSource source =
      evaluation_source(corpus, options, cut.micro_batch, cut.ranks, session.rank(), session.heartbeat());
  if (session.rank() == 0) {
    say_lines(corpus.notes);
    say_lines(evaluation_notes(source.stream().report(), options, "data"));
  }
  RunObjective objective(session.spec(), corpus, source, nullptr);
  if (const std::string line = objective.find_references(session, options); session.rank() == 0 && !line.empty())
    say(fmt::format("{}\n", line));
  const EvaluationResult result = evaluate(session, source, source.stream().steps(), objective.of_data());
  if (!std::isfinite(result.loss)) {
    const uint64_t weight = session.least_over_ranks(non_finite_weight(session), kNonFiniteWeight);
    user_error("the loss is {}{}", result.loss,
               weight == UINT64_MAX
                   ? "; every weight is finite: try --compute fp32"
                   : fmt::format(", as '{}' holds a value that is not finite: look at the model's files",
                                 session.spec().table.params[weight].name));
  }
  if (session.rank() != 0) return;
  const double perplexity = std::exp(result.loss);
  const PackingReport& report = source.stream().report();
  if (objective.of_data()) return say_of_preferences(result, report, json);
  if (json)
    fmt::print("{}\n", to_line({{"loss", result.loss},
                                {"perplexity", perplexity},
                                {"tokens", result.tokens},
                                {"loss_tokens", result.loss_tokens},
                                {"samples", report.samples},
                                {"long_samples", report.long_samples},
                                {"lost_tokens", report.lost_tokens},
                                {"samples_without_loss", report.without_loss + report.cut_off_loss}}));
  else
    fmt::print("loss {:.4f}  perplexity {:.3f}  over {} tokens ({} of them with loss)\n", result.loss, perplexity,
               result.tokens, result.loss_tokens);
}

}  // namespace

int eval_command(Options options, const CommandFlags& flags) {
  std::unique_ptr<Comm> comm = launched("eval");
  options.validation.clear();
  const Corpus corpus = read_corpus(options, heartbeat_of(comm.get()));
  options.disk_taken = corpus.cache_bytes;
  options.block_patches = block_patches(corpus, options);
  JobSpec spec = make_job(options, Purpose::Evaluate);
  if (spec.objective.has_reference() && options.adapter.empty())
    user_error(
        "objective: found {}, expected an --adapter beside it: what eval looks at is the model with its adapter "
        "against "
        "the model without it; orpo and simpo need no such reference",
        options.objective);
  spec.cut.micro_batch = options.micro_batch_size.value_or(1);
  spec.cut.short_eighths = short_passes(filled_share(corpus, options, heartbeat_of(comm.get())));
  spec.cut.patches = patch_shapes(options, spec);
  const Planned planned = plan_use(std::move(spec), options, comm.get());
  if (!comm || comm->topology().rank == 0) {
    say_lines(options_without_effect(options, {.draws_nothing = true}));
    say_lines(position_notes(options.sequence_length, "--sequence-length", planned.spec.model));
  }
  use_model(planned, options, std::move(comm),
            [&](Session& session) { evaluate_rank(session, corpus, options, flags.json); });
  return 0;
}

}  // namespace snug
