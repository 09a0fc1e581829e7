// Pairs of replies, from their tokens to their steps: against fp64 (fixtures/objective), however a step is cut or held.
#include "pairs.h"
#include "expect_error.h"

namespace snug {
namespace {

class PairSteps : public testing::TestWithParam<const char*> {};

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
  expect_gradients(session, run, expected()[GetParam()]["steps"][0]["gradients"]);
}

INSTANTIATE_TEST_SUITE_P(Variants, PairSteps,
                         testing::Values("sigmoid", "cdpo", "robust", "hinge", "ipo", "sigmoid_norm", "apo_zero",
                                         "apo_down", "sigmoid+nll", "orpo", "simpo", "simpo+nll"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '+', '_');
                           return name;
                         });

// Returns the ops of a program that compute layers forward; of one that trains they are the layers' ops "fwd".
std::vector<std::string> forward_ops(const Compiled& compiled, Task task) {
  std::vector<std::string> ops;
  for (const Op& op : compiled.set.programs[compiled.at(task)].ops) {
    if (!op.site.starts_with("layer.") || op.lane != Lane::Compute) continue;
    std::string site = op.site;
    const size_t forward = site.find(".fwd.");
    if (forward != std::string::npos) site.erase(forward, 4);
    const bool trains = task == Task::Pass && (forward == std::string::npos || site.find("recompute") != site.npos);
    if (!trains) ops.push_back(fmt::format("{} {}", site, kind(op.attrs)));
  }
  return ops;
}

// By other products sums would be rounded otherwise, and the first loss would not be ln 2 to the bit on GPUs.
TEST(NewAdapter, TheReferenceIsScoredByTheOpsThatTrainIt) {
  JobSpec spec = job_of(options_of("sigmoid"), true, DType::BF16, 64);
  spec.new_adapter = true;
  const Compiled begins = compile(spec, CpuFacts());
  EXPECT_GT(forward_ops(begins, Task::Score).size(), 10u);
  EXPECT_EQ(forward_ops(begins, Task::Score), forward_ops(begins, Task::Pass));
  spec.new_adapter = false;
  EXPECT_LT(forward_ops(compile(spec, CpuFacts()), Task::Score).size(), forward_ops(begins, Task::Score).size());
}

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
  const std::vector<Arrangement> all = pair_arrangements();
  for (const bool lora : {false, true}) {
    for (const ObjectiveOptions& objective : {ObjectiveOptions{.kind = ObjectiveKind::Dpo, .nll_weight = 0.5},
                                              ObjectiveOptions{.kind = ObjectiveKind::Orpo, .nll_weight = 1},
                                              ObjectiveOptions{.kind = ObjectiveKind::Kto}}) {
      const Dataset dataset = objective.pairs() ? pairs_of_file() : judged_of_file();
      std::map<std::pair<int, int64_t>, std::vector<std::string>> expected;  // by ranks and passes
      for (const Arrangement& a : all) {
        SCOPED_TRACE(to_string(a));
        const std::vector<std::string> found = lines_of_ranks(job_of(objective, lora, DType::BF16, 64), a, dataset);
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
