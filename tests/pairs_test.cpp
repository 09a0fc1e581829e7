// Pairs of replies, from their tokens to their steps: against fp64 (fixtures/objective), however a step is cut or held.
#include "arranged.h"
#include "expect_error.h"
#include "temp_directory.h"
#include "train/score_references.h"
#include "train/trainer.h"

namespace snug {
namespace {

const std::filesystem::path kObjective = std::filesystem::path(SNUG_FIXTURES) / "objective";

// Twelve pairs: their tokens, and labels on the replies.
Dataset pairs_of_file() {
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

// Twelve replies with a judgement, each with another to its prompt.
Dataset judged_of_file() {
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

const nlohmann::json& expected() {
  static const nlohmann::json all = read_json(kObjective / "expected.json");
  return all;
}

References references_of(const char* key) {
  References references(pairs_of_file());
  for (uint32_t i = 0; i < 12; i++)
    for (size_t half = 0; half < 2; half++) references.set(i, half, expected()[key][i][half]);
  return references;
}

ObjectiveOptions options_of(const std::string& variant) {
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

JobSpec job_of(const ObjectiveOptions& objective, bool lora, DType compute, int64_t length) {
  JobSpec spec = tiny_job("llama", lora ? std::optional<std::string>("adapter_init") : std::nullopt, compute);
  spec.numerics.weight_decay = 0;
  spec.numerics.logits_chunk_rows = 16;
  spec.objective = objective;
  spec.cut.sequence_length = length;
  spec.evaluate = true;
  return spec;
}

PackingOptions packing_of(const JobSpec& spec, bool packing) {
  return {.sequence_length = spec.cut.sequence_length,
          .packing = packing,
          .shuffle = false,
          .apart = spec.objective.scores_others()};
}

// What a run of a session over pairs holds together.
struct PairRun {
  PairRun(Session& session, const Dataset& dataset, References& references, int64_t steps, bool packing = false)
      : session(session),
        data(dataset, all_samples(dataset.samples()), packing_of(session.spec(), packing),
             {session.spec().cut.passes, session.spec().cut.ranks, session.spec().cut.micro_batch},
             {.max_steps = steps}, session.rank()),
        objective(make_step_objective(session.spec().objective, dataset, data.stream(), &references)) {}

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
  std::unique_ptr<StepObjective> objective;
};

class PairSteps : public testing::TestWithParam<const char*> {};

void expect_near(const nlohmann::json& found, double expected, double bound, const std::string& what) {
  EXPECT_LE(std::abs(found.get<double>() - expected), bound * std::max(1.0, std::abs(expected)))
      << what << ": " << found << ", expected " << expected;
}

// Loss, norm and metrics of three steps.
void expect_steps(const std::vector<nlohmann::json>& found, const nlohmann::json& expected) {
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

TEST_P(PairSteps, LossNormAndMetricsOfThreeStepsAreThoseOfFp64) {
  const Dataset dataset = pairs_of_file();
  References references = references_of("references");
  JobSpec spec = job_of(options_of(GetParam()), false, DType::F32, 64);
  spec.cut.micro_batch = 4;
  Session session(spec, 1);
  session.load();
  const TempDirectory directory;
  PairRun run(session, dataset, references, 3);
  const auto lines = run.train(directory.path() / "out", 1e-3);
  expect_steps(lines, expected()[GetParam()]["steps"]);
}

TEST_P(PairSteps, GradientsOfEveryParameterAreThoseOfFp64) {
  const Dataset dataset = pairs_of_file();
  References references = references_of("references");
  JobSpec spec = job_of(options_of(GetParam()), false, DType::F32, 64);
  spec.cut.micro_batch = 4;
  Session session(spec, 1);
  session.load();
  PairRun run(session, dataset, references, 3);
  const BatchSource::Step counts = run.data.begin_step(1);
  session.on(HostJob::FillBatch, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars& runtime) {
    run.data.fill(0, batch_views(views), runtime);
  });
  session.on(HostJob::WeighRows, [&](const HostTask&, std::span<const TensorView> views, RuntimeScalars&) {
    run.objective->weigh(0, 0, views[0], numbers_of<float>(views[1]), numbers_of<float>(views[2]));
  });
  RuntimeScalars runtime;
  runtime.loss_scale = 1.0f / static_cast<float>(counts.samples);
  runtime.step = 1;
  session.run(Task::Pass, runtime);
  const nlohmann::json& gradients = expected()[GetParam()]["steps"][0]["gradients"];
  for (size_t i = 0; i < spec.table.params.size(); i++) {
    const std::vector<float> gradient = values(session, session.compiled().owned[i].gradient),
                             weight = values(session, session.compiled().owned[i].weight);
    double squares = 0, product = 0, weights = 0;
    for (size_t k = 0; k < gradient.size(); k++) {
      squares += std::pow(static_cast<double>(gradient[k]), 2);
      weights += std::pow(static_cast<double>(weight[k]), 2);
      product += static_cast<double>(gradient[k]) * static_cast<double>(weight[k]);
    }
    const nlohmann::json& of = gradients.at(spec.table.params[i].name);
    const double norm = of["norm"].get<double>();
    EXPECT_NEAR(std::sqrt(squares), norm, 1e-5 * norm) << spec.table.params[i].name;
    EXPECT_NEAR(product, of["by_weight"].get<double>(), 1e-5 * norm * std::sqrt(weights)) << spec.table.params[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, PairSteps,
                         testing::Values("sigmoid", "cdpo", "robust", "hinge", "ipo", "sigmoid_norm", "apo_zero",
                                         "apo_down", "sigmoid+nll", "orpo", "simpo", "simpo+nll"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '+', '_');
                           return name;
                         });

// Of each step kl, from replies that are not learnt from, decides what every reply weighs; the last step has desirable
// ones alone.
TEST(Kto, LossNormAndMetricsOfThreeStepsAreThoseOfFp64) {
  const Dataset dataset = judged_of_file();
  ASSERT_TRUE(dataset.has_pairs());
  for (const auto& [micro, passes] : {std::pair(4, 1), {1, 4}}) {
    References references(dataset);
    for (uint32_t i = 0; i < 12; i++)
      for (size_t half = 0; half < 2; half++)
        references.set(i, half, expected()["kto"]["references"][i][half].get<double>());
    JobSpec spec = job_of({.kind = ObjectiveKind::Kto, .undesirable_weight = 1.5}, false, DType::F32, 40);
    spec.cut.micro_batch = micro;
    spec.cut.passes = passes;
    Session session(spec, 1);
    session.load();
    const TempDirectory directory;
    PairRun run(session, dataset, references, 3);
    const auto lines = run.train(directory.path() / "out", 1e-3);
    SCOPED_TRACE(fmt::format("{} passes", passes));
    expect_steps(lines, expected()["kto"]["steps"]);
  }
}

TEST(Kto, OtherRepliesAreTheNextOnesToAnotherPrompt) {
  const auto judged = [](int32_t prompt, int32_t reply) {
    Sample sample{{1, prompt, reply, 2}, {kNoLabel, kNoLabel, reply, 2}};
    sample.value = 1;
    return sample;
  };
  Dataset dataset;
  for (const auto& [prompt, reply] : {std::pair(5, 50), {5, 51}, {6, 60}, {7, 70}, {5, 52}})
    dataset.add(judged(prompt, reply));
  const Dataset both = with_other_replies(dataset, all_samples(5));
  const int32_t others[] = {60, 70, 70, 52, 60};
  for (int64_t i = 0; i < 5; i++) {
    const std::span<const int32_t> ids = both.ids(i);
    ASSERT_EQ(both.second(i), 4u);
    EXPECT_EQ(ids[5], ids[1]) << "the prompt is its own";
    EXPECT_EQ(ids[6], others[i]);
    EXPECT_EQ(both.loss_tokens(i, 4, 8), 2);
  }
  Dataset alike;
  for (const int32_t reply : {50, 51}) alike.add(judged(5, reply));
  EXPECT_FALSE(with_other_replies(alike, all_samples(2)).has_pairs());
  const Dataset selected = with_other_replies(dataset, std::vector<uint32_t>{1, 3});
  ASSERT_EQ(selected.samples(), 2);
  EXPECT_EQ(selected.ids(0)[6], 70) << "of the selected samples alone";
  EXPECT_EQ(selected.ids(1)[6], 51);
}

// Another's reply bounds nothing: it is cut for itself, at its prompt's beginning and then at its end.
TEST(Kto, DocumentsAreCutEachForItself) {
  const auto judged = [](int32_t prompt, int prompts, int replies) {
    Sample sample;
    for (int i = 0; i < prompts; i++) sample.ids.push_back(prompt + i), sample.labels.push_back(kNoLabel);
    for (int i = 0; i < replies; i++) sample.ids.push_back(30 + i), sample.labels.push_back(30 + i);
    sample.value = 1;
    return sample;
  };
  Dataset dataset;
  dataset.add(judged(3, 4, 2));
  dataset.add(judged(9, 2, 12));
  const Dataset both = with_other_replies(dataset, all_samples(2));
  Packer packer(both, all_samples(2), {.sequence_length = 8, .shuffle = false, .apart = true});
  EXPECT_EQ(packer.report().long_replies, 1) << "12 tokens of a reply have no room";
  const std::vector<DocumentSpan> documents = packer.documents();
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0], (DocumentSpan{0, 0, 6})) << "its own is whole";
  EXPECT_EQ(documents[1], (DocumentSpan{0, 6 + 3, 8})) << "a token of the prompt, and what fits of the reply";
  EXPECT_EQ(counted_labels(both, documents[1]), 7);
}

TEST(PairReferences, WhatIsKnownWhenAnInterruptComesIsKept) {
  const Dataset dataset = pairs_of_file();
  References references(dataset);
  Session session(job_of({.kind = ObjectiveKind::Dpo}, true, DType::F32, 64), 1);
  session.load();
  PairRun run(session, dataset, references, 12);
  int asked = 0;
  const ScoredPasses scored =
      score_references(session, run.data, *run.objective, {.interrupted = [&] { return ++asked == 3; }});
  EXPECT_TRUE(scored.interrupted);
  EXPECT_EQ(scored.passes, 3);
  EXPECT_EQ(run.objective->known(), 3);
  const ScoredPasses rest =
      score_references(session, run.data, *run.objective, {.interrupted = [&] { return run.objective->knows_all(); }});
  EXPECT_FALSE(rest.interrupted) << "nothing is left to be scored";
  EXPECT_EQ(rest.passes, 9);
}

// One prompt alone: nothing estimates how far the model is from its reference.
TEST(Kto, WithOnePromptALoneReplyIsSetAgainstItsReference) {
  Dataset dataset;
  for (const float label : {1.0f, 0.0f}) {
    Sample sample{{1, 5, 7, 2}, {kNoLabel, kNoLabel, 7, 2}};
    sample.value = label;
    dataset.add(sample);
  }
  JobSpec spec = job_of({.kind = ObjectiveKind::Kto}, true, DType::F32, 40);
  spec.cut.micro_batch = 2;
  Session session(spec, 1);
  session.load();
  const TempDirectory directory;
  const Dataset same = with_other_replies(dataset, all_samples(dataset.samples()));
  References references(same);
  PairRun run(session, same, references, 2);
  score_references(session, run.data, *run.objective);
  const auto lines = run.train(directory.path() / "out", 1e-3);
  EXPECT_EQ(lines[0]["loss"], 0.5);
  EXPECT_EQ(lines[0]["kl"], 0);
  EXPECT_EQ(lines[1]["kl"], 0);
}

TEST(PairReferences, AreTheLogProbabilitiesOfTheModelBeforeItsFirstStep) {
  const Dataset dataset = pairs_of_file();
  for (const bool lora : {false, true}) {
    References references(dataset);
    JobSpec spec = job_of({.kind = ObjectiveKind::Dpo}, lora, DType::F32, 64);
    spec.cut.micro_batch = 2;
    spec.cut.passes = 2;
    Session session(spec, 1);
    session.load();
    PairRun run(session, dataset, references, 3, /*packing=*/lora);
    EXPECT_GT(score_references(session, run.data, *run.objective).passes, 0);
    ASSERT_TRUE(run.objective->knows_all());
    for (uint32_t i = 0; i < 12; i++)
      for (size_t half = 0; half < 2; half++)
        expect_near(references.of(i)[half], expected()["scores"][i][half].get<double>(), 1e-5,
                    fmt::format("pair {}, {}", i, half));
    EXPECT_EQ(score_references(session, run.data, *run.objective).passes, 0) << "what is known is not scored again";
  }
}

// The adapter's second half is zero: the products that score and those that train give the same bits.
TEST(PairReferences, TheFirstLossOfANewAdapterIsLn2ToTheBit) {
  const Dataset dataset = pairs_of_file();
  for (const DType compute : {DType::F32, DType::BF16}) {
    References references(dataset);
    JobSpec spec = job_of({.kind = ObjectiveKind::Dpo}, true, compute, 64);
    spec.cut.micro_batch = 2;
    Session session(spec, 1);
    session.load();
    const TempDirectory directory;
    PairRun run(session, dataset, references, 2, /*packing=*/true);
    score_references(session, run.data, *run.objective);
    const auto lines = run.train(directory.path() / "out", 1e-3);
    EXPECT_EQ(lines[0]["loss"].get<double>(), std::numbers::ln2);
    EXPECT_EQ(lines[0]["rewards/margins"], 0.0);
    EXPECT_GT(lines[0]["grad_norm"], 0.0);
    EXPECT_NE(lines[1]["loss"].get<double>(), std::numbers::ln2);
  }
}

TEST(PairReferences, AFileServesEveryOrderOfTheDataAndNoOtherKey) {
  const Dataset dataset = pairs_of_file();
  const TempDirectory directory;
  const auto path = directory.path() / "references";
  References references = references_of("references");
  const auto pairs = [&](std::vector<uint32_t> selection, int64_t length, References& out) {
    const Packer packer(dataset, std::move(selection), {.sequence_length = length, .shuffle = false});
    return std::vector{Referenced{dataset, packer.documents(), out}};
  };
  write_references(path, "a key", pairs(all_samples(12), 64, references));
  const auto known = [&](const char* key, std::vector<uint32_t> selection, int64_t length, References out) {
    read_references(path, key, pairs(std::move(selection), length, out));
    int64_t count = 0;
    for (uint32_t i = 0; i < 12; i++) count += out.knows(i);
    return count;
  };
  References found(dataset);
  read_references(path, "a key", pairs({7, 2}, 64, found));
  EXPECT_EQ(found.of(7), references.of(7));
  EXPECT_FALSE(found.knows(3));
  EXPECT_EQ(known("another", {7, 2}, 64, References(dataset)), 0);
  // Pairs that are cut otherwise are other documents.
  const int64_t of_cut = known("a key", all_samples(12), 24, References(dataset));
  EXPECT_GT(of_cut, 0);
  EXPECT_LT(of_cut, 12);
  const std::string bytes = read_text(path, 1 << 20);
  for (size_t i = 0; i < bytes.size(); i += 5) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    write_text(path, damaged);
    try {
      EXPECT_EQ(known("a key", all_samples(12), 64, References(dataset)), 0) << "byte " << i;
    } catch (const UserError& error) {
      EXPECT_NE(std::string_view(error.what()).find("damaged"), std::string_view::npos);
    }
  }
  std::filesystem::remove(path);
  EXPECT_EQ(known("a key", all_samples(12), 64, References(dataset)), 0);
}

// However a step is cut, its metrics are equal to the order of sums within products.
TEST(Pairs, AStepIsTheSameHoweverItIsCut) {
  const Dataset dataset = pairs_of_file();
  const TempDirectory directory;
  std::vector<nlohmann::json> first;
  for (const auto& [micro, passes] : {std::pair(4, 1), {2, 2}, {1, 4}}) {
    JobSpec spec = job_of({.kind = ObjectiveKind::Orpo, .nll_weight = 1}, false, DType::F32, 64);
    spec.cut.micro_batch = micro;
    spec.cut.passes = passes;
    Session session(spec, 1);
    session.load();
    References none(dataset);
    PairRun run(session, dataset, none, 3);
    const auto lines = run.train(directory.path() / fmt::format("{}", passes), 1e-3);
    if (first.empty()) first = lines;
    for (size_t s = 0; s < lines.size(); s++)
      for (const char* key : {"loss", "grad_norm", "log_odds_ratio", "nll_loss", "rewards/accuracies"})
        expect_near(lines[s][key], first[s][key].get<double>(), 2e-6, fmt::format("{} passes, {}", passes, key));
  }
}

// Every number of every step, to the bit, at equal ranks and passes; and what is scored first at any.
TEST(Pairs, NoArrangementChangesABit) {
  std::vector<Arrangement> all(10);  // of each number of ranks and passes the plain one first
  all[1].recompute = Recompute::Block, all[1].inputs = all[1].states = Space::Disk, all[1].lanes = LaneMode::Threads;
  for (const size_t a : {2, 3, 4}) all[a].passes = 4;
  all[3].layer_major = true, all[3].recompute = Recompute::Block;
  all[4].states = all[4].gradients = all[4].weights = Space::Host, all[4].deferred = true;
  for (const size_t a : {5, 6, 7}) all[a].ranks = 2, all[a].passes = 2;
  all[6].zero = 3, all[6].inputs = Space::Host, all[6].lanes = LaneMode::Threads;
  all[7].zero = 2, all[7].speculative = true, all[7].states = Space::Host;
  for (const size_t a : {8, 9}) all[a].ranks = 4;
  all[9].replicas = 2, all[9].zero = 3, all[9].weights = Space::Host, all[9].lanes = LaneMode::Threads;
  for (const bool lora : {false, true}) {
    for (const ObjectiveOptions& objective : {ObjectiveOptions{.kind = ObjectiveKind::Dpo, .nll_weight = 0.5},
                                              ObjectiveOptions{.kind = ObjectiveKind::Orpo, .nll_weight = 1},
                                              ObjectiveOptions{.kind = ObjectiveKind::Kto}}) {
      const Dataset dataset = objective.pairs() ? pairs_of_file() : judged_of_file();
      std::map<std::pair<int, int64_t>, std::vector<std::string>> expected;  // by ranks and passes
      for (const Arrangement& a : all) {
        SCOPED_TRACE(to_string(a));
        const TempDirectory directory;
        std::mutex mutex;
        std::vector<std::string> found;
        on_ranks(job_of(objective, lora, DType::BF16, 64), a, [&](Session& session) {
          session.load();
          References references(dataset);
          PairRun run(session, dataset, references, 3);
          if (objective.has_reference()) score_references(session, run.data, *run.objective);
          const auto lines = run.train(directory.path() / "out", 1e-3);
          const std::lock_guard lock(mutex);
          for (nlohmann::json line : lines) {
            for (const char* other : {"step_seconds", "tokens_per_second", "device_bytes", "host_bytes"})
              line.erase(other);
            if (session.rank() == 0) found.push_back(line.dump());
          }
        });
        auto& of_cut = expected[{a.ranks, a.passes}];
        if (of_cut.empty()) of_cut = found;
        ASSERT_EQ(found.size(), 3u);
        EXPECT_EQ(found, of_cut);
        const auto first = nlohmann::json::parse(found[0]), plain = nlohmann::json::parse(expected[{1, 1}][0]);
        for (const char* key : {"loss", "logps/chosen", "rewards/margins"}) EXPECT_EQ(first[key], plain[key]) << key;
      }
    }
  }
}

}  // namespace
}  // namespace snug
