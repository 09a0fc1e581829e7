// The loop of a run: steps, evaluation, checkpoints, metrics.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>

#include "tensor/batch.h"
#include "tensor/step_scalars.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/schedule.h"

namespace snug {

// Where batches come from: all ranks' loss tokens are known before a step, its tokens are filled in pass by pass.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  struct Step {
    int64_t tokens = 0, loss_tokens = 0;  // over all passes; loss tokens are never 0
    bool ends_epoch = false;
  };
  // Of step `step`, counted from 1.
  virtual Step begin_step(int64_t step) = 0;
  // Tokens in the documents of a pass of the step begun last, on the rank that has the most: alike on all ranks.
  virtual int64_t pass_tokens(int64_t pass) const = 0;
  // Fills a batch for pass `pass` of the step begun last, and sets the counts in its scalars.
  virtual void fill(int64_t pass, const BatchViews& views, RuntimeScalars& runtime) = 0;
};

// Every so many steps or seconds, or with each epoch's last step; none of them: never before the end.
struct Interval {
  int64_t steps = 0;
  double seconds = 0;
  bool epochs = false;
};

struct TrainerOptions {
  std::filesystem::path out;
  Schedule schedule;
  int64_t steps = 0;
  Interval evaluate, save, log_interval{1, 0};
  int64_t keep = 2;
  MetricsFormats metrics_formats;
  // Called by rank 0 with {"event": "step", ...} after a step, as metrics.jsonl has it, and with "checkpoint" when one
  // is on disk.
  std::function<void(const nlohmann::ordered_json&)> event = [](const nlohmann::ordered_json&) {};
  std::filesystem::path trace;    // a Chrome trace of the first steps is written there; empty: none
  PerSpace<uint64_t> overhead{};  // bytes taken beside the arenas
  Fields fields{};  // of the data and of the weights that are not trained: what resuming compares, besides
                    // those of the job
  std::function<bool()> interrupted = [] { return false; };  // asked after every step
  // Called by rank 0 before it writes anything into `out`: throws where another process has taken that over.
  std::function<void()> require_owned = [] {};
  std::function<void(const std::string&)> log = [](const std::string&) {};
};

struct EvaluationResult {
  double loss = 0;  // mean over loss tokens
  int64_t tokens = 0, loss_tokens = 0;
};

// Mean loss over `passes` passes of a source (each a "step" of one pass), on a session with Task::Evaluate. The same to
// the bit on however many ranks: the losses of passes are summed in fp64 in the order of their blocks.
EvaluationResult evaluate(Session& session, BatchSource& source, int64_t passes);

// The first parameter, of those that this rank has in memory and that were not updated within the backward, that holds
// a value which is not finite, to say whose fault a loss is that is not; UINT64_MAX if there is none. When nothing
// runs.
uint64_t non_finite_weight(Session& session);
// Where ranks meet, each with its own.
constexpr const char* kNonFiniteWeight = "the search for a weight that is not finite";

enum class Ending : uint8_t { Done, Interrupted };

class Trainer {
 public:
  // `validation` may be null; then nothing is evaluated. The session is loaded.
  Trainer(Session& session, BatchSource& data, BatchSource* validation, int64_t validation_passes,
          TrainerOptions options);

  // Goes on from the last checkpoint, if there is one.
  void restore();
  // UserError on all ranks if they are not about to do the same. Before run().
  void agree();
  // Runs to the last step, or until interrupted; a checkpoint is saved in either case. UserError if a loss or norm is
  // not finite, with step and first bad parameter: parameters are those before that step.
  Ending run();

  // The last step that was done, and its loss if it was done here.
  int64_t step() const { return state_.step; }
  std::optional<double> loss() const { return metrics_.step > 0 ? std::optional(metrics_.loss) : std::nullopt; }
  // The step with the least held-out loss, and that loss, if any was evaluated.
  std::optional<std::pair<int64_t, double>> best() const {
    return state_.best_eval_loss ? std::optional(std::pair(state_.best_step, *state_.best_eval_loss)) : std::nullopt;
  }

 private:
  void do_step(int64_t number);
  void run_passes(const RuntimeScalars& runtime);
  void refuse_non_finite(int64_t number);
  void evaluate_now();
  void save_now(int64_t number);
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
  // Where the step's time begins: where that of the one before ended, as lanes may still be at work on it.
  std::chrono::steady_clock::time_point begun_;
  bool ends_epoch_ = false;
  std::exception_ptr lost_;  // who has the run's directory, if that is another process by now
  float loss_sum_ = 0;
  StepScalars scalars_;
};

}  // namespace snug
