// Optimizers as a user meets them: what is evaluated and written of an average, going on, and what is refused.
#include "cli_fixture.h"

namespace snug {
namespace {

class Optimizers : public Cli {
 protected:
  static Words schedule_free(const Words& more) {
    return with(job("train", {"--optimizer", "schedule_free_adamw", "--learning-rate", "1e-2", "--compute", "fp32",
                              "--warmup-steps", "1"}),
                more);
  }

  std::vector<nlohmann::json> metrics() const {
    std::vector<nlohmann::json> all;
    std::istringstream lines(text_of(at("run/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      all.push_back(nlohmann::json::parse(line));
      for (const char* other : {"step_seconds", "tokens_per_second"}) all.back().erase(other);
    }
    return all;
  }
};

// The held-out loss of a step is that of what is written of it: the average, in the adapter and in every checkpoint.
TEST_F(Optimizers, WhatIsWrittenOfARunIsWhatItEvaluated) {
  put(at("held.jsonl"), text_of(kModels / "data.jsonl"));
  ASSERT_EQ(run(schedule_free({"--validation", "held.jsonl", "--schedule", "constant", "--max-steps", "4",
                               "--save-every", "1", "--eval-every", "1", "--keep", "all"}))
                .code,
            0);
  const auto steps = metrics();
  ASSERT_EQ(steps.size(), 4U);
  const auto loss_of = [&](const Words& more) {
    const Outcome outcome = run(with({"eval", "--model", kModels / "llama", "--adapter", "run", "--data", "held.jsonl",
                                      "--compute", "fp32", "--sequence-length", "64", "--json"},
                                     more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["loss"].get<double>();
  };
  for (const size_t step : {2U, 4U})
    EXPECT_NEAR(loss_of({"--checkpoint", "step-" + std::to_string(step)}), steps[step - 1]["eval_loss"].get<double>(),
                1e-6);
  EXPECT_NEAR(loss_of({"--adapter", "run/adapter"}), steps[3]["eval_loss"].get<double>(), 1e-6);
}

// What the average has taken in is kept: after a rate that fell, the newest iterate's share is not 1 / step.
TEST_F(Optimizers, AnAverageGoesOnToTheBit) {
  const Words falling{"--validation", "0.25", "--schedule", "warmup_stable_decay", "--decay-ratio", "0.9"};
  ASSERT_EQ(run(schedule_free(with({"--max-steps", "5"}, falling))).code, 0);
  const auto expected = metrics();
  const auto interrupted = with(with({"--overwrite", "--max-steps", "5"}, falling), {"--save-every", "2"});
  ASSERT_EQ(run(schedule_free(interrupted)).code, 0);
  fs::remove_all(at("run/checkpoints/step-5"));
  ASSERT_EQ(run({"train", "--out", "run", "--resume"}).code, 0);
  EXPECT_EQ(metrics(), expected);
  EXPECT_THAT(text_of(at("run/checkpoints/step-5/state.json")), HasSubstr("\"largest_rate\": 0.01"));
}

// Second moments of norms beside matrices, and what trained norms began with: every rank restores all of them, of which
// each had saved a part.
TEST_F(Optimizers, RanksGoOnWithWhatOthersSaved) {
  for (const Words& what : {Words{"--optimizer", "muon", "--method", "full"}, Words{"--lora-dora"},
                            Words{"--optimizer", "adafactor", "--method", "full"},
                            Words{"--optimizer", "apollo", "--apollo-rank", "4", "--method", "full"}}) {
    const Words words = with({"--ranks", "2", "--zero", "3", "--learning-rate", "1e-3", "--schedule", "constant",
                              "--save-every", "2", "--max-steps", "4", "--overwrite"},
                             what);
    ASSERT_EQ(run(job("train", words)).code, 0);
    const auto learnt = [&] {
      auto all = metrics();
      for (nlohmann::json& line : all) line.erase("host_bytes");  // two files are read through more of it than one
      return all;
    };
    const auto expected = learnt();
    fs::remove_all(at("run/checkpoints/step-4"));
    const Outcome resumed = run({"train", "--out", "run", "--resume"});
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(learnt(), expected) << what.back();
  }
}

TEST_F(Optimizers, WhatAnOptimizerCannotDoIsRefused) {
  const auto refusal = [&](const char* optimizer, const Words& more) {
    const Outcome outcome = run(job("train", with({"--optimizer", optimizer, "--max-steps", "1"}, more)));
    EXPECT_EQ(outcome.code, 2);
    return outcome.err;
  };
  EXPECT_THAT(refusal("lion", {"--state-format", "8bit"}), HasSubstr("state_format: found 8bit, expected fp32: lion"));
  EXPECT_THAT(refusal("lion", {"--epsilon", "1e-6"}), HasSubstr("epsilon: found 1e-06, expected nothing"));
  EXPECT_THAT(refusal("muon", {"--state-format", "bf16"}), HasSubstr("state_format: found bf16, expected fp32: muon"));
  EXPECT_THAT(refusal("schedule_free_adamw", {"--state-format", "bf16"}),
              HasSubstr("state_format: found bf16, expected fp32: schedule_free_adamw"));
  EXPECT_THAT(refusal("adafactor", {"--beta2", "0.98"}), HasSubstr("beta2: found 0.98, expected nothing: adafactor"));
  EXPECT_THAT(refusal("apollo", {"--apollo-rank", "0"}), HasSubstr("apollo_rank: found '0'"));
  EXPECT_THAT(refusal("schedule_free_adamw", {"--beta1", "0"}), HasSubstr("beta1: found 0, expected a number above"));
  const std::string record = R"({"prompt_ids": [5, 6], "completion_ids": [7, 8], "label": )";
  put(at("judged.jsonl"), record + "true}\n" + record + "false}\n");
  Words kto = job("train", {"--optimizer", "schedule_free_adamw", "--objective", "kto"});
  std::ranges::replace(kto, std::string(kModels / "data.jsonl"), std::string("judged.jsonl"));
  EXPECT_THAT(run(kto).err, HasSubstr("optimizer: found schedule_free_adamw, expected adamw or lion: kto"));
  ASSERT_EQ(run(job("train", {"--max-steps", "1"})).code, 0);
  EXPECT_THAT(run({"train", "--out", "run", "--resume", "--optimizer", "lion", "--max-steps", "2"}).err,
              HasSubstr("optimizer: found lion, expected adamw, as the run has it"));
}

// What is proposed where nothing fits is what the optimizer has.
TEST_F(Optimizers, APlanThatDoesNotFitSaysSoByEveryOptimizer) {
  for (const char* optimizer : {"adamw", "lion", "muon", "adafactor", "apollo", "schedule_free_adamw"}) {
    const Outcome plan = run(job("plan", {"--optimizer", optimizer, "--method", "full", "--device-memory", "100KiB"}));
    EXPECT_EQ(plan.code, 3) << optimizer;
    EXPECT_THAT(plan.err, HasSubstr("it would fit with --device-memory")) << optimizer;
  }
}

// A plan says what APOLLO projects and what it does not, and that its numbers are nothing to others.
TEST_F(Optimizers, ApolloSaysWhatItProjects) {
  const auto said = [&](const Words& words) { return run(job("plan", words)).err; };
  const Words apollo{"--optimizer", "apollo", "--method", "full"};
  EXPECT_THAT(said(with(apollo, {"--apollo-rank", "8"})),
              HasSubstr("to 8 numbers a row or column; all else has adamw"));
  EXPECT_THAT(said(with(apollo, {"--apollo-rank", "40"})), HasSubstr("as many as their smaller side has"));
  EXPECT_THAT(said({"--apollo-rank", "8"}), HasSubstr("it is of --optimizer apollo"));
}

TEST_F(Optimizers, AFallingRateIsNotedBesideAnAverage) {
  EXPECT_THAT(run(schedule_free({"--max-steps", "2"})).err, HasSubstr("made for a rate that does not fall"));
  EXPECT_EQ(run(schedule_free({"--overwrite", "--max-steps", "2", "--schedule", "constant"})).err.find("does not fall"),
            std::string::npos);
}

}  // namespace
}  // namespace snug
