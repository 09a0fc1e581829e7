// Learning from pairs as a user meets it: a run, its metrics and references, going on, and what is refused.
#include <cmath>
#include <numbers>

#include "preferences_run.h"

namespace snug {
namespace {

TEST_F(Preferences, ARunBeginsAtLn2AndLearnsWhichIsPreferred) {
  const Outcome outcome = run_well(dpo({"--validation", "0.2", "--max-steps", "12", "--metrics-format", "csv"}));
  EXPECT_THAT(outcome.err, HasSubstr("objective     dpo (sigmoid), beta 0.1; reference: the model as it is"));
  EXPECT_THAT(outcome.err, HasSubstr("reference: of 12 pairs 0 were known (run/reference), 12 were scored"));
  const auto steps = metrics();
  ASSERT_EQ(steps.size(), 12u);
  EXPECT_EQ(steps[0]["loss"].get<double>(), std::numbers::ln2);
  EXPECT_LT(steps[11]["loss"], 0.6);
  EXPECT_EQ(steps[11]["rewards/accuracies"], 1);
  EXPECT_TRUE(steps[11].contains("eval_rewards/margins"));
  EXPECT_THAT(text_of(at("run/metrics.csv")), HasSubstr(",rewards/chosen,"));
  const Outcome eval =
      run_well({"eval", "--model", kModels / "llama", "--adapter", "run/adapter", "--data", "pairs.jsonl",
                "--objective", "dpo", "--compute", "fp32", "--sequence-length", "64", "--json"});
  const auto json = nlohmann::json::parse(eval.out);
  EXPECT_GT(json["accuracy"], 0.8);
  EXPECT_EQ(json["pairs"], 12);
  EXPECT_EQ(json["rewards/margins"], json["margin"]);
}

TEST_F(Preferences, AResumedRunGoesOnToTheBitAndScoresNothingAgain) {
  for (const Words& more : {Words{}, Words{"--method", "full"}, Words{"--objective", "orpo"}}) {
    run_well(dpo(with({"--overwrite", "--max-steps", "2", "--schedule", "constant"}, more)));
    run_well(dpo(with({"--overwrite", "--schedule", "constant"}, more)));
    const auto expected = metrics();
    run_well(dpo(with({"--overwrite", "--max-steps", "2", "--schedule", "constant"}, more)));
    const Outcome resumed = run_well({"train", "--out", "run", "--resume", "--max-steps", "4"});
    EXPECT_EQ(metrics(), expected) << ::testing::PrintToString(more);
    const bool has_reference = more.empty() || more[0] == "--method";
    EXPECT_EQ(resumed.err.find("reference: of 12 pairs") != std::string::npos, has_reference);
  }
}

TEST_F(Preferences, ReferencesThatAreKeptServeAnotherRunAndNoOtherModel) {
  const Words cache{"--reference-cache", "kept", "--max-steps", "6"};
  const auto reference_line = [&](const Words& more) {
    const std::string err = run_well(dpo(with(with({"--overwrite"}, cache), more))).err;
    const size_t begin = err.find("reference: of");
    return err.substr(begin, err.find('\n', begin) - begin);
  };
  EXPECT_THAT(reference_line({}), HasSubstr("of 12 pairs 0 were known (kept), 12 were scored in 5 passes"));
  const auto expected = metrics();
  EXPECT_THAT(reference_line({}), HasSubstr("of 12 pairs 12 were known (kept), 0 were scored in 0 passes"));
  EXPECT_EQ(metrics(), expected);
  EXPECT_THAT(reference_line({"--method", "full"}), HasSubstr("12 were known")) << "the base is the same";
  EXPECT_THAT(reference_line({"--compute", "bf16"}), HasSubstr("0 were known"));
  EXPECT_THAT(reference_line({"--model", kModels / "llama3"}), HasSubstr("0 were known"));
}

// --overwrite removes what a run has kept, and not what the next one has read of it; runs of other data add theirs.
TEST_F(Preferences, WhatIsKnownOfAReferenceStaysKnown) {
  const Words all{"--overwrite", "--max-steps", "6"};
  for (int i = 0; i < 3; i++) {
    const Outcome outcome = run_well(dpo(all));
    EXPECT_THAT(outcome.err, HasSubstr(i == 0 ? "12 were scored" : "of 12 pairs 12 were known"));
  }
  const Words kept{"--overwrite", "--reference-cache", "kept", "--max-steps", "6"};
  run_well(dpo(kept));
  run_well(dpo(with(kept, {"--sequence-length", "40"})));
  EXPECT_THAT(run_well(dpo(kept)).err, HasSubstr("of 12 pairs 12 were known"));
}

TEST_F(Preferences, AnInterruptKeepsTheReferencesThatAreKnown) {
  std::string text;
  for (int i = 0; i < 2000; i++)
    text += nlohmann::json{{"prompt_ids", {5 + i % 900, 7 + i / 900}}, {"chosen_ids", {9, 2}}, {"rejected_ids", {8, 2}}}
                .dump() +
            "\n";
  put(at("many.jsonl"), text);
  const Words words = on("many.jsonl", dpo({"--packing", "false"}));
  const pid_t child = start(words);
  while (text_of(at("stderr")).find("objective     dpo") == std::string::npos && waitpid(child, nullptr, WNOHANG) == 0)
    usleep(1000);
  kill(child, SIGINT);
  const Outcome interrupted = finish(child);
  ASSERT_EQ(interrupted.code, 130) << interrupted.err;
  EXPECT_THAT(interrupted.err, HasSubstr("interrupted before the first step"));
  EXPECT_FALSE(fs::exists(at("run/job.yaml"))) << "no run has begun";
  const std::string again = run_well(words).err;
  EXPECT_THAT(again, HasSubstr("reference: of 2000 pairs "));
  EXPECT_THAT(again, testing::Not(HasSubstr("2000 pairs 0 were known")));
}

TEST_F(Preferences, WhatKeepsReferencesIsLookedAtBeforeAnythingIsRemoved) {
  run_well(dpo({}));
  const std::string before = text_of(at("run/metrics.jsonl"));
  put(at("file"), "no directory");
  expect_refused(dpo({"--overwrite", "--reference-cache", "file"}), {"reference_cache: found the file"});
  EXPECT_EQ(text_of(at("run/metrics.jsonl")), before);
  const fs::path kept = fs::directory_iterator(at("run/reference"))->path();
  put(kept, "damaged, and long enough for a header and a checksum");
  fs::create_directory(at("own"));
  fs::copy(kept, at("own") / kept.filename());
  expect_refused(dpo({"--overwrite", "--reference-cache", "own"}), {"no header", "delete it"});
  EXPECT_THAT(run_well(dpo({"--overwrite"})).err, HasSubstr("(--overwrite replaces it)"));
  EXPECT_THAT(run_well(dpo({"--overwrite"})).err, HasSubstr("12 were known"));
}

TEST_F(Preferences, EvalKeepsReferencesWhereItIsToldTo) {
  run_well(dpo({}));
  const Words eval{"eval",        "--model", kModels / "llama",   "--adapter", "run/adapter", "--data", "pairs.jsonl",
                   "--objective", "dpo",     "--sequence-length", "64"};
  EXPECT_THAT(run_well(eval).err, HasSubstr("of 12 pairs 0 were known, 12 were scored"));
  EXPECT_FALSE(fs::exists(at("reference")));
  run_well(with(eval, {"--reference-cache", "kept"}));
  EXPECT_THAT(run_well(with(eval, {"--reference-cache", "kept"})).err, HasSubstr("12 were known (kept)"));
  expect_refused(with(eval, {"--reference", "adapter"}), {"reference: found adapter", "is ln 2 whatever it learnt"});
}

TEST_F(Preferences, RepliesOfOneKindAreSaidAndHaveNoMargin) {
  put(at("good.jsonl"), R"({"prompt_ids": [5, 6], "completion_ids": [7, 2], "label": true}
{"prompt_ids": [8, 6], "completion_ids": [9, 2], "label": true}
)");
  const Words kto{"--objective", "kto", "--max-steps", "1"};
  EXPECT_THAT(run_well(on("good.jsonl", dpo(kto))).err, HasSubstr("data: all replies are desirable"));
  const Outcome eval = run_well(
      {"eval", "--model", kModels / "llama", "--adapter", "run/adapter", "--data", "good.jsonl", "--objective", "kto"});
  EXPECT_THAT(eval.out, testing::Not(HasSubstr("margin")));
  EXPECT_THAT(run_well(dpo({"--overwrite", "--preference-loss", "robust"})).err,
              HasSubstr("preference_loss robust with label_smoothing 0 is sigmoid"));
}

TEST_F(Preferences, ModulesThatAnAdapterHoldsWholeAreNoReferences) {
  run_well(dpo({"--modules-to-save", "norm", "--out", "first"}));
  const Words whole{"--adapter", "first/adapter"};
  expect_refusal(dpo(whole),
                 {"modules that were trained whole (model.norm)", "--reference adapter takes the adapter as it is"});
  run_well(dpo(with(whole, {"--reference", "adapter"})));
}

TEST_F(Preferences, OptionsOfAnotherObjectiveAndWhatIsNotThereAreRefused) {
  const auto refused = [&](const Words& more, const Words& why) { expect_refusal(dpo(more), why); };
  refused({"--center-coefficient", "1"}, {"center_coefficient: found 1", "it is of objective reward"});
  refused({"--objective", "reward", "--beta", "0.2"}, {"beta: found 0.2", "objectives dpo, orpo, simpo and kto"});
  refused({"--simpo-gamma", "1"}, {"simpo_gamma: found 1, expected nothing: it is of objective simpo"});
  refused({"--label-smoothing", "0.1"},
          {"it is of objective sft, and preference_loss cdpo and robust", "preference_loss sigmoid"});
  refused({"--objective", "orpo", "--preference-loss", "ipo"}, {"preference_loss: found ipo", "objective orpo"});
  refused({"--objective", "simpo", "--reference", "none"},
          {"reference: found none", "it is of objectives dpo and kto"});
  refused({"--reference", "none"}, {"objectives dpo and kto need one"});
  refused({"--reference", "adapter"}, {"without --adapter there is none"});
  refused({"--reference", "other"}, {"reference: found 'other', expected auto, adapter or a model"});
  refused({"--early-stopping", "2"}, {"early_stopping: found 2, expected --validation and --eval-every"});
  refused({"--beta", "0"}, {"beta: found 0, expected more", "with 0 of it nothing is learnt"});
  refused({"--beta", "0", "--objective", "orpo"}, {"the cross-entropy alone is left"});
  refused({"--objective", "kto", "--desirable-weight", "0", "--undesirable-weight", "0"}, {"found 0 for both"});
  refused({"--long-samples", "split"}, {"long_samples: found split", "what is judged is cut, or dropped"});
  refused({"--objective", "sft", "--beta", "0.2"}, {"beta: found 0.2", "objective sft"});
  expect_refusal({"eval", "--model", kModels / "llama", "--data", "pairs.jsonl", "--objective", "dpo"},
                 {"expected an --adapter beside it, or --reference MODEL"});
}

// Pairs are two replies with a judgement each.
TEST_F(Preferences, KtoLearnsFromRepliesWithALabelAndFromPairs) {
  const Words kto{"--objective", "kto", "--max-steps", "8", "--batch-size", "6", "--overwrite"};
  for (const char* file : {"judged.jsonl", "pairs.jsonl"}) {
    const Outcome outcome = run_well(dpo(with(kto, {"--data", file, "--packing", "false"})));
    EXPECT_THAT(outcome.err, HasSubstr("objective     kto, beta 0.1; reference: the model as it is"));
    const auto steps = metrics();
    EXPECT_EQ(steps[0]["loss"], 0.5) << file;
    EXPECT_EQ(steps[0]["kl"], 0);
    EXPECT_EQ(steps[0]["count/chosen"].get<int>() + steps[0]["count/rejected"].get<int>(), 6);
    EXPECT_LT(steps[7]["loss"], 0.48);
  }
  const auto whole = metrics();
  run_well(dpo(with(kto, {"--packing", "false", "--max-steps", "4", "--schedule", "constant"})));
  run_well({"train", "--out", "run", "--resume", "--max-steps", "8"});
  const auto resumed = metrics();
  run_well(dpo(with(kto, {"--packing", "false", "--schedule", "constant"})));
  EXPECT_EQ(resumed, metrics());
}

// Another model's log-probabilities are kept under its own name; a model that is its own reference begins at ln 2.
TEST_F(Preferences, AnotherModelServesAsReference) {
  fs::copy(kModels / "llama", at("other"), fs::copy_options::recursive);
  const Words by_other{"--reference", "other", "--method", "full", "--validation", "0.2"};
  const Outcome outcome = run_well(dpo(by_other));
  EXPECT_THAT(outcome.err, HasSubstr("reference: another model"));
  EXPECT_THAT(outcome.err, HasSubstr("reference: of 12 pairs 0 were known (run/reference), 12 were scored"));
  const auto steps = metrics();
  EXPECT_NEAR(steps[0]["loss"].get<double>(), std::numbers::ln2, 1e-6) << "it is the same model";
  run_well({"train", "--out", "run", "--resume", "--max-steps", "6"});
  EXPECT_THAT(run_well(dpo(with({"--overwrite", "--ranks", "2"}, by_other))).err, HasSubstr("12 were known"));
  fs::remove(at("other/model.safetensors"));
  fs::copy(kModels / "llama3", at("third"), fs::copy_options::recursive);
  expect_refused(dpo(with({"--resume", "--reference", "third"}, {"--method", "full", "--max-steps", "8"})),
                 {"reference"});
  const Outcome eval = run_well({"eval", "--model", "run/model", "--reference", kModels / "llama", "--data",
                                 "pairs.jsonl", "--objective", "dpo", "--sequence-length", "64", "--json"});
  EXPECT_LT(nlohmann::json::parse(eval.out)["loss"].get<double>(), std::numbers::ln2);
}

TEST_F(Preferences, ARunEndsWhereNoEvaluationIsBetter) {
  const Words words{
      "--validation", "0.2",           "--eval-every",           "1", "--early-stopping", "2", "--max-steps",
      "40",           "--best-metric", "eval_rewards/accuracies"};
  const Outcome outcome = run_well(dpo(words));
  EXPECT_THAT(outcome.err, HasSubstr("early_stopping: 2 evaluations brought no better eval_rewards/accuracies"));
  const size_t steps = metrics().size();
  EXPECT_LT(steps, 40u);
  const auto state =
      nlohmann::json::parse(text_of(at("run/checkpoints") / ("step-" + std::to_string(steps)) / "state.json"));
  EXPECT_EQ(state["best_metric"], "eval_rewards/accuracies");
  EXPECT_EQ(state["evaluations_since_best"], 2);
  run_well({"train", "--out", "run", "--resume"});
  EXPECT_EQ(metrics().size(), steps) << "it had ended";
  expect_refused(dpo(with({"--overwrite"}, {"--validation", "0.2", "--best-metric", "eval_nothing"})),
                 {"best_metric: found 'eval_nothing', expected one of eval_loss, eval_rewards/chosen"});
}

TEST_F(Preferences, TwoRanksLearnTheSame) {
  for (const char* objective : {"dpo", "orpo", "simpo"}) {
    const auto steps = [&](const Words& more) {
      run_well(dpo(with({"--overwrite", "--objective", objective, "--ranks"}, more)));
      return metrics();
    };
    const auto one = steps({"1"}), two = steps({"2"});
    ASSERT_EQ(two.size(), one.size());
    for (size_t i = 0; i < one.size(); i++)
      for (const char* key : {"loss", "grad_norm", "rewards/margins"})
        EXPECT_NEAR(two[i][key], one[i][key].get<double>(), 1e-4) << objective << " " << key;
    EXPECT_EQ(two[0]["loss"], one[0]["loss"]);
  }
}

}  // namespace
}  // namespace snug
