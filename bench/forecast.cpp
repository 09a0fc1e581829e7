// Step times as they are forecast beside step times as they are, for arrangements of a SmolLM2-135M with random
// weights, and the planner's choice beside the best of what was measured.
//
//   forecast [--threads 2] [--steps 2] [--cpu-time] [--ops]
//
// The machine is measured first, in the same run. --cpu-time counts the processor's seconds instead of the clock's,
// which for one thread says the same on a quiet machine and is of use on one that is shared. --ops shows for each kind
// of op what was forecast and what it took, over all arrangements.
#include <CLI/CLI.hpp>
#include <map>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "base/file.h"
#include "base/parallel.h"
#include "exec/executor.h"
#include "full_batch.h"
#include "measure/measure.h"
#include "plan/fit.h"

namespace {

using namespace snug;

constexpr std::string_view kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 576,
  "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
  "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 100000, "tie_word_embeddings": true,
  "vocab_size": 49152, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 0})";

struct Case {
  bool full;
  int64_t sequence, micro, passes;
  Recompute recompute;
  bool offload;
};

using enum Recompute;
// The first eight are one job, which the planner is asked about too.
constexpr size_t kOneJob = 8;
constexpr Case kCases[] = {
    {false, 256, 1, 4, None, false},  {false, 256, 2, 2, None, false},      {false, 256, 4, 1, None, false},
    {false, 256, 1, 4, Block, false}, {false, 256, 4, 1, Mlp, false},       {false, 256, 4, 1, Attention, false},
    {false, 256, 4, 1, Block, false}, {false, 256, 2, 2, Mlp, true},        {false, 256, 1, 1, None, false},
    {false, 256, 1, 1, Mlp, false},   {false, 256, 1, 1, Attention, false}, {false, 256, 1, 1, Block, false},
    {false, 256, 1, 1, Block, true},  {false, 256, 8, 1, None, false},      {false, 512, 1, 1, None, false},
    {false, 512, 1, 1, Block, true},  {false, 1024, 1, 1, None, false},     {false, 1024, 1, 1, Mlp, true},
    {true, 256, 1, 1, None, false},   {true, 256, 1, 1, Attention, false},  {true, 256, 1, 1, Block, true},
    {true, 256, 1, 2, None, false},   {true, 256, 2, 1, None, false},       {true, 512, 1, 1, Mlp, false},
};

// The word for what is computed again, if there is one.
Recompute recompute_of(const Fates& fates) {
  for (const Recompute r : {Recompute::Mlp, Recompute::Attention, Recompute::Block})
    if (fates == fates_of(r)) return r;
  return Recompute::None;
}

JobSpec job_of(const std::string& model, const Case& c) {
  JobSpec spec;
  spec.config = read_hf_config(model);
  spec.table = c.full ? full_parameters(spec.config, true)
                      : lora_parameters(spec.config, {.rank = 16, .alpha = 32, .target_modules = linear_names()}, true);
  spec.sources = find_sources(spec.table, {model, true, 1, std::nullopt});
  spec.cut.sequence_length = c.sequence;
  spec.cut.micro_batch = c.micro;
  spec.cut.passes = c.passes;
  spec.strategy = plain_strategy(spec.table.blocks.size(), c.recompute);
  for (Fates& fates : spec.strategy.fates)
    if (c.offload) fates.input = Fate::Offload;
  return spec;
}

struct Spent {
  double forecast = 0, measured = 0;
};

// The CPU backend with a clock around every launch.
class TimedBackend : public Backend {
 public:
  TimedBackend(Clock clock, std::map<std::string, Spent>& rows) : clock_(clock), rows_(rows) {}
  std::byte* reserve(Space space, uint64_t bytes) override { return cpu_.reserve(space, bytes); }
  Launch bind(const Op& op, std::span<const TensorView> views) override {
    return [launch = cpu_.bind(op, views), &spent = rows_[row_of(op)], clock = clock_](const PassFacts& facts) {
      const double start = clock();
      launch(facts);
      spent.measured += clock() - start;
    };
  }
  // "block.3.fwd.gate_up" -> "fwd.gate_up": the same op of all blocks is one row.
  static std::string row_of(const Op& op) {
    if (op.site.starts_with("block.")) return op.site.substr(op.site.find('.', 6) + 1);
    if (op.site.starts_with("head.")) return op.site;
    return std::string(kind(op.attrs));
  }

 private:
  CpuBackend cpu_;
  Clock clock_;
  std::map<std::string, Spent>& rows_;
};

class Forecaster {
 public:
  Forecaster(std::string model, Pricing pricing, Clock clock, int steps)
      : model_(std::move(model)), pricing_(std::move(pricing)), clock_(clock), steps_(steps) {}

  // Prints and returns what one case was forecast and took.
  Spent run(const Case& c) {
    const JobSpec spec = job_of(model_, c);
    const Compiled compiled = compile(spec, CpuFacts());
    TimedBackend backend(clock_, rows_);
    Arena arena(backend, compiled.plan, ".");
    auto host = [&](const HostTask& task, std::span<const TensorView> views, PassFacts& pass) {
      if (task.job == HostJob::FillBatch) fill_batch(views, pass, spec.cut, spec.config.vocabulary);
    };
    Executor executor(compiled.set, compiled.plan, backend, arena, nullptr, host, LaneMode::Inline, pricing_.threads);
    executor.run(compiled.at(Task::Load), {});
    Spent spent{step_seconds(compiled, pricing_), 1e9};
    for (int step = 1; step <= steps_; step++) {
      PassFacts pass{.loss_scale = 1.0f / static_cast<float>(spec.cut.step_tokens()), .step = step};
      const double start = clock_();
      auto issue = [&](Task task) {
        executor.run(compiled.at(task), pass);
        for (const Op& op : compiled.set.programs[compiled.at(task)].ops)
          rows_[TimedBackend::row_of(op)].forecast +=
              seconds(op, compiled.set.buffers, pricing_.machine, pricing_.threads);
      };
      for (const Task task : compiled.passes) issue(task);
      issue(Task::Update);
      spent.measured = std::min(spent.measured, clock_() - start);
    }
    fmt::print("| {} | {} | {} x {} | {} | {} | {:.3f} | {:.3f} | {:+.1f} % |\n", c.full ? "full" : "lora", c.sequence,
               c.passes, c.micro, name(c.recompute), c.offload ? "host" : "none", spent.forecast, spent.measured,
               100 * (spent.forecast / spent.measured - 1));
    std::fflush(stdout);
    return spent;
  }

  // What the planner takes of the job that the first cases are.
  Case choice() const {
    JobSpec spec = job_of(model_, kCases[0]);
    Choices choices;
    choices.batch_size = kCases[0].micro * kCases[0].passes;
    Caps caps;
    caps.shared = true;
    const FitResult result = fit(spec, choices, caps, CpuFacts(), pricing_);
    const Arrangement& a = result.tried[*result.chosen];
    fmt::print("\nthe planner chose: {}\n", a.words);
    return {false, kCases[0].sequence, a.cut.micro_batch, a.cut.passes, recompute_of(a.strategy.fates[0]), false};
  }

  void print_ops() const {
    std::vector<std::pair<std::string, Spent>> rows(rows_.begin(), rows_.end());
    std::ranges::sort(rows, std::greater(), [](const auto& row) { return row.second.measured; });
    for (const auto& [name, spent] : rows)
      if (spent.forecast > 0)
        fmt::print("{:<34} {:8.3f} s forecast {:8.3f} s measured {:+6.1f} %\n", name, spent.forecast, spent.measured,
                   100 * (spent.forecast / spent.measured - 1));
  }

 private:
  std::string model_;
  Pricing pricing_;
  Clock clock_;
  int steps_;
  std::map<std::string, Spent> rows_;
};

int run(int threads, int steps, bool cpu_time, bool ops) {
  const std::filesystem::path model = std::filesystem::temp_directory_path() / "snug-forecast-model";
  std::filesystem::create_directories(model);
  write_text(model / "config.json", kConfig);
  const Clock clock = cpu_time ? cpu_seconds : wall_seconds;
  Pricing pricing;
  pricing.threads = threads;
  pricing.machine.product_sizes = measured_product_sizes();
  const double start = wall_seconds();
  pricing.machine.teams = {measure_team(threads, pricing.machine.product_sizes, clock)};
  fmt::print("machine measured in {:.0f} s; {} of {} threads, the best of {} steps\n\n", wall_seconds() - start,
             cpu_time ? "processor time" : "time", threads, steps);
  fmt::print("| method | sequence | passes x blocks | recompute | inputs | forecast (s) | measured (s) | off |\n");
  fmt::print("|---|---|---|---|---|---|---|---|\n");
  Forecaster forecaster(model.string(), pricing, clock, steps);
  double best = 1e9, worst = 0, chosen = 0;
  const Case choice = forecaster.choice();
  for (size_t i = 0; i < std::size(kCases); i++) {
    const Case& c = kCases[i];
    const Spent spent = forecaster.run(c);
    worst = std::max(worst, std::abs(spent.forecast / spent.measured - 1));
    if (i >= kOneJob) continue;
    best = std::min(best, spent.measured);
    if (c.micro == choice.micro && c.recompute == choice.recompute && !c.offload) chosen = spent.measured;
  }
  if (chosen == 0) chosen = forecaster.run(choice).measured;
  fmt::print("\nlargest difference {:.1f} %; the planner's choice takes {:.3f} s, {:+.1f} % of the best measured\n",
             100 * worst, chosen, 100 * (chosen / std::min(best, chosen) - 1));
  if (ops) forecaster.print_ops();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Forecast step times beside measured ones"};
  int threads = 2, steps = 2;
  bool cpu_time = false, ops = false;
  app.add_option("--threads", threads);
  app.add_option("--steps", steps);
  app.add_flag("--cpu-time", cpu_time);
  app.add_flag("--ops", ops);
  CLI11_PARSE(app, argc, argv);
  return run(threads, steps, cpu_time, ops);
}
