// Tiny models trained under arrangements of bytes and ranks.
#pragma once

#include <gtest/gtest.h>

#include <unistd.h>

#include <map>
#include <thread>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "base/file.h"
#include "base/parallel.h"
#include "comm/mpi.h"
#include "comm/threads.h"
#include "plan/forecast/forecast.h"
#include "plan/lowering/fingerprint.h"
#include "tiny_model.h"
#include "train/checkpoint.h"

namespace snug {

inline constexpr int64_t kSteps = 2;

// Shows a vector to an op.
inline TensorView vector_view(std::vector<float>& x) {
  const auto count = static_cast<int64_t>(x.size());
  return {reinterpret_cast<std::byte*>(x.data()), DType::F32, {count}, count};
}

// What is trained, of the tiny models.
struct TinyCase {
  std::string family;
  bool lora;
  DType compute;
  int64_t passes;
  BaseFormat base = BaseFormat::Plain;
  bool fp8_products = false;
  std::optional<double> dora{};  // the dropout of fresh adapters whose norms are trained
  Optimizer optimizer = Optimizer::AdamW;
  bool given_embeddings = false;

  JobSpec job() const {
    JobSpec spec =
        dora ? dora_job() : tiny_job(family, lora ? std::optional<std::string>("adapter_init") : std::nullopt, compute);
    // Some more than a sample has.
    const TowerSpec& tower = spec.model.tower;
    if (tower) spec.cut.patches = {tower.image_side > 0 ? 3 * tower.image_patches() : 68};
    spec.given_embeddings = given_embeddings;
    spec.numerics.optimizer = optimizer;
    spec.numerics.base_format = base;
    spec.numerics.fp8_products = fp8_products;
    if (fp8_products) spec.cut.sequence_length = 48;  // a multiple of kFp8Multiple
    return spec;
  }
  // Adapts some linears, not all of a product, in ranks of their own.
  JobSpec dora_job() const {
    PeftConfig adapter{.rank = 4, .alpha = 8, .dropout = dora.value(), .dora = true};
    adapter.target_modules = {"down_proj", "o_proj", "q_proj", "up_proj", "v_proj"};
    if (family == "qwen2") adapter.rank_pattern.emplace_back(pattern_of_ends("v_proj", "test"), 2);
    return tiny_adapter_job(family, adapter, compute);
  }
};

struct Arrangement {
  int ranks = 1, replicas = 1, zero = 0;
  int64_t passes = 1;
  Recompute recompute = Recompute::None;
  uint8_t offload = 1;  // of what is kept of blocks, where `inputs` are elsewhere: bits for attention, residual, ...
  Space states = Space::Device, gradients = Space::Device, weights = Space::Device, inputs = Space::Device;
  int share = 2;  // of two: how many halves of the groups are placed elsewhere, and sharded at stage 3
  bool layer_major = false, deferred = false, speculative = false;
  bool in_backward = false;  // updates, of a job that does not clip
  LaneMode lanes = LaneMode::Inline;
};

inline std::string to_string(const Arrangement& a) {
  return fmt::format(
      "{} ranks in {} replicas, zero {}, {} passes, recompute {}, states on {}, gradients on {}, weights "
      "on {}, inputs on {} ({}), {} halves, {} major, {}{}{}{}",
      a.ranks, a.replicas, a.zero, a.passes, name(a.recompute), name(a.states), name(a.gradients), name(a.weights),
      name(a.inputs), a.offload, a.share, a.layer_major ? "layer" : "pass", a.deferred ? "deferred, " : "",
      a.speculative ? "speculative, " : "", a.in_backward ? "in the backward, " : "",
      a.lanes == LaneMode::Inline ? "inline" : "lanes");
}

inline constexpr int64_t kBatch = 8;  // blocks a step

inline JobSpec arranged(JobSpec spec, const Arrangement& a, int rank) {
  spec.cut.ranks = a.ranks;
  spec.cut.passes = a.passes;
  spec.cut.micro_batch = kBatch / a.ranks / a.passes;
  spec.rank = rank;
  spec.evaluate = true;
  spec.strategy = plain_strategy(spec.table, a.recompute);
  spec.strategy.replicas = a.replicas;
  spec.strategy.layer_major = a.layer_major;
  spec.strategy.defer_updates = a.deferred;
  spec.strategy.speculate = a.speculative;
  set_zero_stage(spec.strategy, a.zero);
  spec.strategy.update_in_backward = a.in_backward && spec.strategy.reduce_in_backward;
  const size_t groups = spec.strategy.groups.size(), first = groups - groups * static_cast<size_t>(a.share) / 2;
  for (size_t g = first; g < groups; g++) {
    spec.strategy.groups[g].states = a.states;
    spec.strategy.groups[g].gradients = a.gradients;
    spec.strategy.groups[g].weights = a.weights;
  }
  for (size_t g = 0; g < first; g++) spec.strategy.groups[g].shard_weights = false;
  for (size_t b = 0; b < spec.strategy.activations.size() && a.inputs != Space::Device; b++) {
    ActivationPolicy& policy = spec.strategy.activations[b];
    const ActivationPolicy all = offloaded(policy);
    policy[ActivationClass::LayerBoundary] = Retention::Offload;
    if (a.offload & 1) policy[ActivationClass::Attention] = all[ActivationClass::Attention];
    if (a.offload & 2) policy[ActivationClass::Residual] = all[ActivationClass::Residual];
    if (a.offload & 4) policy[ActivationClass::Mlp] = all[ActivationClass::Mlp];
    if (a.offload & 8) policy[ActivationClass::Adapter] = all[ActivationClass::Adapter];
    if (a.offload & 16 && b % 2 == 0)
      policy[ActivationClass::Residual] = policy[ActivationClass::Adapter] = Retention::Recompute;
  }
  spec.strategy.offloaded_to = a.inputs == Space::Device ? Space::Host : a.inputs;
  return spec;
}

// What a run leaves: numbers of each step, and the bytes of every trained parameter and of its state, by array.
struct Outcome {
  std::vector<StepResult> steps;
  std::vector<double> evaluations;
  std::map<std::string, std::string> saved;
  bool operator==(const Outcome&) const = default;
};

// What a backend was asked for.
class CountingBackend : public Backend {
 public:
  CountingBackend(std::unique_ptr<Backend> backend, PerSpace<uint64_t>& reserved)
      : backend_(std::move(backend)), reserved_(reserved) {}
  std::byte* reserve(Space space, uint64_t bytes) override {
    reserved_[index(space)] += bytes;
    return backend_->reserve(space, bytes);
  }
  Launch bind(const Op& op, std::span<const TensorView> views) override { return backend_->bind(op, views); }
  void read(void* to, const std::byte* from, uint64_t bytes) override { backend_->read(to, from, bytes); }
  void write(std::byte* to, const void* from, uint64_t bytes) override { backend_->write(to, from, bytes); }
  Streams* streams() override { return backend_->streams(); }

 private:
  std::unique_ptr<Backend> backend_;
  PerSpace<uint64_t>& reserved_;
};

// What ranks run on; `comm`: among others.
struct Ground {
  std::function<std::unique_ptr<OpFacts>()> facts;  // a rank's own
  std::function<std::unique_ptr<Backend>(int rank, Comm* comm)> backend;
};

inline Ground processors() {
  return {[] { return std::make_unique<CpuFacts>(); }, [](int, Comm*) { return std::make_unique<CpuBackend>(); }};
}

// What ranks run on where a test does not say; so many of them.
#ifdef SNUG_TESTS_ON_CUDA
inline constexpr int kMostRanks = 1;
inline Ground usual_ground() {
  static const std::shared_ptr<ProductTable> products = make_product_table();  // the fastest found once, for all
  return {[] { return std::make_unique<CudaFacts>(); },
          [](int, Comm*) { return std::make_unique<CudaBackend>(0, products); }};
}
#else
inline constexpr int kMostRanks = 4;
inline Ground usual_ground() { return processors(); }
#endif

// What was reserved is what was forecast, some phase fills it, and its classes are all of the device's.
inline void expect_as_forecast(const Compiled& compiled, const PerSpace<uint64_t>& reserved) {
  const Forecast f = forecast(compiled);
  for (const Space space : kSpaces) {
    EXPECT_EQ(reserved[index(space)], f.arena_bytes[index(space)]);
    uint64_t fullest = 0;
    for (const Forecast::Phase& phase : f.phases) fullest = std::max(fullest, phase.bytes[index(space)]);
    EXPECT_EQ(fullest, f.arena_bytes[index(space)]);
  }
  uint64_t classes = 0;
  for (const Forecast::Class& c : f.classes) classes += c.bytes;
  EXPECT_EQ(classes, f.arena_bytes[index(Space::Device)]);
}

// The connection of this process, if mpirun started it as one of several ranks.
inline Comm* process_rank() {
  static const std::unique_ptr<Comm> comm = started_by_mpi() ? open_mpi() : nullptr;
  return comm.get();
}

// Runs `work` on every rank with a session of its own: ranks are threads, or this process is one of them.
inline void on_ranks(const JobSpec& job, const Arrangement& a, const std::function<void(Session&)>& work,
                     Comm* process = nullptr, const Ground& ground = usual_ground()) {
  auto run = [&](int rank, Comm* comm) {
    set_threads(1);
    const JobSpec spec = arranged(job, a, rank);
    PerSpace<uint64_t> reserved{};
    auto backend = [&] { return std::make_unique<CountingBackend>(ground.backend(rank, comm), reserved); };
    Session session(spec, compile(spec, *ground.facts()), {.lanes = a.lanes, .comm = comm, .backend = backend});
    work(session);
    reserved[index(Space::Disk)] = session.arena_bytes(Space::Disk);
    expect_as_forecast(session.compiled(), reserved);
  };
  if (process) {
    process->set_replicas(a.replicas);
    return run(process->topology().rank, process);
  }
  if (a.ranks == 1) return run(0, nullptr);
  const auto comms = thread_ranks(a.ranks, a.replicas);
  std::vector<std::exception_ptr> errors(comms.size());
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < a.ranks; rank++)
      threads.emplace_back([&, rank] {
        const auto r = static_cast<size_t>(rank);
        try {
          run(rank, comms[r].get());
        } catch (const std::exception& error) {
          errors[r] = std::current_exception();
          comms[r]->leave(error.what());
        }
      });
  }
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

// All ranks save what they own; rank 0 puts it together.
inline void take_saved(Session& session, Outcome& outcome) {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() /
      fmt::format("snug-ranks-{}", session.as_rank_0(static_cast<uint64_t>(getpid()), "a name"));
  std::filesystem::create_directories(directory);
  session.barrier();
  session.write(Task::Save, directory);
  session.barrier();
  if (session.rank() == 0) {
    const SavedState saved = find_saved_state(directory);
    std::vector<File> files;
    for (const auto& path : saved.files) files.push_back(File::open_read(path, IoMode::Buffered));
    for (const auto& [name, stretches] : saved.arrays)
      for (const auto& [span, place] : stretches) {
        std::string bytes(static_cast<size_t>(span.count()) * element_bytes(place.dtype), '\0');
        files[static_cast<size_t>(place.file)].read(place.offset, std::as_writable_bytes(std::span(bytes)));
        outcome.saved[name] += bytes;
      }
    std::filesystem::remove_all(directory);
  }
  session.barrier();
}

// The samples of a rank in a pass are those of its blocks in the step: pass after pass, rank after rank.
inline void train_steps(Session& session, int64_t first, int64_t last, Outcome& outcome) {
  TinyTrainer trainer(session);
  const auto samples = samples_of(session.spec());
  for (int64_t number = first; number <= last; number++) {
    const StepResult result = trainer.step(step_samples(samples, number, kBatch), number, 1e-2);
    if (session.rank() == 0) outcome.steps.push_back(result);
  }
}

// The evaluation between steps makes a deferred update at once; what it leaves is seen by the step after it.
inline Outcome train(const JobSpec& job, const Arrangement& a, Comm* process = nullptr,
                     const Ground& ground = usual_ground()) {
  Outcome outcome;
  const auto work = [&](Session& session) {
    session.load();
    train_steps(session, 1, kSteps, outcome);
    const auto samples =
        step_samples(samples_of(session.spec()), 1, static_cast<size_t>(session.spec().cut.micro_batch));
    auto evaluate = [&] {
      const double loss = TinyTrainer(session).evaluate(samples);
      if (session.rank() == 0) outcome.evaluations.push_back(loss);
    };
    evaluate();
    train_steps(session, kSteps + 1, kSteps + 1, outcome);
    evaluate();
    take_saved(session, outcome);
  };
  on_ranks(job, a, work, process, ground);
  return outcome;
}

// A run around its first checkpoint: the step that this is of, what ranks hold there, what two steps later.
struct Halves {
  int64_t step = 0;
  Outcome saved, after;
};

// Fresh: one step, a checkpoint in `run`, two steps. Resumed: from there, by whatever ranks it was saved, two steps on
// the data that come then.
enum class Begin { Fresh, Resumed };
inline Halves halves(Begin begin, const std::filesystem::path& run, JobSpec job, const Arrangement& a,
                     const Ground& ground = usual_ground()) {
  Checkpoints checkpoints(run, -1);
  if (begin == Begin::Resumed) job.saved = find_saved_state(checkpoints.last().value());
  Halves result;
  const auto work = [&](Session& session) {
    session.load();
    CheckpointState state;
    state.fields = fields_of(session.spec());
    if (begin == Begin::Resumed) {
      state = checkpoints.restore_last(session, state);
    } else {
      Outcome first;
      train_steps(session, ++state.step, 1, first);
      checkpoints.save(session, state);
    }
    if (session.rank() == 0) result.step = state.step;
    take_saved(session, result.saved);
    train_steps(session, state.step + 1, state.step + 2, result.after);
    take_saved(session, result.after);
  };
  on_ranks(job, a, work, nullptr, ground);
  return result;
}

// The same step and the same state; what follows is the same too where ranks are `equal`, else losses are near.
inline void expect_resumed(const Halves& resumed, const Halves& expected, bool equal, double tolerance,
                           const std::string& how) {
  EXPECT_EQ(resumed.step, expected.step) << how;
  EXPECT_TRUE(resumed.saved == expected.saved) << how;
  if (equal) {
    EXPECT_TRUE(resumed.after == expected.after) << how;
  } else {
    const double loss = expected.after.steps[0].loss;
    EXPECT_NEAR(resumed.after.steps[0].loss, loss, tolerance * loss) << how;
  }
}

inline Space space_of(uint64_t draw) { return std::array{Space::Device, Space::Host, Space::Disk}[draw % 3]; }

}  // namespace snug
