// Where a training step's time goes on this CPU: each kind of op, its share of the step, and for products their rate
// against the best that a large square product reaches in the same run.
//
//   cpu_step MODEL [--threads 2] [--block 1024] [--steps 5] [--compute bf16]
//
// MODEL: a model directory; LoRA of rank 16 on all linears, one block a step, random tokens that all carry loss.
#include <CLI/CLI.hpp>
#include <chrono>
#include <map>
#include <numeric>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "base/parallel.h"
#include "exec/executor.h"
#include "full_batch.h"
#include "plan/compile.h"

namespace {

using namespace snug;
using Clock = std::chrono::steady_clock;

struct Spent {
  double seconds = 0, flops = 0;
  int64_t calls = 0;
};

// The CPU backend with a clock around every launch.
class TimedBackend : public Backend {
 public:
  std::byte* reserve(Space space, uint64_t bytes) override { return cpu_.reserve(space, bytes); }
  Launch bind(const Op& op, std::span<const TensorView> views) override {
    Launch launch = cpu_.bind(op, views);
    // "block.3.fwd.gate_up" -> "fwd.gate_up": the same op of all blocks is one row.
    std::string row = op.site;
    if (row.starts_with("block.")) row = row.substr(row.find('.', 6) + 1);
    if (row.starts_with("norm.") || row.ends_with(".adamw")) row = "update." + std::string(kind(op.attrs));
    Spent& spent = rows_[row];
    const double flops = work(op).flops;
    return [launch, &spent, flops](const PassFacts& facts) {
      const auto start = Clock::now();
      launch(facts);
      spent.seconds += std::chrono::duration<double>(Clock::now() - start).count();
      spent.flops += flops;
      spent.calls++;
    };
  }
  std::map<std::string, Spent>& rows() { return rows_; }

 private:
  CpuBackend cpu_;
  std::map<std::string, Spent> rows_;
};

// FLOP/s of a square product of this size, in the best of ten runs.
double square_rate(int64_t size, DType dtype) {
  CpuFacts facts;
  ProgramSet set;
  const Operand a = new_tensor(set, "a", dtype, {size, size}, Role::Activation),
                b = new_tensor(set, "b", dtype, {size, size}, Role::Activation),
                c = new_tensor(set, "c", dtype, {size, size}, Role::Activation);
  std::vector<Operand> operands{read(a), read(b), write(c)};
  if (const uint64_t scratch = facts.scratch_bytes(Gemm{}, operands))
    operands.push_back(new_tensor(set, "scratch", DType::U8, {static_cast<int64_t>(scratch)}, Role::Scratch));
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorView> views;
  for (const Operand& operand : operands) {
    bytes.emplace_back(set.buffers[operand.buffer].bytes + 64, std::byte{60});
    views.push_back({reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(bytes.back().data()) + 63) / 64 * 64),
                     operand.dtype, operand.shape, operand.row_stride});
  }
  CpuBackend backend;
  Op op;
  op.operands = operands;
  op.attrs = Gemm{};
  const Launch launch = backend.bind(op, views);
  double best = 1e9;
  for (int i = 0; i < 10; i++) {
    const auto start = Clock::now();
    launch({});
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return 2.0 * std::pow(static_cast<double>(size), 3) / best;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Where a training step's time goes on this CPU"};
  std::string model, compute = "bf16";
  int threads = 2, steps = 5;
  int64_t block = 1024;
  app.add_option("model", model)->required();
  app.add_option("--threads", threads);
  app.add_option("--block", block);
  app.add_option("--steps", steps);
  app.add_option("--compute", compute);
  CLI11_PARSE(app, argc, argv);

  set_threads(threads);
  JobSpec spec;
  spec.config = read_hf_config(model);
  spec.table = lora_parameters(spec.config, {.rank = 16, .alpha = 32, .target_modules = linear_names()}, true);
  spec.numerics.compute = spec.numerics.base = compute == "fp32" ? DType::F32 : DType::BF16;
  spec.sources = find_sources(spec.table, {model, true, 1, std::nullopt});
  spec.cut.sequence_length = block;
  spec.strategy = plain_strategy(spec.table.blocks.size());
  const CpuFacts facts;
  const Compiled compiled = compile(spec, facts);
  TimedBackend backend;
  Arena arena(backend, compiled.plan, ".");
  Executor executor(
      compiled.set, compiled.plan, backend, arena, nullptr,
      [&](const HostTask& task, std::span<const TensorView> views, PassFacts& pass) {
        if (task.job == HostJob::FillBatch) fill_batch(views, pass, spec.cut, spec.config.vocabulary);
      },
      LaneMode::Inline, threads);
  executor.run(compiled.at(Task::Load), {});
  std::vector<double> seconds;
  for (int step = 0; step <= steps; step++) {
    if (step == 1)
      for (auto& [name, spent] : backend.rows()) spent = {};
    PassFacts pass;
    pass.loss_scale = 1.0f / static_cast<float>(block);
    pass.step = step + 1;
    const auto start = Clock::now();
    executor.run(compiled.at(Task::Pass), pass);
    executor.run(compiled.at(Task::Update), pass);
    if (step > 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  std::ranges::sort(seconds);
  const double ceiling = square_rate(1024, spec.numerics.compute);
  fmt::print(
      "{}: {:.0f} tokens/s (median of {} steps, blocks of {}, {} threads, {}); 1024-cubed product {:.0f} GFLOP/s\n",
      model, static_cast<double>(block) / seconds[seconds.size() / 2], steps, block, threads, compute, ceiling / 1e9);
  std::vector<std::pair<std::string, Spent>> rows(backend.rows().begin(), backend.rows().end());
  std::ranges::sort(rows, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double products = 0;
  for (const auto& [name, spent] : rows)
    if (spent.flops > 0) products += spent.seconds;
  fmt::print("products and attention: {:.1f} % of the time\n", 100 * products / total);
  for (const auto& [name, spent] : rows) {
    if (spent.seconds < 0.003 * total) continue;
    fmt::print("{:<34} {:5.1f} %  {:8.2f} ms a step", name, 100 * spent.seconds / total, 1e3 * spent.seconds / steps);
    if (spent.flops > 0)
      fmt::print("  {:7.0f} GFLOP/s, {:3.0f} % of the square product", spent.flops / spent.seconds / 1e9,
                 100 * spent.flops / spent.seconds / ceiling);
    fmt::print("\n");
  }
  return 0;
}
