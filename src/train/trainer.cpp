#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <ctime>

#include "base/hash.h"
#include "base/memory.h"
#include "base/option_name.h"
#include "base/say.h"
#include "plan/lowering/fingerprint.h"

namespace snug {
namespace {

using Clock = std::chrono::steady_clock;

// Flags for what is due after a step.
constexpr uint64_t kEvaluate = 1, kSave = 2, kStop = 4, kLost = 8;

// A trace has this many steps: the first does what later ones need not, and few suffice to see what repeats.
constexpr int64_t kTracedSteps = 5;

// Returns the seconds that the threads of this process have run, together.
double seconds_of_processors() {
  timespec taken{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &taken);
  return static_cast<double>(taken.tv_sec) + 1e-9 * static_cast<double>(taken.tv_nsec);
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Decides when something is due next.
class Due {
 public:
  explicit Due(Interval interval) : interval_(interval) {}
  bool after(int64_t step, bool ends_epoch) {
    const bool due = (interval_.steps > 0 && step % interval_.steps == 0) ||
                     (interval_.seconds > 0 && seconds_since(last_) >= interval_.seconds) ||
                     (interval_.epochs && ends_epoch);
    if (due) last_ = Clock::now();
    return due;
  }

 private:
  Interval interval_;
  Clock::time_point last_ = Clock::now();
};

// Returns how often preferred replies had the higher reward, and by how much; empty where nothing is preferred to
// anything.
std::string preferences_text(const NamedNumbers& metrics, const std::string& prefix) {
  const auto either = [&](const char* of_replies, const char* of_scores) {
    const auto found = number_of(metrics, prefix + of_replies);
    return found ? found : number_of(metrics, prefix + of_scores);
  };
  const auto accuracy = either("rewards/accuracies", "accuracy"), margin = either("rewards/margins", "margin");
  return accuracy && margin ? fmt::format("  accuracy {:.2f}  margin {:.3f}", *accuracy, *margin) : "";
}

// Returns what is held out of one file, as a line.
std::string text_of_part(const EvaluationPart& part, const NamedNumbers& metrics) {
  return fmt::format("  {}: held-out loss {:.4f}{}", part.name,
                     number_of(metrics, metric_of_part(part, "loss")).value(),
                     preferences_text(metrics, metric_of_part(part, "")));
}

}  // namespace

void serve_batches(Session& session, BatchSource& source, std::function<int64_t(int64_t index)> pass_of) {
  session.on(HostJob::FillBatch,
             [&source, pass_of](const HostTask& task, std::span<const TensorView> views, RuntimeScalars& runtime) {
               source.fill(pass_of(task.index), batch_views(views), runtime);
             });
  session.on(HostJob::FillImages,
             [&source, pass_of](const HostTask& task, std::span<const TensorView> views, RuntimeScalars& runtime) {
               source.fill_images(pass_of(task.index), image_views(views), runtime);
             });
  session.on(HostJob::FillTeacher,
             [&source, pass_of](const HostTask& task, std::span<const TensorView> views, RuntimeScalars&) {
               source.fill_teacher(pass_of(task.index), teacher_views(views));
             });
  session.on(HostJob::FillEmbeddings,
             [&source, pass_of](const HostTask& task, std::span<const TensorView> views, RuntimeScalars&) {
               source.fill_embeddings(pass_of(task.index), embedding_views(views));
             });
}

namespace {

// Runs the passes of a part, of those documents of its samples, and adds what they hold to the result.
void evaluate_part(Session& session, const EvaluationPart& part, Half half, EvaluationResult& result) {
  part.source->choose(half);
  for (int64_t pass = 1; pass <= part.passes; pass++) {
    const BatchSource::Step counts = part.source->begin_step(pass);
    result.tokens += counts.tokens;
    result.loss_tokens += counts.loss_tokens;
    result.samples += counts.samples;
    session.run(Task::Evaluate, {}, part.source->shape_of(session.spec().cut, 0));
  }
}

// Sets loss and metrics; `sum` is of the losses of tokens.
void finish(EvaluationResult& result, double sum, const StepObjective* objective) {
  check(result.loss_tokens > 0, "an evaluation without loss tokens");
  result.loss = objective ? objective->loss() : sum / static_cast<double>(result.loss_tokens);
  if (objective) result.metrics = objective->metrics();
}

}  // namespace

Evaluation evaluate(Session& session, std::span<const EvaluationPart> parts, StepObjective* whole) {
  Evaluation found;
  found.parts.resize(parts.size());
  std::vector<double> sums(parts.size());
  size_t i = 0;
  bool learnt = true;
  session.on(HostJob::TakeLoss, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    const float* by_rank = views[0].as<float>();
    for (int64_t rank = 0; rank < views[0].count(); rank++) sums[i] += static_cast<double>(by_rank[rank]);
  });
  session.on(HostJob::TakeScores, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    learnt ? parts[i].objective->add(0, views[0]) : parts[i].objective->add_others(0, views[0]);
  });
  if (whole) whole->begin();
  for (const EvaluationPart& part : parts)
    if (part.objective) part.objective->begin();
  const std::vector<Half> halves = whole ? whole->parts() : std::vector{Half::Both};
  for (const Half half : halves) {
    learnt = half == halves.back();
    found.parts.assign(parts.size(), {});  // the documents that are learnt from count, which come last
    for (i = 0; i < parts.size(); i++) {
      serve_batches(session, *parts[i].source, [](int64_t) { return 0; });
      evaluate_part(session, parts[i], half, found.parts[i]);
    }
  }
  double sum = 0;
  for (i = 0; i < parts.size(); i++) {
    finish(found.parts[i], sums[i], parts[i].objective);
    sum += sums[i];
    found.whole.tokens += found.parts[i].tokens;
    found.whole.loss_tokens += found.parts[i].loss_tokens;
    found.whole.samples += found.parts[i].samples;
  }
  finish(found.whole, sum, whole);
  return found;
}

EvaluationResult evaluate(Session& session, BatchSource& source, int64_t passes, StepObjective* objective) {
  const EvaluationPart all{"", &source, passes, objective};
  return evaluate(session, std::span(&all, 1), objective).whole;
}

bool is_better_greater(std::string_view metric) {
  constexpr std::string_view kGreater[] = {"accuracies",     "accuracy",       "margins",
                                           "margin",         "rewards/chosen", "logps/chosen",
                                           "logps/rejected", "mean_reward",    "agreement"};
  return std::ranges::any_of(kGreater, [&](std::string_view word) { return metric.ends_with(word); });
}

std::string metric_of_part(const EvaluationPart& part, std::string_view metric) {
  return fmt::format("eval_{}_{}", part.name, metric);
}

std::vector<std::string> TrainerOptions::metric_names() const {
  std::vector<std::string> names;
  if (objective) names = objective->metric_names();
  if (validation_objective)
    for (const std::string& name : validation_objective->metric_names()) names.push_back("eval_" + name);
  for (const EvaluationPart& part : validation_parts) {
    names.push_back(metric_of_part(part, "loss"));
    if (!part.objective) continue;
    for (const std::string& name : part.objective->metric_names()) names.push_back(metric_of_part(part, name));
  }
  return names;
}

Trainer::Trainer(Session& session, BatchSource& data, BatchSource* validation, int64_t validation_passes,
                 TrainerOptions options)
    : session_(session),
      data_(data),
      validation_(validation),
      validation_passes_(validation_passes),
      options_(std::move(options)),
      checkpoints_(options_.out, options_.keep, options_.require_owned) {
  state_.fields = fields_of(session.spec());
  state_.fields.insert(state_.fields.end(), options_.fields.begin(), options_.fields.end());
  state_.program_hash = session.compiled().hash;
  state_.best_metric = options_.best_metric;
  session_.on(HostJob::TakeMetrics, [this](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    loss_sum_ = views[0].as<float>()[0];
    scalars_ = *step_scalars(views[1]);
  });
}

void Trainer::restore() {
  if (checkpoints_.steps().empty()) return;
  const CheckpointState saved = checkpoints_.restore_last(session_, state_);
  const Fields now = without_unsaid(state_.fields, saved.fields), before = without_unsaid(saved.fields, state_.fields);
  const auto changed = [&](std::string_view group) { return differences(now, before, {group}); };
  const auto say = [&](const std::string& line) {
    if (session_.rank() == 0) options_.log(line);
  };
  state_.step = saved.step;
  state_.average = saved.average;
  if (const auto cut = changed(kCutFields); !cut.empty())
    say(fmt::format(
        "a step is cut otherwise than in the checkpoint ({}): the data are the same, sums go in another order",
        fmt::join(cut, ", ")));
  const auto validation = changed(kValidationFields);
  if (validation.empty() && saved.best_metric == options_.best_metric) {
    state_.best_eval_loss = saved.best_eval_loss;
    state_.best_step = saved.best_step;
    state_.evaluations_since_best = saved.evaluations_since_best;
  } else if (validation.empty() && saved.best_eval_loss) {
    say(fmt::format("the best step so far, {}, was that by {}, and counts no more: best_metric is {}", saved.best_step,
                    saved.best_metric, options_.best_metric));
  } else if (saved.best_eval_loss) {
    say(fmt::format("other samples are held out ({}): the best step so far, {}, counts no more",
                    fmt::join(validation, ", "), saved.best_step));
  }
}

void Trainer::agree() {
  const Interval &e = options_.evaluate, &s = options_.save;
  std::string text = fmt::format("{} {} {} {} {} {} {} {} {}", options_.steps, options_.keep, e.steps, e.seconds,
                                 e.epochs, s.steps, s.seconds, s.epochs, validation_ ? validation_passes_ : -1);
  for (const int64_t step : {int64_t{1}, (options_.steps + 1) / 2, options_.steps})
    text += fmt::format(" {}", options_.schedule.at(step));
  session_.agree("the data, or its order", hash_of_fields(options_.fields, {kBlockFields, kContentFields}));
  session_.agree("the schedule of steps", hash_of(text));
  session_.agree("the step that was done last", static_cast<uint64_t>(state_.step));
}

Ending Trainer::run() {
  const bool reports = session_.rank() == 0;
  std::optional<MetricsFiles> files;
  if (reports) files.emplace(options_.out, state_.step, options_.metrics_formats, options_.metric_names());
  Progress progress("step", state_.step, options_.steps, reports);
  LossTrend trend;
  Due evaluation(options_.evaluate), saving(options_.save), logging(options_.log_interval);
  Ending ending = Ending::Done;
  const int64_t first = state_.step + 1;
  int64_t saved = state_.step;
  if (!options_.trace.empty()) {
    session_.write_trace(trace_path());  // better to learn now that it cannot be written
    session_.start_trace(kTracedSteps);
  }
  begun_ = Clock::now();
  bool over = stops_early();
  for (int64_t number = first; number <= options_.steps && ending == Ending::Done && !over; number++) {
    do_step(number);
    state_.step = number;
    const bool last = number == options_.steps;
    // Clocks differ from rank to rank, and a signal may reach only one: rank 0 decides for all, and each may stop all.
    const uint64_t due = session_.as_rank_0((evaluation.after(number, ends_epoch_) ? kEvaluate : 0) |
                                                (saving.after(number, ends_epoch_) ? kSave : 0) |
                                                (!last && options_.interrupted() ? kStop : 0) | (is_lost() ? kLost : 0),
                                            {"the end of step", number}, kStop);
    if (due & kLost) refuse_lost();
    // What was trained is kept whatever the evaluation at the end meets.
    const bool evaluates_saved = validation_ && last;
    if (evaluates_saved) checkpoints_.save(session_, state_);
    if (validation_ && (last || (due & kEvaluate))) {
      evaluate_now();
      if (session_.as_rank_0(is_lost() ? kLost : 0, {"the end of the evaluation after step", number})) refuse_lost();
      begun_ = Clock::now();
    }
    const bool best = metrics_.eval_loss && state_.best_step == number;
    over = stops_early();
    Event event{{"event", "step"}};
    event.update(metrics_json(metrics_));
    if (files) {
      files->append(metrics_);
      options_.step_event(event);
    }
    const std::string line = fmt::format(
        "loss {:.4f}  norm {:.3f}{}  {:.0f} tokens/s{}", metrics_.loss, metrics_.grad_norm,
        preferences_text(metrics_.others, ""), static_cast<double>(metrics_.tokens) / metrics_.step_seconds,
        metrics_.eval_loss
            ? fmt::format("  held-out loss {:.4f}{}", *metrics_.eval_loss, preferences_text(metrics_.others, "eval_"))
            : std::string());
    trend.add(metrics_.loss);
    if (reports && shows_status())
      progress.update(number, status_text(metrics_, trend, options_.planned[index(Space::Device)],
                                          options_.planned[index(Space::Host)],
                                          {session_.device_bytes_taken(), resident_memory()}));
    if (reports && (logging.after(number, ends_epoch_) || last || metrics_.eval_loss)) {
      std::string lines = fmt::format("step {}/{}  {}", number, options_.steps, line);
      if (metrics_.eval_loss)
        for (const EvaluationPart& part : options_.validation_parts)
          lines += "\n" + text_of_part(part, metrics_.others);
      options_.log_step(lines, event);
    }
    if (reports) warn_of(number);
    if (due & kStop) ending = Ending::Interrupted;
    const int64_t left_to_trace = first + kTracedSteps - 1 - number;
    if (!options_.trace.empty() && (left_to_trace == 0 || (left_to_trace > 0 && (last || (due & kStop)))))
      session_.write_trace(trace_path());
    if (last || over || best || (due & (kSave | kStop))) {
      save_now(number, evaluates_saved);
      saved = number;
      begun_ = Clock::now();
    }
  }
  if (reports && over)
    options_.log(fmt::format("early_stopping: {} evaluations brought no better {} than that of step {}",
                             state_.evaluations_since_best, options_.best_metric, state_.best_step));
  check(saved == state_.step, "step {} was trained, the last checkpoint is of step {}", state_.step, saved);
  return ending;
}

void Trainer::do_step(int64_t number) {
  const BatchSource::Step counts = data_.begin_step(number);
  ends_epoch_ = counts.ends_epoch;
  RuntimeScalars runtime;
  check(counts.loss_tokens > 0, "step {} has no loss tokens", number);
  const auto divisor =
      static_cast<double>(session_.spec().objective.weighs_rows() ? counts.samples : counts.loss_tokens);
  runtime.loss_scale = static_cast<float>(1.0 / divisor);
  runtime.step = number;
  runtime.learning_rate = options_.schedule.at(number);
  if (session_.spec().numerics.optimizer == Optimizer::ScheduleFreeAdamW)
    runtime.average_share = state_.average.add(runtime.learning_rate);
  run_passes(runtime);
  session_.run(Task::Update, runtime);
  if (scalars_.finite == 0) refuse_non_finite(number);
  metrics_ = {};
  metrics_.step = number;
  metrics_.loss = options_.objective ? options_.objective->loss() : static_cast<double>(loss_sum_) / divisor;
  if (options_.objective) metrics_.others = options_.objective->metrics();
  metrics_.grad_norm = static_cast<double>(scalars_.norm);
  metrics_.learning_rate = options_.schedule.at(number);
  metrics_.tokens = counts.tokens;
  metrics_.loss_tokens = counts.loss_tokens;
  metrics_.step_seconds = seconds_since(begun_);
  begun_ = Clock::now();
  const auto taken = [this](Space space) { return session_.arena_bytes(space) + options_.overhead[index(space)]; };
  metrics_.device_bytes = taken(Space::Device);
  metrics_.host_bytes = taken(Space::Host);
}

// Scores the documents of the step by which those that are learnt from are weighed.
void Trainer::score_others(const RuntimeScalars& runtime) {
  int64_t pass = 0;
  serve_batches(session_, data_, [&pass](int64_t) { return pass; });
  session_.on(HostJob::TakeScores, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    options_.objective->add_others(pass, views[0]);
  });
  data_.choose(Half::Second);
  const Cut& cut = session_.spec().cut;
  for (; pass < cut.passes; pass++)
    if (data_.pass_tokens(pass) > 0) session_.run(Task::Evaluate, runtime, data_.shape_of(cut, pass));
}

void Trainer::run_passes(const RuntimeScalars& runtime) {
  int64_t first = 0;
  if (StepObjective* const objective = options_.objective) {
    objective->begin();
    if (objective->scores_others()) score_others(runtime);
    data_.choose(objective->learnt());
    session_.on(HostJob::WeighRows,
                [&, objective](const HostTask& task, std::span<const TensorView> views, RuntimeScalars&) {
                  objective->weigh(first + task.index, session_.rank(), views[0], numbers_of<float>(views[1]),
                                   numbers_of<float>(views[2]));
                });
    session_.on(HostJob::TakeScores,
                [&first, objective](const HostTask& task, std::span<const TensorView> views, RuntimeScalars&) {
                  objective->add(first + task.index, views[0]);
                });
  }
  serve_batches(session_, data_, [&first](int64_t index) { return first + index; });
  const Cut& cut = session_.spec().cut;
  const std::vector<Task>& tasks = session_.compiled().passes;
  if (tasks.size() == 1) {
    int64_t tokens = 0, patches = 0;
    for (int64_t pass = 0; pass < cut.passes; pass++) {
      tokens = std::max(tokens, data_.pass_tokens(pass));
      patches = std::max(patches, data_.pass_patches(pass));
    }
    return session_.run(tasks[0], runtime, cut.shape_for(tokens, patches));
  }
  for (const Task task : tasks) {
    // A middle pass without tokens on any rank would only add zeros.
    if (task != Task::Middle || data_.pass_tokens(first) > 0) session_.run(task, runtime, data_.shape_of(cut, first));
    first++;
  }
}

namespace {

// Returns whether all numbers of an operand in memory are finite; codes count as finite.
bool is_finite(Session& session, const Operand& operand) {
  if (session.compiled().set.buffers[operand.buffer].space == Space::Disk) return true;
  std::vector<std::byte> bytes;
  const TensorView view = session.view(operand, bytes);
  auto finite = [&]<class T>(const T* values) {
    return std::all_of(values, values + view.count(), [](T x) { return std::isfinite(static_cast<float>(x)); });
  };
  return view.dtype == DType::F32 ? finite(view.as<float>()) : view.dtype != DType::BF16 || finite(view.as<BFloat16>());
}

}  // namespace

uint64_t non_finite_weight(Session& session) {
  const auto good = [&](const Operand& operand) { return is_finite(session, operand); };
  const std::vector<Compiled::Owned>& all = session.compiled().owned;
  const auto updated = [&](const Compiled::Owned& owned) {
    const auto param = static_cast<size_t>(&owned - all.data());
    return session.compiled().update.in_backward && session.spec().table.params[param].trainable;
  };
  const auto bad = std::ranges::find_if(all, [&](const Compiled::Owned& owned) {
    return owned.span.count() > 0 && !updated(owned) &&
           !(good(owned.weight) && std::ranges::all_of(owned.scales, good));
  });
  return bad == all.end() ? UINT64_MAX : static_cast<uint64_t>(bad - all.begin());
}

void Trainer::refuse_non_finite(int64_t number) {
  const UpdateProgram& update = session_.compiled().update;
  std::vector<std::byte> bytes;
  const TensorView partials = session_.view(update.partials, bytes);
  std::string found;
  for (const UpdateProgram::Units& units : update.units)
    if (found.empty() && !std::all_of(partials.as<float>() + units.begin, partials.as<float>() + units.end,
                                      [](float sum) { return std::isfinite(sum); }))
      found = session_.spec().table[units.param].name;
  session_.flush();
  const uint64_t weight = session_.least_over_ranks(non_finite_weight(session_), kNonFiniteWeight);
  if (weight != UINT64_MAX)
    user_error("step {}: the loss is {}, as '{}' holds a value that is not finite: look at the model's files", number,
               loss_sum_, session_.spec().table.params[weight].name);
  const std::string state = update.in_backward ? "weights were updated before that was known (a run with " +
                                                     option_name("max_grad_norm") +
                                                     " above 0 waits for it), earlier checkpoints are good"
                                               : "nothing was updated, earlier checkpoints are good";
  // The values from the files are gone where weights were updated within the backward.
  const std::string_view suspects =
      update.in_backward && number == 1 ? "the model's files and the data of that step" : "the data of that step";
  if (!found.empty())
    user_error("step {}: the gradient of '{}' is not finite (loss {}); {}: try a lower {}, or look at {}", number,
               found, loss_sum_, state, option_name("learning_rate"), suspects);
  user_error("step {}: loss {} or gradient norm {} is not finite; {}: try a lower {}", number, loss_sum_, scalars_.norm,
             state, option_name("learning_rate"));
}

void Trainer::evaluate_now() {
  const std::vector<EvaluationPart>& parts = options_.validation_parts;
  EvaluationResult result;
  if (parts.empty()) {
    result = evaluate(session_, *validation_, validation_passes_, options_.validation_objective);
  } else {
    const Evaluation found = evaluate(session_, parts, options_.validation_objective);
    result = found.whole;
    for (size_t i = 0; i < parts.size(); i++) {
      metrics_.others.emplace_back(metric_of_part(parts[i], "loss"), found.parts[i].loss);
      for (const auto& [name, value] : found.parts[i].metrics)
        metrics_.others.emplace_back(metric_of_part(parts[i], name), value);
    }
  }
  metrics_.eval_loss = result.loss;
  for (const auto& [name, value] : result.metrics) metrics_.others.emplace_back("eval_" + name, value);
  const bool by_loss = options_.best_metric == "eval_loss";
  const double value = by_loss ? result.loss : number_of(metrics_.others, options_.best_metric).value();
  const double sign = is_better_greater(options_.best_metric) ? -1 : 1;
  state_.evaluations_since_best++;
  if (std::isfinite(value) && (!state_.best_eval_loss || sign * value < sign * *state_.best_eval_loss)) {
    state_.best_eval_loss = value;
    state_.best_step = state_.step;
    state_.evaluations_since_best = 0;
  }
}

// Warns of what the step shows that was done last.
void Trainer::warn_of(int64_t number) {
  const double before = std::exchange(busy_seconds_, seconds_of_processors());
  if (!options_.watch) return;
  for (const Warning& warning : options_.watch->look_at(metrics_, busy_seconds_ - before))
    options_.warn(number, warning);
}

bool Trainer::stops_early() const {
  return options_.early_stopping > 0 && state_.evaluations_since_best >= options_.early_stopping;
}

// Returns, on rank 0, whether another process has the run's directory by now.
bool Trainer::is_lost() {
  if (session_.rank() == 0) try {
      options_.require_owned();
    } catch (const DeviceError&) {
      lost_ = std::current_exception();
    }
  return lost_ != nullptr;
}

// Throws on all ranks; rank 0, which knows it, names the process that has the directory.
void Trainer::refuse_lost() const {
  if (lost_) std::rethrow_exception(lost_);
  device_error("{}: another process has taken it over, as rank 0 says", options_.out.string());
}

void Trainer::save_now(int64_t number, bool saved) {
  state_.step = number;
  saved ? checkpoints_.save_state(session_, state_) : checkpoints_.save(session_, state_);
  if (session_.rank() == 0)
    options_.event({{"event", "checkpoint"}, {"step", number}, {"path", checkpoints_.directory(number).string()}});
}

// Returns the path of the trace; ranks other than the first have names of their own.
std::filesystem::path Trainer::trace_path() const {
  if (session_.rank() == 0) return options_.trace;
  std::filesystem::path name = options_.trace.stem();
  name += fmt::format(".rank-{}", session_.rank());
  name += options_.trace.extension();
  return options_.trace.parent_path() / name;
}

}  // namespace snug
