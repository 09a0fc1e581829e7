// Where a training step's time goes: each kind of op, its share of the step and what was forecast for it, for products
// and attention their rate beside what a large square product reaches in the same run, and the step beside the ideal:
// every op of the compute lane at that product's rate (attention at a share of it) or at a copy's, whichever takes
// longer, with nothing to wait for. A card has two such rates: for some milliseconds, rested, and while it is as hot as
// training keeps it. An H200's step is put beside what H200s were seen to do, too.
//
//   step [--whole] [--ballast] key=value ...
//
//   key=value      options of snug train: model=..., init=random, device=cuda, batch_size=8, ...
//   trace=FILE     a Chrome trace of two steps more, of rank 0
//   --ballast      meanwhile holds all memory of the cards, where it runs on any, beyond what device_memory allows
//
// Runs the arrangement that the planner chooses, on random tokens that all carry loss: the whole step on all ranks,
// and, without --whole, on one rank, then again one op after the other.
#include <sys/resource.h>

#include <chrono>
#include <map>

#include "api/job.h"
#include "api/launch.h"
#include "base/size_text.h"
#include "full_batch.h"
#include "measure/op_timer.h"

namespace {

using namespace snug;
using Clock = std::chrono::steady_clock;

constexpr int kSteps = 4;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Spent {
  double seconds = 0, flops = 0, bytes = 0, forecast = 0;
};

// What a square product, and a copy of eight times its operands' bytes, reach.
struct Ceilings {
  std::string what;
  double flops = 0, bytes = 0;  // a second

  double seconds(const Op& op) const {
    const Work done = work(op);
    double share = 1;
    if (std::holds_alternative<Attention>(op.attrs)) share = kAttention;
    if (std::holds_alternative<AttentionBackward>(op.attrs)) share = kAttentionBackward;
    return std::max(done.flops / (share * flops), done.bytes / bytes);
  }

 private:
  // What torch's attention reached on an H200 (2,048 tokens, heads of 128: 494 and 336 TFLOP/s) of a square product's
  // 781.
  static constexpr double kAttention = 494.0 / 781, kAttentionBackward = 336.0 / 781;
};

// What H200s were seen to do rested, with bf16: what ideals are counted with that cards and days are compared by.
constexpr double kH200Flops = 781e12, kH200Bytes = 4243e9;

// A backend with a clock around every launch, which has done its work when it returns.
class TimedBackend : public Backend {
 public:
  TimedBackend(std::unique_ptr<Backend> backend, const Planned& planned, const std::vector<Ceilings>& ceilings)
      : backend_(std::move(backend)), planned_(planned), ceilings_(ceilings), ideal_(ceilings.size()) {}

  std::byte* reserve(Space space, uint64_t bytes) override { return backend_->reserve(space, bytes); }
  Launch bind(const Op& op, std::span<const TensorView> views) override {
    // "layer.3.fwd.gate_up" -> "fwd.gate_up": the same op of all layers is one row.
    std::string row = op.site;
    if (row.starts_with("layer.")) row = row.substr(row.find('.', 6) + 1);
    if (row.starts_with("norm.") || row.ends_with(".adamw")) row = "update." + std::string(kind(op.attrs));
    std::vector<double> ideal(ideal_.size());
    if (op.lane == Lane::Compute)
      std::ranges::transform(ceilings_, ideal.begin(), [&](const Ceilings& of) { return of.seconds(op); });
    const double forecast = snug::seconds(op, planned_.compiled.set.buffers, planned_.pricing);
    return [this, ideal, launch = backend_->bind(op, views), &spent = rows_[row], work = work(op),
            forecast](const RuntimeScalars& runtime) {
      std::ranges::transform(ideal_, ideal, ideal_.begin(), std::plus());
      const auto start = Clock::now();
      launch(runtime);
      if (streams()) streams()->finish();
      spent.seconds += since(start);
      spent.flops += work.flops;
      spent.bytes += work.bytes;
      spent.forecast += forecast;
    };
  }
  void read(void* to, const std::byte* from, uint64_t bytes) override { backend_->read(to, from, bytes); }
  void write(std::byte* to, const void* from, uint64_t bytes) override { backend_->write(to, from, bytes); }
  Streams* streams() override { return backend_->streams(); }

  // What was launched until now is not counted.
  void forget() {
    for (auto& [row, spent] : rows_) spent = {};
    std::ranges::fill(ideal_, 0);
  }
  const std::map<std::string, Spent>& rows() const { return rows_; }
  const std::vector<double>& ideal() const { return ideal_; }  // seconds of all on the compute lane, by each ceiling

 private:
  std::unique_ptr<Backend> backend_;
  const Planned& planned_;
  std::vector<Ceilings> ceilings_;
  std::map<std::string, Spent> rows_;
  std::vector<double> ideal_;
};

// Of a machine that has rested, of a card as hot as it is while it trains, and of H200s as they were seen.
std::vector<Ceilings> ceilings_of(const Target& target, DType dtype) {
  const int64_t size = target.cuda() ? 8192 : 1024;
  const std::unique_ptr<Backend> backend = target.backend(0);
  const Shape square{size, size}, long_row{8 * size * size};
  const OperandList product = OperandList().r(dtype, square).r(dtype, square).w(dtype, square);
  const OperandList copy = OperandList().r(dtype, long_row).w(dtype, long_row);
  const uint64_t cells = static_cast<uint64_t>(size * size);
  const uint64_t half = 9 * cells * element_bytes(dtype);                         // and room for scratch
  const uint64_t to_keep_hot = target.cuda() ? 2 * cells * sizeof(BFloat16) : 0;  // keep_hot() has products of its own
  const std::unique_ptr<OpFacts> facts = target.facts();
  OpTimer timer(*backend, *facts, wall_seconds, {.half = half + to_keep_hot, .round = 0});
  const auto flops = [&] { return OpTimer::work_of(Gemm{}, product).flops / timer.seconds({Gemm{}, product}); };
  const double bytes = OpTimer::work_of(Copy{}, copy).bytes / timer.seconds({Copy{}, copy});
  const std::string product_words = fmt::format("a square product of {}", size);
  std::vector<Ceilings> all{{product_words + (target.cuda() ? ", rested" : ""), flops(), bytes}};
  if (!target.cuda()) return all;
  timer.keep_hot();
  all.push_back({product_words + ", hot", flops(), bytes});
  if (dtype == DType::BF16 && target.here()->name.ends_with("H200"))
    all.push_back({"an H200 at a good rate", kH200Flops, kH200Bytes});
  return all;
}

void load(Session& session) {
  const JobSpec& spec = session.spec();
  session.on(HostJob::FillBatch, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars& runtime) {
    fill_batch(views, runtime, spec.cut, spec.model.vocabulary);
  });
  session.on(HostJob::TakeMetrics, [](const HostTask&, std::span<const TensorView>, RuntimeScalars&) {});
  session.load();
}

// Returns when all has run.
void run_step(Session& session, int64_t step) {
  RuntimeScalars runtime;
  runtime.loss_scale = 1.0f / static_cast<float>(session.spec().cut.step_tokens());
  runtime.learning_rate = 1e-5;
  runtime.step = step;
  for (const Task task : session.compiled().passes) session.run(task, runtime);
  session.run(Task::Update, runtime);
  session.view(session.compiled().update.partials);
}

// The median but for the first; ranks keep step by what they exchange.
double step_seconds(Session& session) {
  std::vector<double> seconds;
  for (int step = 0; step <= kSteps; step++) {
    const auto start = Clock::now();
    run_step(session, step + 1);
    seconds.push_back(since(start));
  }
  std::sort(seconds.begin() + 1, seconds.end());
  return seconds[1 + kSteps / 2];
}

// Memory of every card that is used, so that what is left is what the job is allowed.
class Ballast {
 public:
  Ballast(const Planned& planned, const Cards& cards) {
    bytes_ = cards.free_bytes - std::min(cards.free_bytes, planned.caps.device_bytes);
    for (int card = 0; card < planned.spec.cut.ranks && bytes_ > 0; card++)
      holders_.emplace_back(planned.target.backend(card))->reserve(Space::Device, bytes_);
  }
  uint64_t bytes() const { return bytes_; }  // of a card

 private:
  uint64_t bytes_ = 0;
  std::vector<std::unique_ptr<Backend>> holders_;
};

// The most of the host's memory that this process has had.
uint64_t most_of_host() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) << 10;
}

// Of all ranks; prints what the fullest card holds meanwhile, as its driver says, and what the process has of the host,
// beside what was planned.
double whole_step_seconds(const Planned& planned, const JobConfig& options, bool with_ballast) {
  double seconds = 0;
  const std::optional<Cards> before = cards_here();
  std::optional<Ballast> ballast;
  if (planned.target.cuda() && with_ballast) ballast.emplace(planned, *before);
  run_ranks(planned.spec.cut.ranks, planned.spec.strategy.replicas, nullptr, [&](int rank, int place, Comm* comm) {
    Session session = rank_session(planned, options, rank, place, comm);
    load(session);
    const double of_rank = step_seconds(session);
    if (!options.trace.empty()) {
      session.start_trace(2);
      for (int step = 1; step <= 2; step++) run_step(session, kSteps + 1 + step);
      if (rank == 0) session.write_trace(options.trace);
    }
    if (comm) comm->barrier();
    if (rank == 0) seconds = of_rank;
    if (rank == 0 && planned.target.cuda()) {
      const uint64_t held = ballast ? ballast->bytes() : 0;
      const uint64_t taken = before->free_bytes - cards_here()->free_bytes - held;
      const auto planned_of = [&](Space space) {
        return format_size(planned.caps.taken(planned.shown().forecast, space));
      };
      fmt::print("{} of a card taken, {} planned{}; of the host {} planned for each rank, the process had {} at most\n",
                 format_size(taken), planned_of(Space::Device),
                 held > 0 ? fmt::format(", {} held beside it", format_size(held)) : "", planned_of(Space::Host),
                 format_size(most_of_host()));
    }
    if (comm) comm->barrier();
    return 0;
  });
  return seconds;
}

// `whole`, `apart`: seconds of a step, as it is and op by op.
void report(const TimedBackend& backend, double whole, double apart, const std::vector<Ceilings>& ceilings) {
  fmt::print("{:.1f} ms op by op\n", 1e3 * apart);
  for (size_t i = 0; i < ceilings.size(); i++) {
    const double ideal = backend.ideal()[i] / (kSteps + 1);
    fmt::print("{}: {:.0f} GFLOP/s, a copy: {:.0f} GB/s; {:.1f} ms at these rates, of which the step is at {:.3f}\n",
               ceilings[i].what, ceilings[i].flops / 1e9, ceilings[i].bytes / 1e9, 1e3 * ideal, ideal / whole);
  }
  std::vector<std::pair<std::string, Spent>> rows(backend.rows().begin(), backend.rows().end());
  std::ranges::sort(rows, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  for (const auto& [name, spent] : rows) {
    const double seconds = spent.seconds / (kSteps + 1);
    if (seconds < 0.002 * apart) continue;
    fmt::print("{:<34} {:5.1f} %  {:9.3f} ms, {:9.3f} forecast  {:7.0f} GB/s", name, 100 * seconds / apart,
               1e3 * seconds, 1e3 * spent.forecast / (kSteps + 1), spent.bytes / spent.seconds / 1e9);
    if (spent.flops > 0)
      fmt::print("  {:8.0f} GFLOP/s, {:3.0f} %", spent.flops / spent.seconds / 1e9,
                 100 * spent.flops / spent.seconds / ceilings[0].flops);
    fmt::print("\n");
  }
}

}  // namespace

int main(int argc, char** argv) try {
  prepare_process();
  JobConfig options;
  options.ranks = 1;
  bool only_whole = false, with_ballast = false;
  for (int i = 1; i < argc; i++) {
    const std::string pair = argv[i];
    if (pair == "--whole" || pair == "--ballast") {
      (pair == "--whole" ? only_whole : with_ballast) = true;
      continue;
    }
    const size_t equals = std::min(pair.find('='), pair.size());
    find_option(pair.substr(0, equals), "the command line")
        .set(options, pair.substr(std::min(equals + 1, pair.size())));
  }
  Planned planned = plan_training(make_job(options, Purpose::Train), options, Target(options), false, PlanMode::Run);
  const double whole = whole_step_seconds(planned, options, with_ballast);
  fmt::print("{}\n{:.0f} tokens/s, {:.1f} ms a step, {:.1f} forecast\n", planned.shown().words,
             static_cast<double>(planned.spec.cut.step_tokens()) / whole, 1e3 * whole,
             1e3 * planned.shown().step_seconds);
  if (only_whole || planned.spec.cut.ranks > 1) return 0;
  // Timed now: a session may take all memory there is.
  const std::vector<Ceilings> ceilings = ceilings_of(planned.target, planned.spec.numerics.compute);
  TimedBackend* timed = nullptr;
  Session session(planned.spec, planned.compiled,
                  {.threads = planned.pricing.threads, .disk_directory = disk_directory(options), .backend = [&] {
                     auto backend = std::make_unique<TimedBackend>(planned.target.backend(0), planned, ceilings);
                     timed = backend.get();
                     return backend;
                   }});
  load(session);
  timed->forget();
  const double apart = step_seconds(session);
  report(*timed, whole, apart, ceilings);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
