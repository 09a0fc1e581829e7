#include "api/run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>

#include "api/checkpoint_choice.h"
#include "api/corpus.h"
#include "api/failure.h"
#include "api/image_cache.h"
#include "api/image_job.h"
#include "api/inputs.h"
#include "api/job.h"
#include "api/job_file.h"
#include "api/launch.h"
#include "api/learning.h"
#include "api/new_tokens.h"
#include "api/no_effect.h"
#include "api/objective.h"
#include "api/plan_report.h"
#include "api/prompting.h"
#include "api/resumed_run.h"
#include "api/rules.h"
#include "api/run_directory.h"
#include "api/run_log.h"
#include "api/saving.h"
#include "base/clock.h"
#include "base/option_name.h"
#include "base/say.h"
#include "format/side_files.h"
#include "image/decode.h"
#include "plan/lowering/fingerprint.h"
#include "report/run_files.h"
#include "train/export.h"

namespace snug {
namespace {

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

// Makes paths absolute, so that a run can be resumed in any directory.
void name_absolutely(JobConfig& options) {
  std::vector<std::string*> paths{&options.disk_dir, &options.cache_dir, &options.out, &options.trace,
                                  &options.reference_cache};
  for (std::string* input :
       {&options.model, &options.adapter, &options.found.given_model, &options.found.given_adapter})
    if (std::filesystem::exists(*input)) paths.push_back(input);  // else it is an id of the hub
  const bool other = options.reference != "auto" && options.reference != "adapter" && options.reference != "none";
  if (other && std::filesystem::exists(options.reference)) paths.push_back(&options.reference);
  for (std::string& file : options.data) paths.push_back(&file);
  if (!validation_fraction(options))
    for (std::string& file : options.validation) paths.push_back(&file);
  if (!builtin_machine(options.machine)) paths.push_back(&options.machine);
  for (std::string* path : paths)
    if (!path->empty()) *path = std::filesystem::absolute(*path).string();
}

// Returns the name of the adapter's or model's base for what is written: an id serves other people too; a GGUF file
// does not, nor does a run's checkpoint, but the model made of it.
const std::string& base_of(const JobConfig& options) {
  const std::string& given = model_as_given(options);
  return is_file(given) || is_checkpoint(given) ? options.model : given;
}

// Writes what goes beside the weights of whatever is made of the run's checkpoints, also before it ends.
void write_format(const JobConfig& options, const JobSpec& spec, const WriteExtraFiles& write_extra,
                  const Heartbeat& heartbeat) {
  PendingDirectory pending(std::filesystem::path(options.out) / kRunFormat, Existing::Replace);
  if (options.method == "lora")
    write_adapter_config(pending.path(), written_adapter(options), base_of(options));
  else
    write_side_files(pending.path(), options.model, spec, heartbeat);
  write_extra(pending.path());
  pending.publish();
}

std::string trained_parts(const JobConfig& options) { return options.method == "lora" ? "adapter" : "model"; }

void export_result(Session& session, const JobConfig& options, const WriteExtraFiles& write_extra) {
  const std::filesystem::path out = std::filesystem::path(options.out) / trained_parts(options);
  if (options.method == "lora")
    export_adapter(session, out, written_adapter(options), base_of(options), write_extra);
  else
    export_model(session, out, options.model, Existing::Replace, write_extra);
}

TrainerOptions trainer_options_of(const JobConfig& options, int64_t steps) {
  TrainerOptions trainer;
  trainer.out = options.out;
  trainer.schedule = make_schedule(options, steps);
  trainer.steps = steps;
  trainer.evaluate = interval_of(options.eval_every);
  trainer.save = interval_of(options.save_every);
  trainer.log_interval = interval_of(options.log_every);
  trainer.keep = options.keep;
  trainer.best_metric = options.best_metric;
  trainer.early_stopping = options.early_stopping;
  const auto writes = [&](const char* format) {
    return std::ranges::find(options.metrics_format, format) != options.metrics_format.end();
  };
  trainer.metrics_formats = {.csv = writes("csv"), .tensorboard = writes("tensorboard")};
  trainer.trace = options.trace;
  trainer.log = log_line;
  trainer.log_step = [](const std::string& lines, const Event& event) {
    say_event(event);
    log_line_for_people(lines);
  };
  return trainer;
}

// Returns the end of a run's last line, which says which step its result is of.
std::string which_is_best(const Trainer& trainer, const JobConfig& options) {
  const auto best = trainer.best();
  if (!best) return "";
  const std::string what = options.best_metric == "eval_loss" ? "held-out loss" : options.best_metric;
  if (best->first == trainer.step()) return fmt::format("; its {}, {:.4f}, is the best", what, best->second);
  return fmt::format("; the best {}, {:.4f}, was that of step {}: {} {} {} best uses it", what, best->second,
                     best->first, options.method == "lora" ? option_name("adapter") : option_name("model"), options.out,
                     option_name("checkpoint"));
}

// Returns what the programs of each rank need of the arenas; all ranks call it.
std::vector<RankBytes> bytes_of_ranks(const Session& session, Comm* comm) {
  PerSpace<uint64_t> own{};
  for (const PerSpace<uint64_t>& bytes : session.compiled().plan.program_bytes) raise(own, bytes);
  if (!comm) return {{0, own}};
  std::vector<RankBytes> ranks;
  for (int rank = 0; rank < comm->topology().ranks; rank++) ranks.push_back({rank, {}});
  for (const Space space : kSpaces) {
    const std::span<const uint64_t> gathered = comm->allgather_host(own[index(space)], "the end of the run");
    for (RankBytes& rank : ranks) rank.bytes[index(space)] = gathered[static_cast<size_t>(rank.rank)];
  }
  return ranks;
}

// Loads, and returns the seconds until all ranks have loaded.
double seconds_to_load(Session& session) {
  const auto begin = std::chrono::steady_clock::now();
  session.load();
  session.barrier("the end of loading");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Holds what all ranks of a run share.
struct Run {
  Plan& plan;  // rank 0 adds what it finds of the data
  const RunEvents& events;
  const Corpus& corpus;
  const Fields& fields;               // of the data and of the weights that are not trained
  const WriteExtraFiles write_extra;  // for what is exported
  const std::string machines;         // on which the ranks are, if on several
  const ImageCache& cache;
  DirectoryOwner* const owner;      // in the first process only
  std::atomic<bool> begun = false;  // the contents of --out are this run's
  std::atomic<bool> lost = false;   // and by now another's
  RunResult end{};                  // rank 0 writes it

  const JobConfig& options = plan.config;
  const Planned& planned = plan.planned;
};

// Throws DeviceError if another process has taken --out over.
void require_owned(Run& run) {
  if (run.owner) try {
      run.owner->require_held();
    } catch (const DeviceError&) {
      run.lost = true;
      throw;
    }
}

// Says of a tower and its projector what is so: an adapter that is continued may train them, whatever the options say.
void note_trained_parts(const JobSpec& spec, JobConfig& options) {
  for (const ParamSpec& param : spec.table.params)
    if (param.tower && param.trainable)
      (is_of_projector(param.name, spec.model) ? options.freeze_projector : options.freeze_vision_tower) = false;
}

// Begins the run's directory. It must be called when nothing else may refuse the run: old files stay until then.
void begin_run(const Run& run, const std::filesystem::path& spared, const Heartbeat& heartbeat) {
  const JobConfig& options = run.options;
  const Planned& planned = run.planned;
  const std::filesystem::path out = options.out;
  if (options.overwrite) clear_run(options.out, spared, heartbeat);
  std::filesystem::remove(out / kRunEnd);
  JobConfig effective = options;
  effective.micro_batch_size = planned.spec.cut.micro_batch;
  effective.gradient_accumulation_steps = planned.spec.cut.passes;
  effective.learning_rate = learning_rate(options);
  const Numerics& numerics = planned.spec.numerics;
  if (numerics.quantized_base()) effective.base_format = name(numerics.base_format);
  if (options.method == "lora") take_adapter(effective, adapter_of(options));
  note_trained_parts(planned.spec, effective);
  effective.overwrite = effective.resume = false;  // they belong to this start, not to the job
  effective.trace = "";
  name_absolutely(effective);
  write_text(out / "job.yaml", write_job_file(effective));
  write_text(out / "plan.json", plan_json(run.plan).dump(2, ' ', false, kReplace) + "\n");
  write_format(options, planned.spec, run.write_extra, heartbeat);
}

// Trains, exports what was trained, and tells what becomes of it.
Ending train_to_end(Trainer& trainer, Session& session, Run& run, int64_t steps, RunTeller& teller) {
  const JobConfig& options = run.options;
  teller.start(options.on_event);
  teller.tell({{"event", "begin"}, {"out", options.out}, {"step", trainer.step()}, {"steps", steps}});
  try {
    const Ending ending = trainer.run();
    if (session.rank() == 0) require_owned(run);
    export_result(session, options, run.write_extra);
    Event end{{"event", "end"},
              {"step", trainer.step()},
              {"interrupted", ending == Ending::Interrupted},
              {"result", (std::filesystem::path(options.out) / trained_parts(options)).string()},
              {"best_step", nullptr}};
    if (const auto best = trainer.best()) end["best_step"] = best->first;
    teller.tell(end);
    return ending;
  } catch (const std::exception& error) {
    teller.tell_unlogged({{"event", "error"}, {"message", error.what()}});  // the log has it of whoever catches it
    throw;
  }
}

// Tells the client what is about to run, and all that is noted of it.
void tell_plan(Run& run, const BlockStream& data, const BlockStream* validation) {
  const JobConfig& options = run.options;
  run.plan.data = summarise(data);
  std::vector<std::string>& notes = run.plan.notes;
  const auto add = [&](std::vector<std::string> more) { std::ranges::move(more, std::back_inserter(notes)); };
  if (!run.machines.empty()) notes.push_back(run.machines);
  add(run.corpus.notes);
  if (const std::string line = how_asked(options, run.corpus); !line.empty()) notes.push_back(line);
  add(notes_of(run.planned.spec));
  if (options.method == "full")
    if (const std::string missing = missing_code(options.model); !missing.empty())
      notes.push_back(fmt::format("note: {}: {}", model_as_given(options), missing));
  add(learning_notes(data, run.planned.spec.model, options));
  add(options_without_effect(options, {.cut = run.planned.spec.cut, .job = &run.planned.spec}));
  if (validation) add(evaluation_notes(validation->report(), options, "validation"));
  say_event(plan_event(run.plan));
  if (run.events.planned) run.events.planned(run.plan);
}

// Refuses to judge steps by a number that what is held out does not have.
void refuse_other_metric(const JobConfig& options, const TrainerOptions& held_out) {
  std::vector<std::string> names{"eval_loss"};
  std::ranges::move(held_out.metric_names(), std::back_inserter(names));
  if (std::ranges::find(names, options.best_metric) == names.end())
    user_error("best_metric: found '{}', expected {}{}", options.best_metric, names.size() > 1 ? "one of " : "",
               fmt::join(names, ", "));
}

// Returns what evaluates all that is held out, and each of its files.
TrainerOptions held_out_of(RunObjective& objective, std::list<StreamSource>& files) {
  TrainerOptions held_out;
  held_out.validation_objective = objective.of_validation();
  held_out.validation_parts = objective.parts_of_validation(files);
  return held_out;
}

// Gives the trainer what it has of the run and of its objective.
void connect(TrainerOptions& trainer_options, Run& run, RunObjective& objective, const TrainerOptions& held_out) {
  const Caps& caps = run.planned.caps;
  for (const Space space : kSpaces) {
    trainer_options.overhead[index(space)] = caps.overhead(run.planned.shown().forecast, space);
    trainer_options.planned[index(space)] = caps.taken(run.planned.shown().forecast, space);
  }
  trainer_options.fields = run.fields;
  trainer_options.objective = objective.of_data();
  trainer_options.validation_objective = held_out.validation_objective;
  trainer_options.validation_parts = held_out.validation_parts;
  trainer_options.require_owned = [&run] { require_owned(run); };
}

void say_where_it_begins(int64_t step, int64_t steps, bool resumed) {
  if (step >= steps)
    log_line(fmt::format("nothing to train: the run stands at step {}, {} or {} end it at {}", step,
                         option_name("max_steps"), option_name("epochs"), steps));
  else if (resumed)
    log_line(step > 0 ? fmt::format("goes on after step {}", step)
                      : "nothing has been saved: begins at the first step");
}

// Says what is known of references. Returns whether the run was interrupted before all are: then it keeps these.
bool stops_at(Run& run, const RunObjective& objective, const FoundReferences& references, Comm* comm) {
  const bool reports = !comm || comm->topology().rank == 0;
  if (reports && !references.line.empty()) log_line(references.line);
  if (!references.interrupted) return false;
  if (reports) {
    require_owned(run);
    objective.keep_references();
    log_line(
        fmt::format("interrupted before the first step; {} references are in {}: the same command goes on from there",
                    references.known, references.file.string()));
    run.end.references = references.known;
  }
  if (comm) comm->barrier("the end of an interrupted run");
  return true;
}

// Runs the jobs that go before the run. Returns whether it was interrupted before all is done: then it keeps the rest.
bool stops_before(Run& run, RunObjective& objective, const ReferenceOptions& of_reference, int rank, int place,
                  Comm* comm) {
  const JobsBefore& before = run.plan.before;
  if (before.embedding && embed_before(*before.embedding, run.cache, run.corpus, run.options, rank, place, comm,
                                       of_reference.interrupted)) {
    if (comm) comm->barrier("the end of an interrupted run");
    return true;
  }
  return before.reference &&
         stops_at(run, objective,
                  objective.find_references_by(*before.reference, run.options, rank, place, comm, of_reference), comm);
}

// Makes the trainer warn of what is worth it.
void watch(TrainerOptions& trainer_options, const Run& run, const StreamSource& data, RunTeller& teller,
           const Heartbeat& heartbeat) {
  const Planned& planned = run.planned;
  const bool computes = !planned.target.cuda() && planned.spec.cut.ranks == 1;  // with all that this process runs
  trainer_options.watch.emplace(planned.pricing.measured() ? std::optional(planned.shown().step_seconds) : std::nullopt,
                                computes ? planned.pricing.threads : 0);
  trainer_options.warn = [&, heartbeat](int64_t step, const Warning& warning) {
    std::vector<std::string> samples;
    if (warning.of_samples) samples = places_of(run.corpus, run.options, data.step_samples(), heartbeat);
    log_warning(warning.message, samples);
    teller.tell(warning_event(step, warning.message, samples));
  };
}

// Looks at the images of a run's first step, and at those of its first evaluation as far as that takes seconds.
void look_at_images(StreamSource& data, StreamSource* validation, int64_t step, bool reports,
                    const Heartbeat& heartbeat) {
  constexpr int64_t kMostHeldOut = 2000;
  data.look_at_images(step, step, INT64_MAX, heartbeat);
  if (!validation) return;
  const int64_t passes = validation->stream().steps();
  if (const int64_t seen = validation->look_at_images(1, passes, kMostHeldOut, heartbeat); seen < passes && reports)
    log_line(
        fmt::format("note: of the held-out images those of {} of {} passes were looked at before the run; one of "
                    "the others that is damaged ends the evaluation",
                    seen, passes));
}

int train_rank(Run& run, int rank, int place, Comm* comm) {
  const JobConfig& options = run.options;
  const Cut& cut = run.planned.spec.cut;
  const bool reports = rank == 0;
  const Heartbeat heartbeat = heartbeat_of(comm);
  StreamSource data(run.corpus.training, run.corpus.training_samples, packing_options(options, heartbeat),
                    {cut.passes, cut.ranks, cut.micro_batch}, run_length(options), rank,
                    image_batches(run.corpus, options));
  std::optional<StreamSource> validation;
  if (run.corpus.validates())
    validation.emplace(validation_source(run.corpus, options, cut.micro_batch, cut.ranks, rank, heartbeat));
  RunObjective objective(run.planned.spec, run.corpus, data, validation ? &*validation : nullptr);
  std::list<StreamSource> files = validation_sources(run.corpus, options, cut.micro_batch, cut.ranks, rank, heartbeat);
  const TrainerOptions held_out = held_out_of(objective, files);
  refuse_other_metric(options, held_out);
  const int64_t steps = data.stream().steps();
  if (reports) {
    tell_plan(run, data.stream(), validation ? &validation->stream() : nullptr);
    std::filesystem::create_directories(options.out);
  }
  rehearse_saving(saving_plan(run.planned, options, steps), comm, log_line);
  const auto interrupted = [&] { return run.events.interrupted && run.events.interrupted(); };
  const ReferenceOptions of_reference{interrupted, [&] {
                                        require_owned(run);
                                        objective.keep_references();
                                      }};
  if (stops_before(run, objective, of_reference, rank, place, comm)) return 130;
  Session session = rank_session(run.planned, options, rank, place, comm);
  const double load_seconds = seconds_to_load(session);
  if (reports) log_line(fmt::format("all weights are in place after {:.1f} s", load_seconds));
  if (!run.plan.before.reference &&
      stops_at(run, objective, objective.find_references(session, options, of_reference), comm))
    return 130;
  TrainerOptions trainer_options = trainer_options_of(options, steps);
  connect(trainer_options, run, objective, held_out);
  RunTeller teller(run.events, reports);
  trainer_options.event = [&](const Event& event) { teller.tell(event); };
  trainer_options.step_event = [&](const Event& event) { teller.tell_unlogged(event); };
  trainer_options.interrupted = interrupted;
  watch(trainer_options, run, data, teller, heartbeat);
  Trainer trainer(session, data, validation ? &*validation : nullptr, validation ? validation->stream().steps() : 0,
                  trainer_options);
  if (options.resume) trainer.restore();
  if (reports) say_where_it_begins(trainer.step(), steps, options.resume);
  if (trainer.step() < steps)
    look_at_images(data, validation ? &*validation : nullptr, trainer.step() + 1, reports, heartbeat);
  trainer.agree();
  if (reports) require_owned(run);
  if (reports && trainer.step() < steps) begin_run(run, objective.teacher_file(), heartbeat);
  session.barrier("the beginning of the run");  // until then the contents of --out may be another run's
  run.begun = true;
  if (reports && run.owner) run.owner->settle();
  if (reports) objective.keep_references();
  const int64_t before = trainer.step();
  const Ending ending = train_to_end(trainer, session, run, steps, teller);
  const std::vector<RankBytes> ranks = bytes_of_ranks(session, comm);
  if (reports) {
    if (comm) log_line(fmt::format("ranks: {}", ranks_text(ranks, cut.ranks)));
    if (const int64_t reapplied = session.reapplied_steps(); reapplied > 0)
      log_line(fmt::format("steps that were clipped, and updated again: {} of {}; where they are many, {} costs time",
                           reapplied, trainer.step() - before, option_name("speculative_updates")));
    const std::string result = (std::filesystem::path(options.out) / trained_parts(options)).string();
    log_line_for_people(fmt::format(
        "{}{} of step {} is in {}{}",
        ending == Ending::Interrupted ? "interrupted; " + option_name("resume") + " goes on from here. The " : "The ",
        trained_parts(options), trainer.step(), result, which_is_best(trainer, options)));
    run.end = {.interrupted = ending == Ending::Interrupted,
               .out = options.out,
               .result = result,
               .steps = trainer.step(),
               .loss = trainer.loss(),
               .load_seconds = load_seconds,
               .ranks = ranks};
    if (const auto best = trainer.best()) run.end.best_step = best->first;
  }
  teller.end();
  return ending == Ending::Interrupted ? 130 : 0;
}

// Returns where to go on: what was saved before an error of the machine is intact.
std::string where_to_go_on(const Run& run) {
  const auto last = run.begun && !run.lost ? Checkpoints(run.options.out, run.options.keep).last() : std::nullopt;
  return last ? fmt::format("; {} goes on from {}", option_name("resume"), last->string()) : "";
}

// Writes how the run ended, if it began; else the directory in which saving was rehearsed goes, where no run has been.
// What keeps that from being done is less than what ended it.
void note_end(const Run& run, const char* how, const std::string& message) {
  if (run.lost || !run.owner) return;
  const std::filesystem::path out = run.options.out;
  try {
    if (run.begun)
      write_text(out / kRunEnd, write_end({how, local_time(), message}));
    else if (!is_file(out / "job.yaml"))
      std::filesystem::remove(Checkpoints(out, run.options.keep).root());  // only if it is empty
  } catch (const std::exception&) {
  }
}

// Returns whether the run that goes on was ended by a damaged image. To go on that must be mended.
bool ended_at_an_image(const JobConfig& options) {
  const std::filesystem::path file = std::filesystem::path(options.out) / kRunEnd;
  if (!options.resume || !is_file(file)) return false;
  const RunEnd end = parse_end(read_text(file, kMaxConfigBytes), file.string());
  return end.how == "failed" && end.message.find(kCannotDecode) != std::string::npos;
}

// Returns what a checkpoint holds of the data, with the bytes of its images.
Fields fields_of_data(Corpus& corpus, const JobConfig& options, const Heartbeat& heartbeat) {
  Fields fields = data_fields(corpus, options, heartbeat);
  if (ended_at_an_image(options))
    corpus.notes.push_back(
        "the run ended at an image that could not be decoded, which may be another by now: whether the bytes of images "
        "are those with which it began is not looked at");
  else
    std::ranges::move(image_fields(corpus, heartbeat), std::back_inserter(fields));
  return fields;
}

// Checks in the first process for all: if it refuses, so do the others.
void by_the_first(Comm* comm, const std::function<void()>& check) {
  std::exception_ptr refused;
  if (!comm || comm->topology().rank == 0) try {
      check();
    } catch (...) {
      refused = std::current_exception();
    }
  if (comm && comm->allgather_host(refused ? 1 : 0, "the check of its directory")[0] && !refused)
    user_error("out: refused, as the first of the processes says");
  if (refused) std::rethrow_exception(refused);
}

}  // namespace

RunResult Job::run(const RunEvents& events) const {
  JobConfig options = config_;
  if (options.early_stopping > 0 && (options.validation.empty() || options.eval_every.count == 0))
    user_error("early_stopping: found {}, expected {} and {} beside it: it counts evaluations", options.early_stopping,
               option_name("validation"), option_name("eval_every"));
  std::unique_ptr<Comm> comm = launched("train");
  if (options.out.empty()) {
    if (comm)
      user_error("{} is required where a launcher starts several processes: the run's directory, the same on all",
                 option_name("out"));
    options.out = default_out(options);
  }
  Target target(options);
  target.require_here();
  resolve_ranks(options, target, PlanMode::Run, comm.get());
  if (comm) agree_on_inputs(options, *comm);
  refuse_disk_dir(options, PlanMode::Run);
  std::unique_ptr<DirectoryOwner> owner;
  by_the_first(comm.get(), [&] {
    owner = own_out(options);
    refuse_out(options);
  });
  keep_cut_of_run(options);
  const Heartbeat heartbeat = heartbeat_of(comm.get());
  Corpus corpus = read_corpus(options, heartbeat);
  note_found(corpus, options, heartbeat);
  keep_ends_of_run(options, corpus);
  Fields fields = fields_of_data(corpus, options, heartbeat);
  JobSpec spec = job_of_run(options, fields, heartbeat);
  if (spec.model.scores) {
    const std::vector<int32_t>& ends = corpus.prompt_format.end_tokens;
    std::vector<int64_t> all = model_tokens(options).end_tokens;
    all.insert(all.end(), ends.begin(), ends.end());
    spec.pad_token = pad_token_of(options, all);
  }
  spec.cut.short_eighths = short_passes(filled_share(corpus, options, heartbeat));
  const ImageCache cache = find_image_cache(spec, corpus, options, target, PlanMode::Run, comm.get());
  use_image_cache(cache, spec, corpus, options);
  JobsBefore before{plan_reference(spec, options, comm.get()),
                    plan_embedding(cache, spec, options, target, PlanMode::Run, comm.get())};
  std::optional<SavedState> saved = saved_by_others(options, spec);
  Planned chosen = plan_training(std::move(spec), options, std::move(target), corpus.validates(), PlanMode::Run,
                                 comm.get(), std::move(saved));
  Plan plan{.config = std::move(options), .planned = std::move(chosen), .before = std::move(before)};
  const Planned& planned = plan.planned;
  require_weights(planned.spec.sources);
  require_fit(planned, plan.config);
  make_initial_halves(planned.spec, heartbeat);
  make_new_rows(planned.spec);
  if (events.starts) events.starts();
  fields.push_back(weights_field(planned.spec, heartbeat));
  Run run{plan,
          events,
          corpus,
          fields,
          write_prompt_format(plan.config, corpus, planned.spec),
          comm ? machines_text(*comm, planned.spec.cut.ranks) : "",
          cache,
          owner.get()};
  try {
    run.end.interrupted =
        0 != run_ranks(
                 planned.spec.cut.ranks, planned.spec.strategy.replicas, std::move(comm),
                 [&](int rank, int place, Comm* ranks) { return train_rank(run, rank, place, ranks); }, kPatience,
                 [&] { return where_to_go_on(run); });
    run.end.out = plan.config.out;
    note_end(run, run.end.interrupted ? "interrupted" : "ended", "");
    return run.end;
  } catch (const std::bad_alloc&) {
    note_end(run, "failed", no_more_memory());
    throw;
  } catch (const std::exception& error) {
    note_end(run, "failed", error.what());
    throw;
  }
}

}  // namespace snug
