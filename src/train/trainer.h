// Runs the loop of a job: steps, evaluation, checkpoints, metrics.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>

#include "base/event.h"
#include "data/image_layout.h"
#include "tensor/batch.h"
#include "tensor/step_scalars.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/run_watch.h"
#include "train/schedule.h"
#include "train/step_objective.h"

namespace snug {

// Gives batches: all ranks' loss tokens are known before a step, its tokens are filled in pass by pass.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  struct Step {
    int64_t tokens = 0, loss_tokens = 0;  // over all passes; loss tokens are never 0
    bool ends_epoch = false;
    int64_t samples = 0;
  };
  // Begins step `step`, counted from 1.
  virtual Step begin_step(int64_t step) = 0;
  // Returns the tokens in the documents of a pass of the step begun last, on the rank that has the most: equal on all
  // ranks.
  virtual int64_t pass_tokens(int64_t pass) const = 0;
  // Returns the patches of its images, on the rank that has the most: equal on all ranks.
  virtual int64_t pass_patches(int64_t pass) const = 0;
  // Makes fill() and pass_tokens() speak of these documents of samples alone, until it is called again.
  virtual void choose(Half half) = 0;
  // Fills a batch for pass `pass` of the step begun last, and sets the counts in its scalars.
  virtual void fill(int64_t pass, const BatchViews& views, RuntimeScalars& runtime) = 0;
  virtual void fill_images(int64_t pass, const ImageViews& views, RuntimeScalars& runtime) = 0;
  // Fills in what a teacher says of the rows of that pass.
  virtual void fill_teacher(int64_t pass, const TeacherViews& views) = 0;
  // Fills in the rows that the tower made of the pass's images, where the pass has none (JobSpec::given_embeddings).
  virtual void fill_embeddings(int64_t pass, const EmbeddingViews& views) = 0;

  // Returns the shape of a pass.
  int shape_of(const Cut& cut, int64_t pass) const { return cut.shape_for(pass_tokens(pass), pass_patches(pass)); }
};

// Makes the session's batches those of a source; `pass_of` returns which pass of the step a program's pass is.
void serve_batches(Session& session, BatchSource& source, std::function<int64_t(int64_t index)> pass_of);

// Says how often something is done: every number of steps or seconds, or with each epoch's last step; if none is set,
// not before the end.
struct Interval {
  int64_t steps = 0;
  double seconds = 0;
  bool epochs = false;
};

// Holds a part of what is evaluated, with a name: each of its passes is a "step" of one pass of the source, for which
// an `objective` is made; null: the cross-entropy of labels.
struct EvaluationPart {
  std::string name;
  BatchSource* source = nullptr;
  int64_t passes = 0;
  StepObjective* objective = nullptr;
};

struct TrainerOptions {
  std::filesystem::path out;
  Schedule schedule;
  int64_t steps = 0;
  Interval evaluate, save, log_interval{1, 0};
  int64_t keep = 2;
  std::string best_metric = "eval_loss";  // of what is held out: it says which step is the best
  int64_t early_stopping = 0;             // the run ends after so many evaluations without a better one; 0: none
  MetricsFormats metrics_formats;
  // Rank 0 calls them: with {"event": "step", ...} after every step, as metrics.jsonl has it; and with "checkpoint"
  // when one is on disk.
  std::function<void(const Event&)> step_event = [](const Event&) {};
  std::function<void(const Event&)> event = [](const Event&) {};
  std::filesystem::path trace;                    // a Chrome trace of the first steps is written there; empty: none
  StepObjective* objective = nullptr;             // of the data; null: the cross-entropy of its labels
  StepObjective* validation_objective = nullptr;  // of what is held out
  // Lists what is held out by its files, of which each has metrics of its own besides those of all; empty: one. Their
  // objectives belong to that of all.
  std::vector<EvaluationPart> validation_parts{};
  PerSpace<uint64_t> overhead{};  // bytes taken besides the arenas
  PerSpace<uint64_t> planned{};   // bytes that were planned for arenas and these
  Fields fields{};  // of the data and of the weights that are not trained: what resuming compares, besides
                    // those of the job
  std::function<bool()> interrupted = [] { return false; };  // asked after every step
  // Rank 0 calls it before it writes anything into `out`; it throws where another process has taken that over.
  std::function<void()> require_owned = [] {};
  std::function<void(const std::string&)> log = [](const std::string&) {};
  // Rank 0 calls it after the steps of `log_interval`: with their lines for people, and the event.
  std::function<void(const std::string& lines, const Event& event)> log_step = [](const std::string&, const Event&) {};

  // Rank 0 asks it after each step; and calls the other with what it finds, before the next step begins.
  std::optional<RunWatch> watch;
  std::function<void(int64_t step, const Warning& warning)> warn = [](int64_t, const Warning&) {};

  // Returns the names of the metrics that steps have besides those of StepMetrics.
  std::vector<std::string> metric_names() const;
};

struct EvaluationResult {
  double loss = 0;  // mean over loss tokens, or the objective's
  int64_t tokens = 0, loss_tokens = 0, samples = 0;
  NamedNumbers metrics{};  // of an objective
};

// Returns the mean loss over `passes` passes of a source (each a "step" of one pass), on a session with Task::Evaluate.
// It is equal to the bit on any number of ranks, as the losses of passes are summed in fp64 in the order of their
// blocks, but where there are images: blocks are then dealt out (StepShape), and sums have another order. An
// `objective` is made for the source.
EvaluationResult evaluate(Session& session, BatchSource& source, int64_t passes, StepObjective* objective = nullptr);

// Returns the same of parts, and of all of them together, whose objective is `whole`: they go through the model once.
struct Evaluation {
  EvaluationResult whole;
  std::vector<EvaluationResult> parts;
};
Evaluation evaluate(Session& session, std::span<const EvaluationPart> parts, StepObjective* whole);

// Returns the first parameter, of those that this rank has in memory and that were not updated within the backward,
// with a value that is not finite; UINT64_MAX if there is none. It serves to explain a loss that is not finite. It must
// be called when nothing runs.
uint64_t non_finite_weight(Session& session);
// Names the sync point at which each rank brings the parameter that it found.
constexpr const char* kNonFiniteWeight = "the search for a weight that is not finite";

// Returns the name in metrics.jsonl of a part's number: "eval_math_loss".
std::string metric_of_part(const EvaluationPart& part, std::string_view metric);

enum class Ending : uint8_t { Done, Interrupted };

// Returns whether a metric of what is held out is better where it is greater: rewards, their margins and accuracies
// are, and log-probabilities; losses and distances are not.
bool is_better_greater(std::string_view metric);

class Trainer {
 public:
  // `validation` may be null; then nothing is evaluated. The session must be loaded.
  Trainer(Session& session, BatchSource& data, BatchSource* validation, int64_t validation_passes,
          TrainerOptions options);

  // Goes on from the last checkpoint, if there is one.
  void restore();
  // Throws UserError on all ranks unless they are about to run one job. It must be called before run().
  void agree();
  // Runs to the last step, or until interrupted; a checkpoint is saved in either case. Throws UserError if a loss or
  // norm is not finite, with the step and the first bad parameter; parameters are then those before that step.
  Ending run();

  // Return the last step that was done, and its loss if it was done here.
  int64_t step() const { return state_.step; }
  std::optional<double> loss() const { return metrics_.step > 0 ? std::optional(metrics_.loss) : std::nullopt; }
  // Returns the step with the best held-out loss or other metric, and that number, if any was evaluated.
  std::optional<std::pair<int64_t, double>> best() const {
    return state_.best_eval_loss ? std::optional(std::pair(state_.best_step, *state_.best_eval_loss)) : std::nullopt;
  }

 private:
  void do_step(int64_t number);
  void score_others(const RuntimeScalars& runtime);
  void run_passes(const RuntimeScalars& runtime);
  void refuse_non_finite(int64_t number);
  void evaluate_now();
  void warn_of(int64_t number);
  bool stops_early() const;
  void save_now(int64_t number, bool saved);
  bool is_lost();
  [[noreturn]] void refuse_lost() const;
  std::filesystem::path trace_path() const;

  Session& session_;
  BatchSource& data_;
  BatchSource* validation_;
  int64_t validation_passes_;
  TrainerOptions options_;
  Checkpoints checkpoints_;
  CheckpointState state_;
  StepMetrics metrics_;
  // Holds when the time of the current step began: where that of the one before ended, as lanes may still work on that
  // one.
  std::chrono::steady_clock::time_point begun_;
  bool ends_epoch_ = false;
  std::exception_ptr lost_;  // names the process that has the run's directory now, if that is another one
  double busy_seconds_ = 0;  // that this process took of all processors until the last step ended
  float loss_sum_ = 0;
  StepScalars scalars_;
};

}  // namespace snug
