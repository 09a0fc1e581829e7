// How much of its transfers a step hides: everything that can be offloaded is on the disk, one core computes and lanes
// have another. Prints the time of a step, of its computing alone (the same ops without the transfers) and of its
// transfers alone (the lanes' ops without the computing), each the median of some rounds of a few steps that follow one
// another, taken in turns.
//
//   overlap [--layers 12] [--hidden 576] [--sequence 256] [--micro 4] [--passes 1] [--steps 3] [--rounds 5] [--ahead 1]
//           [--lag 12] [--defer] [--layer-major] [--disk-dir .] [--lora] [--trace FILE]
#include <sched.h>

#include <CLI/CLI.hpp>
#include <chrono>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "base/parallel.h"
#include "exec/executor.h"
#include "full_batch.h"
#include "model/model_config.h"
#include "plan/lowering/compile.h"
#include "train/trace_json.h"

namespace {

using namespace snug;

struct Settings {
  int64_t layers = 12, hidden = 576, sequence = 256, micro = 4, passes = 1, ahead = 1, lag = 12;
  int steps = 3, rounds = 5;
  std::string disk_dir = ".", trace;
  bool lora = false, defer = false, layer_major = false;
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

JobSpec job_of(const Settings& s, const std::filesystem::path& model) {
  std::filesystem::create_directories(model);
  write_text(model / "config.json",
             fmt::format(R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
      "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": {},
      "num_key_value_heads": {}, "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 100000,
      "tie_word_embeddings": true, "vocab_size": 8192, "torch_dtype": "bfloat16"}})",
                         s.hidden, s.hidden * 8 / 3 / 64 * 64, s.layers, s.hidden / 64, s.hidden / 64));
  JobSpec spec;
  spec.model = read_model_config(model).spec;
  spec.table =
      s.lora ? lora_parameters(spec.model, {.rank = 16, .alpha = 32, .target_modules = linear_names(spec.model)}, true)
             : full_parameters(spec.model, true);
  spec.sources = find_sources(spec.table, {model, true, 1, std::nullopt});
  spec.cut.sequence_length = s.sequence;
  spec.cut.micro_batch = s.micro;
  spec.cut.passes = s.passes;
  spec.strategy = plain_strategy(spec.table);
  for (GroupPlacement& group : spec.strategy.groups) group.weights = group.states = group.gradients = Space::Disk;
  for (ActivationPolicy& policy : spec.strategy.activations) policy = offloaded(policy);
  spec.strategy.offloaded_to = Space::Disk;
  spec.strategy.gather_ahead = s.ahead;
  spec.strategy.buffer_hold_ops = s.lag;
  spec.strategy.defer_updates = s.defer;
  spec.strategy.layer_major = s.layer_major;
  return spec;
}

// The programs with some of their ops only; waits for others are dropped.
ProgramSet part_of(const ProgramSet& whole, const std::function<bool(const Op&)>& wanted) {
  ProgramSet part = whole;
  std::vector<std::vector<OpId>> number(whole.programs.size());
  for (size_t p = 0; p < whole.programs.size(); p++) {
    OpId next = 0;
    for (const Op& op : whole.programs[p].ops) number[p].push_back(wanted(op) ? next++ : UINT32_MAX);
  }
  for (Program& program : part.programs) {
    std::erase_if(program.ops, [&](const Op& op) { return !wanted(op); });
    for (Op& op : program.ops) {
      std::erase_if(op.waits, [&](const Wait& wait) { return number[wait.program][wait.op] == UINT32_MAX; });
      for (Wait& wait : op.waits) wait.op = number[wait.program][wait.op];
    }
  }
  return part;
}

void run_on_core(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) device_error("core {} cannot be had: two are needed", core);
}

// Computes on core 0, whatever thread that is.
class PinnedBackend : public CpuBackend {
 public:
  Launch bind(const Op& op, std::span<const TensorView> views) override {
    Launch launch = CpuBackend::bind(op, views);
    if (op.lane != Lane::Compute) return launch;
    return [launch](const RuntimeScalars& runtime) {
      thread_local const bool pinned = (run_on_core(0), true);
      if (pinned) launch(runtime);
    };
  }
};

// Some ops of a job on memory and disk of their own.
class Runner {
 public:
  Runner(const JobSpec& spec, const Compiled& compiled, ProgramSet set, const Settings& s, Lane only = Lane::Host)
      : spec_(spec),
        compiled_(compiled),
        set_(std::move(set)),
        arena_(backend_, compiled.plan, s.disk_dir),
        executor_(make_executor(
            set_, compiled.plan, backend_, arena_, nullptr,
            [this](const HostTask& task, std::span<const TensorView> views, RuntimeScalars& pass) {
              if (task.job == HostJob::FillBatch) fill_batch(views, pass, spec_.cut, spec_.model.vocabulary);
            },
            only == Lane::Compute ? LaneMode::Inline : LaneMode::Threads, 1)) {}

  void load() {
    executor_->run(compiled_.at(Task::Load), {});
    executor_->finish();
  }
  // Seconds of one of several steps in a row.
  double steps(int count) {
    const double start = seconds_now();
    for (int i = 0; i < count; i++) step();
    executor_->finish();
    return (seconds_now() - start) / count;
  }

  // Of two steps.
  void write_trace(const std::filesystem::path& path) {
    std::vector<ProgramId> programs;
    size_t events = 0;
    for (ProgramId p = 0; p < set_.programs.size(); p++) {
      programs.push_back(p);
      events += 2 * set_.programs[p].ops.size();
    }
    Trace trace(std::move(programs), events);
    executor_->note_in(&trace);
    steps(2);
    executor_->note_in(nullptr);
    write_text(path, trace_json(set_, compiled_.plan, trace.events(), 0));
  }

 private:
  void step() {
    const RuntimeScalars before = facts_;
    facts_ = {.loss_scale = 1.0f / static_cast<float>(spec_.cut.step_tokens()), .step = before.step + 1};
    for (size_t i = 0; i < compiled_.passes.size(); i++) {
      const bool updates = i == 0 && before.step > 0 && compiled_.has(Task::Flush);
      const Task task = compiled_.passes[i];
      executor_->run(compiled_.at(updates ? pending(task) : task), facts_, {}, updates ? &before : nullptr);
    }
    executor_->run(compiled_.at(Task::Update), facts_);
  }

  const JobSpec& spec_;
  const Compiled& compiled_;
  ProgramSet set_;
  PinnedBackend backend_;
  Arena arena_;
  std::unique_ptr<Executor> executor_;
  RuntimeScalars facts_;
};

uint64_t disk_bytes(const Compiled& compiled, size_t operand) {
  uint64_t bytes = 0;
  auto add = [&](Task task) {
    for (const Op& op : compiled.set.programs[compiled.at(task)].ops)
      if ((op.lane == Lane::DiskIn || op.lane == Lane::DiskOut) &&
          compiled.set.buffers[op.operands[operand].buffer].space == Space::Disk)
        bytes += op.operands[operand].extent();
  };
  for (size_t i = 0; i < compiled.passes.size(); i++)
    add(i == 0 && compiled.has(Task::Flush) ? pending(compiled.passes[i]) : compiled.passes[i]);
  add(Task::Update);
  return bytes;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int run(const Settings& s) {
  set_threads(1);
  run_on_core(1);  // lanes are made here
  const JobSpec spec = job_of(s, std::filesystem::temp_directory_path() / "snug-overlap-model");
  const Compiled compiled = compile(spec, CpuFacts());
  auto part = [&](bool computing) {
    return part_of(compiled.set,
                   [=](const Op& op) { return op.lane == Lane::Host || (op.lane == Lane::Compute) == computing; });
  };
  Runner together(spec, compiled, compiled.set, s), computing(spec, compiled, part(true), s, Lane::Compute),
      transferring(spec, compiled, part(false), s);
  together.load();
  for (Runner* runner : {&together, &computing, &transferring}) runner->steps(2);  // every byte was written once
  std::vector<double> all, compute, transfer;
  for (int i = 0; i < s.rounds; i++) {
    all.push_back(together.steps(s.steps));
    compute.push_back(computing.steps(s.steps));
    transfer.push_back(transferring.steps(s.steps));
  }
  if (!s.trace.empty()) together.write_trace(s.trace);
  const double step = median(all), larger = std::max(median(compute), median(transfer));
  fmt::print("{} tokens a step; {:.0f} MB read, {:.0f} MB written\n", spec.cut.step_tokens(),
             static_cast<double>(disk_bytes(compiled, 0)) / 1e6, static_cast<double>(disk_bytes(compiled, 1)) / 1e6);
  fmt::print("device {:.0f} MB, host {:.0f} MB, disk {:.0f} MB\n",
             static_cast<double>(compiled.plan.reserved_bytes[0]) / 1e6,
             static_cast<double>(compiled.plan.reserved_bytes[1]) / 1e6,
             static_cast<double>(compiled.plan.reserved_bytes[2]) / 1e6);
  fmt::print(
      "step {:.3f} s, computing alone {:.3f} s, transfers alone {:.3f} s: {:.2f} times the larger, {:.2f} of both\n",
      step, median(compute), median(transfer), step / larger, step / (median(compute) + median(transfer)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Step time over the larger of computing and transfers"};
  Settings s;
  app.add_option("--layers", s.layers);
  app.add_option("--hidden", s.hidden);
  app.add_option("--sequence", s.sequence);
  app.add_option("--micro", s.micro);
  app.add_option("--passes", s.passes);
  app.add_option("--steps", s.steps);
  app.add_option("--rounds", s.rounds);
  app.add_option("--ahead", s.ahead);
  app.add_option("--lag", s.lag);
  app.add_option("--disk-dir", s.disk_dir);
  app.add_option("--trace", s.trace, "a Chrome trace of two steps");
  app.add_flag("--lora", s.lora);
  app.add_flag("--defer", s.defer);
  app.add_flag("--layer-major", s.layer_major);
  CLI11_PARSE(app, argc, argv);
  return run(s);
}
