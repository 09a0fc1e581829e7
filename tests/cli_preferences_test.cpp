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

TEST_F(Preferences, ModulesThatAnAdapterHoldsWholeAreNoReferences) {
  run_well(dpo({"--modules-to-save", "norm", "--out", "first"}));
  const Words whole{"--adapter", "first/adapter"};
  expect_refusal(dpo(whole),
                 {"modules that were trained whole (model.norm)", "--reference adapter takes the adapter as it is"});
  run_well(dpo(with(whole, {"--reference", "adapter"})));
}

TEST_F(Preferences, OptionsOfAnotherObjectiveAndWhatIsNotThereAreRefused) {
  const auto refused = [&](const Words& more, const Words& why) { expect_refusal(dpo(more), why); };
  refused({"--objective", "reward"}, {"objective: 'reward' is not supported yet"});
  refused({"--simpo-gamma", "1"}, {"simpo_gamma: found 1, expected nothing: it is of objective simpo"});
  refused({"--label-smoothing", "0.1"}, {"it is of preference_loss cdpo and robust", "preference_loss sigmoid"});
  refused({"--objective", "orpo", "--preference-loss", "ipo"}, {"preference_loss: found ipo", "objective orpo"});
  refused({"--objective", "simpo", "--reference", "none"},
          {"reference: found none", "it is of objectives dpo and kto"});
  refused({"--reference", "none"}, {"objectives dpo and kto need one"});
  refused({"--reference", "adapter"}, {"without --adapter there is none"});
  refused({"--reference", "other"}, {"another model is not supported yet"});
  refused({"--beta", "0"}, {"nothing would be learnt"});
  refused({"--objective", "kto", "--desirable-weight", "0", "--undesirable-weight", "0"}, {"found 0 for both"});
  refused({"--long-samples", "split"}, {"long_samples: found split", "what is judged is cut, or dropped"});
  refused({"--objective", "sft", "--beta", "0.2"}, {"beta: found 0.2", "objective sft"});
  expect_refusal({"eval", "--model", kModels / "llama", "--data", "pairs.jsonl", "--objective", "dpo"},
                 {"expected an --adapter beside it"});
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
