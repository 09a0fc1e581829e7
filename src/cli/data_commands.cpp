// Commands over data sets: tokenize, plan, eval, train.
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iostream>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/plan_report.h"
#include "cli/text.h"
#include "train/export.h"
#include "train/stream_source.h"

namespace snug {
namespace {

void log_line(const std::string& line) { fmt::print(stderr, "{}\n", line); }

// Samples that train and samples that are held out.
struct Corpus {
  Dataset training, held_out_files;
  std::vector<uint32_t> training_samples, validation_samples;

  const Dataset& validation() const { return held_out_files.samples() > 0 ? held_out_files : training; }
  bool validates() const { return !validation_samples.empty(); }
};

// Token files need no tokenizer; a model directory without one will do for them.
Dataset read_data(const Options& options, const std::vector<std::string>& files) {
  if (files.empty()) user_error("--data is required: files of samples (.json, .jsonl, .txt)");
  const HfConfig config = read_hf_config(options.model);
  const DataOptions data = data_options(options, files, config.vocabulary);
  if (data.format == DataFormat::Tokens || !is_file(std::filesystem::path(options.model) / "tokenizer.json"))
    return load_dataset(data, nullptr);
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  const TextEncoder encoder = encoder_of(tokenizer);
  return load_dataset(data, &encoder);
}

std::optional<double> validation_fraction(const Options& options) {
  if (options.validation.size() != 1) return std::nullopt;
  const std::string& text = options.validation[0];
  char* end = nullptr;
  const double fraction = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) return std::nullopt;
  return fraction;
}

Corpus read_corpus(const Options& options) {
  Corpus corpus;
  corpus.training = read_data(options, options.data);
  corpus.training_samples = all_samples(corpus.training.samples());
  if (options.validation.empty()) return corpus;
  if (const auto fraction = validation_fraction(options)) {
    HoldOut split = hold_out(corpus.training.samples(), *fraction, options.seed);
    corpus.training_samples = std::move(split.training);
    corpus.validation_samples = std::move(split.validation);
  } else {
    corpus.held_out_files = read_data(options, options.validation);
    corpus.validation_samples = all_samples(corpus.held_out_files.samples());
  }
  return corpus;
}

PackingOptions packing_options(const Options& options) {
  return {options.sequence_length, options.packing, long_samples_from_name(options.long_samples), options.shuffle,
          options.seed};
}

RunLength run_length(const Options& options) {
  RunLength length{options.max_steps, options.epochs};
  if (!length.max_steps && !length.epochs) length.epochs = 1;
  return length;
}

DataSummary summarise(const BlockStream& stream) {
  return {stream.report().samples, stream.blocks_per_epoch(), stream.steps_per_epoch(), stream.report().tokens,
          stream.report().loss_tokens};
}

// Of all that decides which tokens a step sees, and which of them carry loss.
uint64_t data_order_hash(const Corpus& corpus, const Options& options) {
  const std::string text = fmt::format("{} {} {} {} {} {}", options.seed, options.shuffle, options.packing,
                                       options.long_samples, options.sequence_length, options.batch_size);
  uint64_t hash = XXH3_64bits(text.data(), text.size());
  for (const uint32_t sample : corpus.training_samples) {
    const std::span<const int32_t> ids = corpus.training.ids(sample);
    hash = XXH3_64bits_withSeed(ids.data(), ids.size_bytes(), hash);
    const int64_t loss = corpus.training.loss_tokens(sample, 0, static_cast<int64_t>(ids.size()));
    hash = XXH3_64bits_withSeed(&loss, sizeof loss, hash);
  }
  return hash;
}

// Every sample once, in file order, for evaluation.
StreamSource evaluation_source(const Dataset& dataset, std::vector<uint32_t> samples, const Options& options,
                               int64_t micro_batch) {
  PackingOptions packing = packing_options(options);
  packing.shuffle = false;
  return StreamSource(dataset, std::move(samples), packing, {1, 1, micro_batch}, {std::nullopt, 1});
}

double learning_rate(const Options& options) {
  return options.learning_rate.value_or(options.method == "lora" ? 2e-4 : 1e-5);
}

Schedule make_schedule(const Options& options, int64_t steps) {
  Schedule schedule;
  schedule.kind = options.schedule == "constant" ? ScheduleKind::Constant
                  : options.schedule == "linear" ? ScheduleKind::Linear
                                                 : ScheduleKind::Cosine;
  schedule.peak = learning_rate(options);
  schedule.total_steps = steps;
  schedule.min_ratio = options.min_learning_rate_ratio;
  schedule.warmup_steps = options.warmup_steps > 0
                              ? options.warmup_steps
                              : static_cast<int64_t>(std::ceil(options.warmup_ratio * static_cast<double>(steps)));
  return schedule;
}

Interval interval_of(const Cadence& cadence) {
  switch (cadence.unit) {
    case Cadence::Unit::Steps:
      return {cadence.count, 0};
    case Cadence::Unit::Epochs:
      return {0, 0, true};
    case Cadence::Unit::Seconds:
      break;
  }
  return {0, static_cast<double>(cadence.count)};
}

// ---- The run directory ----------------------------------------------------------------------------------------------

std::string default_out(const Options& options) {
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%d-%H%M%S", std::localtime(&now));
  const auto model = std::filesystem::absolute(options.model).lexically_normal();
  return fmt::format("runs/{}-{}", date, (model.has_filename() ? model : model.parent_path()).filename().string());
}

// A run that is resumed keeps its cut unless another is named.
void keep_cut_of_run(Options& options) {
  const std::filesystem::path job = std::filesystem::path(options.out) / "job.yaml";
  const bool named = options.micro_batch_size || options.gradient_accumulation_steps;
  if (!options.resume || named || !is_file(job)) return;
  Options before;
  read_job_file(job.string(), before);
  options.micro_batch_size = before.micro_batch_size;
  options.gradient_accumulation_steps = before.gradient_accumulation_steps;
}

void refuse_out(const Options& options) {
  const std::filesystem::path out = options.out;
  if (std::filesystem::exists(out) && !std::filesystem::is_directory(out))
    user_error("{}: found a file, expected a directory or nothing; --out names the run's", options.out);
  if (is_file(out / "job.yaml") && !options.resume && !options.overwrite)
    user_error("{}: holds a run already; --resume continues it, --overwrite replaces it", options.out);
  std::filesystem::path there = std::filesystem::absolute(out);
  while (!std::filesystem::exists(there)) there = there.parent_path();
  std::string probe = there / ".snug-XXXXXX";
  if (!mkdtemp(probe.data()))
    user_error("{}: nothing can be made in '{}' ({}), expected a directory to write to; --out names another",
               options.out, there.string(), std::strerror(errno));
  std::filesystem::remove(probe);
}

void clear_run_directory(const Options& options) {
  const std::filesystem::path out = options.out;
  if (options.overwrite && !options.resume)
    for (const char* name : {"job.yaml", "plan.json", "metrics.jsonl", "adapter", "model", "checkpoints"})
      std::filesystem::remove_all(out / name);
  std::filesystem::create_directories(out);
}

// Not before a run that is resumed was found to be the same one.
void write_run_files(const Options& options, const Planned& planned, const DataSummary& data) {
  const std::filesystem::path out = options.out;
  Options effective = options;
  effective.micro_batch_size = planned.spec.cut.micro_batch;
  effective.gradient_accumulation_steps = planned.spec.cut.passes;
  effective.learning_rate = learning_rate(options);
  effective.base_format = planned.spec.numerics.base == DType::F32 ? "fp32" : "bf16";
  if (options.method == "lora") {
    const PeftConfig adapter = adapter_of(options);
    effective.lora_rank = adapter.rank;
    effective.lora_alpha = adapter.alpha;
    effective.lora_rslora = adapter.rslora;
    effective.lora_targets = adapter.target_modules;
  }
  effective.overwrite = effective.resume = false;  // of this start, not of the job
  write_text(out / "job.yaml", write_job_file(effective));
  write_text(out / "plan.json", plan_json(planned, data).dump(2, ' ', false, kReplace) + "\n");
}

void warn_of_data(const PackingReport& report, int64_t steps, const HfConfig& config, const Options& options) {
  if (options.sequence_length > config.max_position)
    log_line(fmt::format("--sequence-length {} is beyond the {} positions that the model was made for",
                         options.sequence_length, config.max_position));
  if (report.long_samples > 0)
    log_line(fmt::format("{} samples are longer than {} tokens: {} ({} tokens lost); --long-samples chooses",
                         report.long_samples, options.sequence_length, options.long_samples, report.lost_tokens));
  if (report.empty_samples > 0)
    log_line(fmt::format("{} samples have no token that carries loss", report.empty_samples));
  if (steps < 50)
    log_line(
        fmt::format("{} steps are few for a learning rate to rise and fall; a smaller --batch-size makes more", steps));
}

std::string trained_parts(const Options& options) { return options.method == "lora" ? "adapter" : "model"; }

void export_result(Session& session, const Options& options) {
  const std::filesystem::path out = std::filesystem::path(options.out) / trained_parts(options);
  if (options.method == "lora")
    export_adapter(session, out, adapter_of(options), options.model);
  else
    export_model(session, out, options.model, Existing::Replace);
}

}  // namespace

int tokenize_command(const Options& options, const CommandFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  auto print = [&](std::span<const int32_t> ids, const std::vector<int>& mask) {
    if (flags.json)
      fmt::print("{}\n", to_line({{"ids", ids}, {"mask", mask}}));
    else
      for (size_t i = 0; i < ids.size(); i++)
        fmt::print("{}\t{}\t{}\n", ids[i], mask[i], to_line(tokenizer.decode(ids.subspan(i, 1), false)));
  };
  if (flags.text) {
    int64_t number = 0;
    for (std::string line; std::getline(std::cin, line);) {
      number++;
      const auto json = line.starts_with('"') ? nlohmann::json::parse(line, nullptr, false) : nlohmann::json();
      const std::vector<int32_t> ids = at_place(fmt::format("standard input, line {}", number), [&] {
        return tokenizer.encode(json.is_string() ? json.get<std::string>() : line);
      });
      print(ids, std::vector<int>(ids.size(), 1));
    }
    return 0;
  }
  if (options.data.empty()) user_error("--data or --text is required: what is to be shown as tokens");
  const TextEncoder encoder = encoder_of(tokenizer);
  const HfConfig config = read_hf_config(options.model);
  for_each_sample(data_options(options, options.data, config.vocabulary), &encoder,
                  [&](const Sample& sample, const std::string&) {
                    std::vector<int> mask;
                    for (const int32_t label : sample.labels) mask.push_back(label != kNoLabel);
                    print(sample.ids, mask);
                    if (!flags.json) fmt::print("\n");
                  });
  return 0;
}

int plan_command(const Options& options, const CommandFlags& flags) {
  std::optional<DataSummary> summary;
  Corpus corpus;  // held while what is free is looked at, as train holds it
  if (!options.data.empty()) {
    corpus = read_corpus(options);
    const BlockStream stream(corpus.training, corpus.training_samples, packing_options(options),
                             {1, 1, options.batch_size}, run_length(options));
    summary = summarise(stream);
  }
  const Planned planned = plan_training(options, !options.validation.empty());
  if (flags.json) {
    nlohmann::ordered_json json = plan_json(planned, summary);
    try {
      require_fit(planned, options);
    } catch (const CapacityError& error) {
      json["reason"] = error.what();
    }
    fmt::print("{}\n", json.dump(2, ' ', false, kReplace));
    return planned.fit.chosen ? 0 : 3;
  }
  fmt::print("{}", plan_text(planned, options, summary));
  require_fit(planned, options);
  return 0;
}

int eval_command(Options options, const CommandFlags& flags) {
  const Dataset dataset = read_data(options, options.data);
  JobSpec spec = make_job(options, Purpose::Evaluate);
  spec.cut.micro_batch = options.micro_batch_size.value_or(1);
  StreamSource source = evaluation_source(dataset, all_samples(dataset.samples()), options, spec.cut.micro_batch);
  Session session = make_session(std::move(spec), options);
  session.load();
  const EvaluationResult result = evaluate(session, source, source.stream().steps());
  if (result.loss_tokens == 0) user_error("--data: found no token that carries loss");
  const double perplexity = std::exp(result.loss);
  if (flags.json)
    fmt::print("{}\n", to_line({{"loss", result.loss},
                                {"perplexity", perplexity},
                                {"tokens", result.tokens},
                                {"loss_tokens", result.loss_tokens}}));
  else
    fmt::print("loss {:.4f}  perplexity {:.3f}  over {} tokens ({} of them with loss)\n", result.loss, perplexity,
               result.tokens, result.loss_tokens);
  return 0;
}

int train_command(Options options, const CommandFlags& flags) {
  if (options.out.empty()) options.out = default_out(options);
  refuse_out(options);
  keep_cut_of_run(options);
  const Corpus corpus = read_corpus(options);
  Planned planned = plan_training(options, corpus.validates());
  require_weights(planned.spec.sources);
  require_fit(planned, options);
  const Cut cut = planned.spec.cut;
  StreamSource data(corpus.training, corpus.training_samples, packing_options(options),
                    {cut.passes, 1, cut.micro_batch}, run_length(options));
  std::optional<StreamSource> validation;
  if (corpus.validates()) {
    validation.emplace(evaluation_source(corpus.validation(), corpus.validation_samples, options, cut.micro_batch));
    if (validation->stream().report().loss_tokens == 0) user_error("--validation: found no token that carries loss");
  }
  const int64_t steps = data.stream().steps();
  log_line(plan_text(planned, options, summarise(data.stream())));
  warn_of_data(data.stream().report(), steps, planned.spec.config, options);

  clear_run_directory(options);
  const InterruptGuard guard;
  Session session(planned.spec, std::move(planned.compiled), thread_count(options));
  session.load();
  TrainerOptions trainer_options;
  trainer_options.out = options.out;
  trainer_options.schedule = make_schedule(options, steps);
  trainer_options.steps = steps;
  trainer_options.evaluate = interval_of(options.eval_every);
  trainer_options.save = interval_of(options.save_every);
  trainer_options.log_interval = interval_of(options.log_every);
  trainer_options.keep = options.keep;
  trainer_options.data_order = data_order_hash(corpus, options);
  trainer_options.interrupted = [&] { return guard.interrupted(); };
  trainer_options.log = log_line;
  Trainer trainer(session, data, validation ? &*validation : nullptr, validation ? validation->stream().steps() : 0,
                  trainer_options);
  if (options.resume) trainer.restore();
  write_run_files(options, planned, summarise(data.stream()));
  const Ending ending = trainer.run();
  export_result(session, options);
  const std::string result = (std::filesystem::path(options.out) / trained_parts(options)).string();
  log_line(fmt::format("{}{} is in {}",
                       ending == Ending::Interrupted ? "interrupted; --resume goes on from here. The " : "The ",
                       trained_parts(options), result));
  if (flags.json)
    fmt::print("{}\n", to_line({{"out", options.out}, {trained_parts(options), result}, {"steps", steps}}));
  return ending == Ending::Interrupted ? 130 : 0;
}

}  // namespace snug
