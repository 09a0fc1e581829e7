// Pairs of replies to a tiny model, and what fp64 makes of them (fixtures/objective).
#pragma once

#include "arranged.h"
#include "temp_directory.h"
#include "train/score_references.h"
#include "train/trainer.h"

namespace snug {

inline const std::filesystem::path kObjective = std::filesystem::path(SNUG_FIXTURES) / "objective";

// Twelve pairs: their tokens, and labels on the replies.
inline Dataset pairs_of_file() {
  Dataset dataset;
  std::ifstream in(kObjective / "pairs.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    Sample pair;
    for (const char* side : {"chosen", "rejected"}) {
      if (!pair.ids.empty()) pair.second = static_cast<uint32_t>(pair.ids.size());
      for (const int32_t id : json["prompt"]) pair.ids.push_back(id), pair.labels.push_back(kNoLabel);
      for (const int32_t id : json[side]) pair.ids.push_back(id), pair.labels.push_back(id);
    }
    dataset.add(pair);
  }
  return dataset;
}

// The preferred replies of the pairs; with `weights` those of a step's four differ.
inline Dataset replies_of_file(bool weights = false) {
  const Dataset pairs = pairs_of_file();
  Dataset dataset;
  for (int64_t i = 0; i < pairs.samples(); i++) {
    Sample sample;
    const auto length = static_cast<size_t>(pairs.second(i));
    sample.ids.assign(pairs.ids(i).begin(), pairs.ids(i).begin() + static_cast<std::ptrdiff_t>(length));
    sample.labels.resize(length);
    pairs.labels(i, 0, sample.labels);
    if (weights) sample.weights.assign(length, 0.5f + 0.25f * static_cast<float>(i % 4));
    dataset.add(sample);
  }
  return dataset;
}

// Twelve replies with a judgement, each with another to its prompt.
inline Dataset judged_of_file() {
  Dataset dataset;
  std::ifstream in(kObjective / "judged.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    Sample sample;
    for (const int32_t id : json["prompt"]) sample.ids.push_back(id), sample.labels.push_back(kNoLabel);
    for (const int32_t id : json["reply"]) sample.ids.push_back(id), sample.labels.push_back(id);
    sample.value = json["label"].get<bool>() ? 1.0f : 0.0f;
    dataset.add(sample);
  }
  return with_other_replies(dataset, all_samples(dataset.samples()));
}

inline const nlohmann::json& expected() {
  static const nlohmann::json all = read_json(kObjective / "expected.json");
  return all;
}

inline References references_of(const char* key) {
  References references(pairs_of_file());
  for (uint32_t i = 0; i < 12; i++)
    for (size_t half = 0; half < 2; half++) references.set(i, half, expected()[key][i][half]);
  return references;
}

inline ObjectiveOptions options_of(const std::string& variant) {
  const nlohmann::json& given = expected()[variant]["options"];
  ObjectiveOptions options;
  options.kind = objective_from_name(given["objective"].get<std::string>());
  if (options.kind == ObjectiveKind::Dpo)
    options.preference_loss = preference_loss_from_name(variant.substr(0, variant.find('+')));
  options.beta = given.value("beta", options.beta);
  options.label_smoothing = given.value("label_smoothing", 0.0);
  options.nll_weight = given.value("nll_weight", 0.0);
  options.simpo_gamma = given.value("simpo_gamma", options.simpo_gamma);
  return options;
}

inline JobSpec job_of(const ObjectiveOptions& objective, bool lora, DType compute, int64_t length) {
  JobSpec spec = tiny_job("llama", lora ? std::optional<std::string>("adapter_init") : std::nullopt, compute);
  spec.numerics.weight_decay = 0;
  spec.numerics.logits_chunk_rows = 16;
  spec.objective = objective;
  spec.cut.sequence_length = length;
  spec.evaluate = true;
  return spec;
}

inline PackingOptions packing_of(const JobSpec& spec, bool packing) {
  return {.sequence_length = spec.cut.sequence_length,
          .packing = packing,
          .shuffle = false,
          .apart = spec.objective.scores_others(),
          .pools = spec.objective.scores()};
}

// What a run of a session over pairs holds together.
struct PairRun {
  PairRun(Session& session, const Dataset& dataset, References& references, int64_t steps, bool packing = false)
      : session(session),
        data(dataset, all_samples(dataset.samples()), packing_of(session.spec(), packing),
             {session.spec().cut.passes, session.spec().cut.ranks, session.spec().cut.micro_batch},
             {.max_steps = steps}, session.rank()),
        objective(session.spec().objective.has_metrics()
                      ? make_step_objective(session.spec().objective, dataset, data.stream(), &references)
                      : nullptr) {}

  // Returns the metrics of its steps.
  std::vector<nlohmann::json> train(const std::filesystem::path& out, double rate) {
    TrainerOptions options;
    options.out = out;
    options.steps = data.stream().steps();
    options.schedule = {ScheduleKind::Constant, rate, 0, options.steps};
    options.objective = objective.get();
    std::filesystem::create_directories(out);
    Trainer trainer(session, data, nullptr, 0, options);
    trainer.run();
    std::vector<nlohmann::json> lines;
    std::ifstream in(out / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  Session& session;
  StreamSource data;
  std::unique_ptr<StepObjective> objective;  // null of sft
};

inline void expect_near(const nlohmann::json& found, double expected, double bound, const std::string& what) {
  EXPECT_LE(std::abs(found.get<double>() - expected), bound * std::max(1.0, std::abs(expected)))
      << what << ": " << found << ", expected " << expected;
}

// Loss, norm and metrics of three steps.
inline void expect_steps(const std::vector<nlohmann::json>& found, const nlohmann::json& expected) {
  ASSERT_EQ(found.size(), 3u);
  for (size_t s = 0; s < 3; s++) {
    const std::string at = fmt::format("step {} ", s + 1);
    expect_near(found[s]["loss"], expected[s]["loss"], 1e-5, at + "loss");
    expect_near(found[s]["grad_norm"], expected[s]["grad_norm"], 1e-5, at + "norm");
    for (const auto& [name, value] : expected[s]["metrics"].items()) {
      ASSERT_TRUE(found[s].contains(name)) << name;
      if (value.is_null())
        EXPECT_TRUE(found[s][name].is_null()) << at + name;
      else
        expect_near(found[s][name], value, 1e-5, at + name);
    }
  }
}

// Compares the gradients of a first step with expected norms and products with weights.
inline void expect_gradients(Session& session, PairRun& run, const nlohmann::json& gradients) {
  const BatchSource::Step counts = run.data.begin_step(1);
  serve_batches(session, run.data, [](int64_t) { return 0; });
  session.on(HostJob::TakeScores, [](const HostTask&, std::span<const TensorView>, RuntimeScalars&) {});
  session.on(HostJob::WeighRows, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    run.objective->weigh(0, 0, views[0], numbers_of<float>(views[1]), numbers_of<float>(views[2]));
  });
  RuntimeScalars runtime;
  runtime.loss_scale =
      1.0f / static_cast<float>(session.spec().objective.weighs_rows() ? counts.samples : counts.loss_tokens);
  runtime.step = 1;
  session.run(Task::Pass, runtime);
  for (size_t i = 0; i < session.spec().table.params.size(); i++) {
    const std::vector<float> gradient = values(session, session.compiled().owned[i].gradient),
                             weight = values(session, session.compiled().owned[i].weight);
    double squares = 0, product = 0, weights = 0;
    for (size_t k = 0; k < gradient.size(); k++) {
      squares += std::pow(static_cast<double>(gradient[k]), 2);
      weights += std::pow(static_cast<double>(weight[k]), 2);
      product += static_cast<double>(gradient[k]) * static_cast<double>(weight[k]);
    }
    const nlohmann::json& of = gradients.at(session.spec().table.params[i].name);
    const double norm = of["norm"].get<double>();
    EXPECT_NEAR(std::sqrt(squares), norm, 1e-5 * norm) << session.spec().table.params[i].name;
    EXPECT_NEAR(product, of["by_weight"].get<double>(), 1e-5 * norm * std::sqrt(weights))
        << session.spec().table.params[i].name;
  }
}

// Returns the metrics of three steps on the ranks of an arrangement, as rank 0 has them, without times and bytes; on
// each rank `prepare` sees the run before.
inline std::vector<std::string> lines_of_ranks(
    const JobSpec& spec, const Arrangement& a, const Dataset& dataset,
    const std::function<void(PairRun&)>& prepare = [](PairRun&) {}) {
  const TempDirectory directory;
  std::mutex mutex;
  std::vector<std::string> found;
  on_ranks(spec, a, [&](Session& session) {
    session.load();
    References references(dataset);
    PairRun run(session, dataset, references, 3);
    if (spec.objective.has_reference()) score_references(session, run.data, *run.objective);
    prepare(run);
    const auto lines = run.train(directory.path() / "out", 1e-3);
    const std::lock_guard lock(mutex);
    for (nlohmann::json line : lines) {
      for (const char* other : {"step_seconds", "tokens_per_second", "device_bytes", "host_bytes"}) line.erase(other);
      if (session.rank() == 0) found.push_back(line.dump());
    }
  });
  return found;
}

// Returns arrangements that must not change a bit, of each number of ranks and passes the plain one first.
inline std::vector<Arrangement> pair_arrangements() {
  std::vector<Arrangement> all(10);
  all[1].recompute = Recompute::Block, all[1].inputs = all[1].states = Space::Disk, all[1].lanes = LaneMode::Threads;
  for (const size_t a : {2u, 3u, 4u}) all[a].passes = 4;
  all[3].layer_major = true, all[3].recompute = Recompute::Block;
  all[4].states = all[4].gradients = all[4].weights = Space::Host, all[4].deferred = true;
  for (const size_t a : {5u, 6u, 7u}) all[a].ranks = 2, all[a].passes = 2;
  all[6].zero = 3, all[6].inputs = Space::Host, all[6].lanes = LaneMode::Threads;
  all[7].zero = 2, all[7].speculative = true, all[7].states = Space::Host;
  for (const size_t a : {8u, 9u}) all[a].ranks = 4;
  all[9].replicas = 2, all[9].zero = 3, all[9].weights = Space::Host, all[9].lanes = LaneMode::Threads;
  return all;
}

}  // namespace snug
