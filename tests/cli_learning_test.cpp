// A run that teaches nothing is not a success, and what takes no part in one is said: plan, train, eval and validation
// alike.
#include <cmath>

#include "cli_fixture.h"

namespace snug {
namespace {

class Learning : public Cli {
 protected:
  // Of prompts and replies of so many tokens.
  void put_chats(const std::string& name, const std::vector<std::pair<int, int>>& lengths) const {
    std::string text;
    for (const auto& [prompt, reply] : lengths) {
      nlohmann::json ids, labels;
      for (int i = 0; i < prompt + reply; i++) {
        ids.push_back(3 + i % 40);
        labels.push_back(i < prompt ? -100 : 3 + i % 40);
      }
      text += nlohmann::json{{"input_ids", ids}, {"labels", labels}}.dump() + "\n";
    }
    put(at(name), text);
  }

  std::vector<nlohmann::json> metrics() const {
    std::vector<nlohmann::json> all;
    std::istringstream lines(text_of(at("run/metrics.jsonl")));
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

  std::vector<double> rates(const Words& more) const {
    const Outcome outcome = run(job("train", with({"--overwrite"}, more)));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<double> all;
    for (const nlohmann::json& step : metrics()) all.push_back(step["learning_rate"]);
    return all;
  }

  static Words on(const std::string& command, const Words& more) {
    return with({command, "--model", kModels / "llama", "--sequence-length", "16", "--compute", "fp32"}, more);
  }
};

// Six prompts of 20 tokens, of which a block of 16 holds nothing that carries loss.
TEST_F(Learning, WhereNothingIsLeftToLearnFromAllCommandsSayWhy) {
  put_chats("long.jsonl", std::vector(6, std::pair(20, 4)));
  put_chats("good.jsonl", {{4, 4}, {4, 4}});
  const Words why{"6 of 6 samples", "sequence_length 16", "before their first token that carries loss",
                  "--long-samples"};
  for (const std::string command : {"train", "plan", "eval"}) {
    expect_refusal(on(command, {"--data", "long.jsonl"}), why);
    if (command == "eval") continue;
    expect_refusal(on(command, {"--data", "good.jsonl", "--validation", "long.jsonl", "--out", "run"}),
                   with(why, {"validation: no sample is left"}));
  }
  put_chats("prompts.jsonl", std::vector(3, std::pair(8, 0)));
  for (const std::string command : {"train", "plan", "eval"})
    expect_refusal(on(command, {"--data", "prompts.jsonl"}), {"3 of 3 samples have no token that carries loss"});
}

TEST_F(Learning, EmptyRecordsAreRefusedOrLeftOutByAllCommandsAndAResumedRunKeepsToIt) {
  put_chats("good.jsonl", {{4, 4}, {4, 4}});
  put(at("some.jsonl"), "{\"input_ids\": null}\n" + text_of(at("good.jsonl")));
  const Words some{"--data", "some.jsonl"}, skip{"--empty-records", "skip"},
      steps{"--batch-size", "1", "--max-steps", "2", "--out", "run"};
  const std::string said =
      "some.jsonl: 1 of 3 records is left out, as a field that it needs is null or an empty cell: line 1\n";
  for (const std::string command : {"plan", "eval", "train"}) {
    expect_refusal(on(command, some), {"some.jsonl, line 1, key 'input_ids': found null", "--empty-records skip"});
    const Words words = on(command, with(with(some, skip), command == "train" ? steps : Words()));
    EXPECT_THAT(run_well(words).err, HasSubstr(said)) << command;
  }
  const auto resumed = [&](const Words& more) {
    return run(on("train", with(with(some, steps), with({"--resume", "--max-steps", "4"}, more))));
  };
  EXPECT_EQ(resumed({"--empty-records", "error"}).code, 2);
  const Outcome outcome = resumed({});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(said));
}

TEST_F(Learning, SamplesWithoutLossMakeNoStepsAndAreCounted) {
  put_chats("mixed.jsonl", {{4, 4}, {20, 4}, {6, 2}, {8, 0}, {2, 30}});
  const Words line{"2 of 5 samples are longer than sequence_length 16: cut, 24 tokens lost",
                   "1 of 5 samples are cut before their first token that carries loss: left out",
                   "1 of 5 samples have no token that carries loss: left out"};
  const auto says = [&](const Outcome& outcome, const std::string& name) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(name + ": "));
    for (const std::string& part : line) EXPECT_THAT(outcome.err, HasSubstr(part));
  };
  says(run(on("plan", {"--data", "mixed.jsonl"})), "data");
  says(run(on("train", {"--data", "mixed.jsonl", "--packing", "false", "--batch-size", "1", "--out", "run"})), "data");
  std::vector<int> loss_tokens;
  for (const nlohmann::json& step : metrics()) loss_tokens.push_back(step["loss_tokens"]);
  EXPECT_THAT(loss_tokens, ::testing::UnorderedElementsAre(4, 2, 14));
  const Outcome eval = run(on("eval", {"--data", "mixed.jsonl", "--json"}));
  says(eval, "data");
  const auto json = nlohmann::json::parse(eval.out);
  EXPECT_EQ(json["loss_tokens"], 4 + 2 + 14);
  EXPECT_EQ(json["samples"], 5);
  EXPECT_EQ(json["long_samples"], 2);
  EXPECT_EQ(json["lost_tokens"], 24);
  EXPECT_EQ(json["samples_without_loss"], 2);
  EXPECT_TRUE(std::isfinite(json["loss"].get<double>()));
  put_chats("good.jsonl", {{4, 4}, {4, 4}});
  says(run(on("train", {"--data", "good.jsonl", "--validation", "mixed.jsonl", "--out", "run", "--overwrite"})),
       "validation");
}

TEST_F(Learning, AShortRunHasNoWarmupUnlessItIsAskedFor) {
  EXPECT_THAT(rates({"--max-steps", "1"}), ::testing::ElementsAre(1e-3));
  EXPECT_THAT(rates({"--max-steps", "3", "--schedule", "linear"}),
              ::testing::ElementsAre(1e-3, ::testing::DoubleEq(1e-3 * (1 - 1.0 / 3)),
                                     ::testing::DoubleEq(1e-3 * (1 - 2.0 / 3))));
  // A ratio that is given is rounded up, as transformers does it.
  EXPECT_EQ(rates({"--max-steps", "3", "--warmup-ratio", "0.03"})[0], 0);
}

TEST_F(Learning, AConstantRateHasNoWarmupUnlessItIsAskedFor) {
  EXPECT_THAT(rates({"--schedule", "constant", "--max-steps", "40"}), ::testing::Each(1e-3));
  EXPECT_THAT(rates({"--schedule", "constant", "--max-steps", "4", "--warmup-ratio", "0.5"}),
              ::testing::ElementsAre(0, 5e-4, 1e-3, 1e-3));
}

TEST_F(Learning, AWarmupNeverTakesTheWholeRun) {
  EXPECT_THAT(rates({"--max-steps", "3", "--warmup-steps", "10"}), ::testing::ElementsAre(0, 5e-4, 1e-3));
  EXPECT_THAT(text_of(at("stderr")), HasSubstr("warm-up of 10 steps was asked for; of the run's 3 it takes 2"));
  EXPECT_THAT(rates({"--max-steps", "1", "--warmup-ratio", "1"}), ::testing::ElementsAre(1e-3));
}

TEST_F(Learning, ARateOfZeroThatWasAskedForIsSaid) {
  EXPECT_THAT(rates({"--learning-rate", "0", "--max-steps", "3"}), ::testing::Each(0));
  EXPECT_THAT(text_of(at("stderr")),
              HasSubstr("learning_rate is 0: steps are taken and measured, and nothing is learnt"));
}

TEST_F(Learning, NoWarmupIsHadByAskingForNone) {
  EXPECT_THAT(rates({"--max-steps", "40", "--schedule", "linear"})[0], 0);
  EXPECT_THAT(rates({"--max-steps", "40", "--schedule", "linear", "--warmup-steps", "0"})[0], 1e-3);
}

}  // namespace
}  // namespace snug
