// A model that gives scores as a user meets it: a run, its files, its evaluation, and what is refused.
#include <cmath>

#include "preferences_run.h"

namespace snug {
namespace {

class RewardRun : public Preferences {
 protected:
  static Words reward(const Words& more) {
    return with({"train",
                 "--model",
                 kModels / "llama",
                 "--data",
                 "pairs.jsonl",
                 "--out",
                 "run",
                 "--objective",
                 "reward",
                 "--compute",
                 "fp32",
                 "--batch-size",
                 "4",
                 "--threads",
                 "1",
                 "--learning-rate",
                 "1e-2",
                 "--sequence-length",
                 "64",
                 "--max-steps",
                 "12"},
                more);
  }

  nlohmann::json evaluate(const Words& more) const {
    return nlohmann::json::parse(run_well(with({"eval", "--data", "pairs.jsonl", "--objective", "reward", "--compute",
                                                "fp32", "--sequence-length", "64", "--scores", "--json"},
                                               more))
                                     .out);
  }
};

TEST_F(RewardRun, AnAdapterWithItsHeadIsTrainedEvaluatedAndMerged) {
  const Outcome outcome = run_well(reward({"--validation", "0.2", "--eval-every", "6"}));
  EXPECT_THAT(outcome.err, HasSubstr("objective     reward"));
  EXPECT_THAT(outcome.err, HasSubstr("the head that gives logits, which a model that gives scores does not have"));
  std::vector<nlohmann::json> steps;
  std::istringstream lines(text_of(at("run/metrics.jsonl")));
  for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(steps.size(), 12u);
  EXPECT_LT(steps[11]["loss"].get<double>(), steps[0]["loss"].get<double>());
  for (const char* key : {"accuracy", "margin", "min_reward", "mean_reward", "max_reward"})
    EXPECT_TRUE(steps[5].contains(key) && steps[5].contains(std::string("eval_") + key)) << key;
  const auto config = nlohmann::json::parse(text_of(at("run/adapter/adapter_config.json")));
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  EXPECT_EQ(config["modules_to_save"], (nlohmann::json{"classifier", "score"}));
  const Words adapted{"--model", kModels / "llama", "--adapter", "run/adapter"};
  const auto eval = evaluate(adapted);
  EXPECT_EQ(eval["pairs"], 12);
  ASSERT_EQ(eval["scores"].size(), 12u);
  double right = 0;
  for (const auto& pair : eval["scores"]) right += pair["chosen"].get<double>() > pair["rejected"].get<double>();
  EXPECT_NEAR(eval["accuracy"].get<double>(), right / 12, 1e-12);
  run_well(
      {"merge", "--model", kModels / "llama", "--adapter", "run/adapter", "--out", "merged", "--base-format", "fp32"});
  const auto merged = nlohmann::json::parse(text_of(at("merged/config.json")));
  EXPECT_EQ(merged["architectures"], (nlohmann::json{"LlamaForSequenceClassification"}));
  EXPECT_EQ(merged["id2label"], (nlohmann::json{{"0", "LABEL_0"}}));
  EXPECT_NE(merged["pad_token_id"], merged["eos_token_id"]);
  const auto again = evaluate({"--model", "merged"});
  for (size_t i = 0; i < 12; i++)
    EXPECT_NEAR(again["scores"][i]["chosen"].get<double>(), eval["scores"][i]["chosen"].get<double>(), 1e-4);
  EXPECT_EQ(run({"generate", "--model", "merged", "--prompt", "a"}).code, 2);
  EXPECT_THAT(text_of(at("stderr")), HasSubstr("gives a text a score"));
  EXPECT_EQ(run({"eval", "--model", "merged", "--data", "pairs.jsonl"}).code, 2);
  EXPECT_EQ(run({"export", "--model", "merged", "--out", "gguf"}).code, 2);
}

TEST_F(RewardRun, AllWeightsAreTrainedAndWrittenAsASequenceClassifier) {
  run_well(reward({"--method", "full", "--learning-rate", "1e-3", "--max-steps", "6", "--save-every", "3"}));
  const auto config = nlohmann::json::parse(text_of(at("run/model/config.json")));
  EXPECT_EQ(config["architectures"], (nlohmann::json{"LlamaForSequenceClassification"}));
  const std::string losses = text_of(at("run/metrics.jsonl"));
  const auto whole = evaluate({"--model", "run/model"});
  run_well(reward(
      {"--method", "full", "--learning-rate", "1e-3", "--max-steps", "3", "--overwrite", "--schedule", "constant"}));
  run_well({"train", "--out", "run", "--resume", "--max-steps", "6"});
  const auto resumed = evaluate({"--model", "run/model"});
  run_well(reward(
      {"--method", "full", "--learning-rate", "1e-3", "--max-steps", "6", "--overwrite", "--schedule", "constant"}));
  EXPECT_EQ(evaluate({"--model", "run/model"})["scores"], resumed["scores"]);
  // It may go on as the model of another run.
  Words more = reward({"--method", "full", "--max-steps", "1", "--out", "second"});
  *std::ranges::find(more, (kModels / "llama").string()) = "run/model";
  run_well(more);
  EXPECT_TRUE(std::isfinite(whole["loss"].get<double>()));
}

TEST_F(RewardRun, WhatHasNoScoreIsRefused) {
  const Words data{"--data", "pairs.jsonl", "--objective", "reward"};
  expect_refusal(with({"eval", "--model", kModels / "llama"}, data), {"found no tensor 'score.weight'"});
  expect_refusal({"eval", "--model", kModels / "llama", "--data", "pairs.jsonl", "--objective", "orpo", "--scores"},
                 {"--scores: found objective orpo, expected reward"});
  put(at("alone.jsonl"), R"({"prompt_ids": [5, 6], "completion_ids": [7, 2]})");
  expect_refusal({"eval", "--model", kModels / "llama", "--data", "alone.jsonl", "--objective", "reward", "--scores"},
                 {"alone.jsonl, line 1: found the keys", "expected a pair of replies to one prompt"});
}

}  // namespace
}  // namespace snug
