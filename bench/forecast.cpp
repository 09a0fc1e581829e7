// Step times as they are forecast beside step times as they are, for arrangements of a SmolLM2-135M with random
// weights, and the planner's choice beside the best of what was measured.
//
//   forecast [--rounds 3] [--threads 2] [--steps 2] [--cpu-time] [--ops]
//
// Each round measures the machine and then runs every arrangement; medians over rounds are printed, as the speed of a
// virtual machine wanders by more than what is to be shown. --cpu-time counts the processor's seconds instead of the
// clock's, which for one thread says the same on a quiet machine and is of use on one that is shared. --ops shows for
// each kind of op what was forecast and what it took, over all arrangements.
#include <CLI/CLI.hpp>
#include <map>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "base/file.h"
#include "base/parallel.h"
#include "exec/executor.h"
#include "full_batch.h"
#include "measure/measure.h"
#include "model/model_config.h"
#include "plan/search/fit.h"

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
Recompute recompute_of(const ActivationPolicy& policy) {
  for (const Recompute r : {Recompute::Mlp, Recompute::Attention, Recompute::Block})
    if (policy == policy_of(r)) return r;
  return Recompute::None;
}

JobSpec job_of(const std::string& model, const Case& c) {
  JobSpec spec;
  spec.model = read_model_config(model).spec;
  spec.table =
      c.full ? full_parameters(spec.model, true)
             : lora_parameters(spec.model, {.rank = 16, .alpha = 32, .target_modules = linear_names(spec.model)}, true);
  spec.sources = find_sources(spec.table, {model, true, 1, std::nullopt});
  spec.cut.sequence_length = c.sequence;
  spec.cut.micro_batch = c.micro;
  spec.cut.passes = c.passes;
  spec.strategy = plain_strategy(spec.table, c.recompute);
  for (ActivationPolicy& policy : spec.strategy.activations)
    if (c.offload) policy[ActivationClass::LayerBoundary] = Retention::Offload;
  return spec;
}

struct Spent {
  double forecast = 0, measured = 0;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// What the rounds of one case say.
struct Rounds {
  std::vector<double> forecast, measured, ratio;
  void add(const Spent& spent) {
    forecast.push_back(spent.forecast);
    measured.push_back(spent.measured);
    ratio.push_back(spent.forecast / spent.measured);
  }
  double off() const { return median(ratio) - 1; }
};

// The CPU backend with a clock around every launch.
class TimedBackend : public Backend {
 public:
  TimedBackend(Clock clock, std::map<std::string, Spent>& rows) : clock_(clock), rows_(rows) {}
  std::byte* reserve(Space space, uint64_t bytes) override { return cpu_.reserve(space, bytes); }
  Launch bind(const Op& op, std::span<const TensorView> views) override {
    return [launch = cpu_.bind(op, views), &spent = rows_[row_of(op)], clock = clock_](const RuntimeScalars& runtime) {
      const double start = clock();
      launch(runtime);
      spent.measured += clock() - start;
    };
  }
  // "layer.3.fwd.gate_up" -> "fwd.gate_up": the same op of all layers is one row.
  static std::string row_of(const Op& op) {
    if (op.site.starts_with("layer.")) return op.site.substr(op.site.find('.', 6) + 1);
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
  Forecaster(std::string model, Clock clock, int threads, int steps)
      : model_(std::move(model)), clock_(clock), steps_(steps) {
    pricing_.threads = threads;
    pricing_.machine.product_sizes = measured_product_sizes();
  }

  void measure() { pricing_.machine.teams = {measure_team(pricing_.threads, pricing_.machine.product_sizes, clock_)}; }

  // What one case is forecast on the machine as it was measured last, and takes.
  Spent run(const Case& c) {
    const JobSpec spec = job_of(model_, c);
    const Compiled compiled = compile(spec, CpuFacts());
    TimedBackend backend(clock_, rows_);
    Arena arena(backend, compiled.plan, ".");
    auto host = [&](const HostTask& task, std::span<const TensorView> views, RuntimeScalars& pass) {
      if (task.job == HostJob::FillBatch) fill_batch(views, pass, spec.cut, spec.model.vocabulary);
    };
    const auto executor =
        make_executor(compiled.set, compiled.plan, backend, arena, nullptr, host, LaneMode::Inline, pricing_.threads);
    executor->run(compiled.at(Task::Load), {});
    Spent spent{step_seconds(compiled, pricing_), 1e9};
    for (int step = 1; step <= steps_; step++) {
      RuntimeScalars pass{.loss_scale = 1.0f / static_cast<float>(spec.cut.step_tokens()), .step = step};
      const double start = clock_();
      auto issue = [&](Task task) {
        executor->run(compiled.at(task), pass);
        for (const Op& op : compiled.set.programs[compiled.at(task)].ops)
          rows_[TimedBackend::row_of(op)].forecast +=
              seconds(op, compiled.set.buffers, pricing_.machine, pricing_.threads);
      };
      for (const Task task : compiled.passes) issue(task);
      issue(Task::Update);
      spent.measured = std::min(spent.measured, clock_() - start);
    }
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
    fmt::print("the planner chose: {}\n", a.words);
    return {false, kCases[0].sequence, a.cut.micro_batch, a.cut.passes, recompute_of(a.strategy.activations[0]), false};
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

void print(const Case& c, const Rounds& rounds) {
  fmt::print("| {} | {} | {} x {} | {} | {} | {:.3f} | {:.3f} | {:+.1f} % |\n", c.full ? "full" : "lora", c.sequence,
             c.passes, c.micro, name(c.recompute), c.offload ? "host" : "none", median(rounds.forecast),
             median(rounds.measured), 100 * rounds.off());
}

int run(int rounds, int threads, int steps, bool cpu_time, bool ops) {
  const std::filesystem::path model = std::filesystem::temp_directory_path() / "snug-forecast-model";
  std::filesystem::create_directories(model);
  write_text(model / "config.json", kConfig);
  Forecaster forecaster(model.string(), cpu_time ? cpu_seconds : wall_seconds, threads, steps);
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  std::vector<Rounds> spent(cases.size());
  size_t chosen = 0;
  for (int round = 0; round < rounds; round++) {
    forecaster.measure();
    if (round == 0) {
      const Case choice = forecaster.choice();
      auto same = [&](const Case& c) {
        return c.micro == choice.micro && c.passes == choice.passes && c.recompute == choice.recompute && !c.offload;
      };
      chosen = static_cast<size_t>(std::ranges::find_if(cases.begin(), cases.begin() + kOneJob, same) - cases.begin());
      if (chosen == kOneJob) {
        chosen = cases.size();
        cases.push_back(choice);
        spent.emplace_back();
      }
    }
    for (size_t i = 0; i < cases.size(); i++) {
      spent[i].add(forecaster.run(cases[i]));
      fmt::print(stderr, "round {} of {}, {} of {}: {:+.1f} %\n", round + 1, rounds, i + 1, cases.size(),
                 100 * (spent[i].ratio.back() - 1));
    }
  }
  fmt::print("medians of {} rounds; {} of {} threads, the best of {} steps\n\n", rounds,
             cpu_time ? "processor time" : "time", threads, steps);
  fmt::print("| method | sequence | passes x blocks | recompute | inputs | forecast (s) | measured (s) | off |\n");
  fmt::print("|---|---|---|---|---|---|---|---|\n");
  size_t close = 0;
  double best = median(spent[chosen].measured), worst = 0;
  for (size_t i = 0; i < std::size(kCases); i++) {
    print(cases[i], spent[i]);
    worst = std::max(worst, std::abs(spent[i].off()));
    if (std::abs(spent[i].off()) <= 0.15) close++;
    if (i < kOneJob) best = std::min(best, median(spent[i].measured));
  }
  const double took = median(spent[chosen].measured);
  fmt::print("\n{} of {} within 15 %, largest difference {:.1f} %\n", close, std::size(kCases), 100 * worst);
  fmt::print("the planner's choice takes {:.3f} s, {:+.1f} % of the best measured\n", took, 100 * (took / best - 1));
  if (ops) forecaster.print_ops();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Forecast step times beside measured ones"};
  int rounds = 3, threads = 2, steps = 2;
  bool cpu_time = false, ops = false;
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber);
  app.add_option("--threads", threads);
  app.add_option("--steps", steps);
  app.add_flag("--cpu-time", cpu_time);
  app.add_flag("--ops", ops);
  CLI11_PARSE(app, argc, argv);
  return run(rounds, threads, steps, cpu_time, ops);
}
