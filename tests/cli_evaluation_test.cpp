// Evaluating several files by their names, and what is added to the cross-entropy of replies, as a user meets them.
#include "preferences_run.h"

namespace snug {
namespace {

class Evaluation : public Preferences {
 protected:
  // Puts the lines of a file into two, the first of which has `first` of them.
  void split(const std::string& file, size_t first) const {
    std::istringstream lines(text_of(at(file)));
    std::string line, halves[2];
    for (size_t i = 0; std::getline(lines, line); i++) halves[i < first ? 0 : 1] += line + "\n";
    put(at("math.jsonl"), halves[0]);
    fs::create_directory(at("code"));
    put(at("code/a.jsonl"), halves[1]);
  }

  // Puts the preferred replies of the pairs, as token ids with labels.
  void put_replies() const {
    std::string text;
    std::istringstream lines(text_of(at("pairs.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      const auto pair = nlohmann::json::parse(line);
      nlohmann::json ids = pair["prompt_ids"], labels = nlohmann::json::array();
      for (size_t i = 0; i < ids.size(); i++) labels.push_back(-100);
      for (const auto& id : pair["chosen_ids"]) ids.push_back(id), labels.push_back(id);
      text += nlohmann::json{{"input_ids", ids}, {"labels", labels}}.dump() + "\n";
    }
    put(at("replies.jsonl"), text);
  }

  nlohmann::json evaluated(const Words& data, const Words& more) const {
    Words words{"eval", "--model", kModels / "llama", "--compute", "fp32", "--sequence-length", "64", "--json"};
    for (const std::string& file : data) words = with(words, {"--data", file});
    return nlohmann::json::parse(run_well(with(words, more)).out);
  }
};

// Whatever is learnt, all files together are what one file of all their lines is.
TEST_F(Evaluation, OfSeveralFilesIsThatOfEachAndOfAll) {
  put_replies();
  run_well(dpo({}));
  const Words adapter{"--adapter", "run/adapter"};
  for (const auto& [file, more] : {std::pair<std::string, Words>("replies.jsonl", {}),
                                   {"pairs.jsonl", with({"--objective", "dpo"}, adapter)},
                                   {"pairs.jsonl", {"--objective", "orpo"}},
                                   {"judged.jsonl", with({"--objective", "kto"}, adapter)}}) {
    SCOPED_TRACE(::testing::PrintToString(more));
    split(file, 5);
    const auto whole = evaluated({file}, more), parts = evaluated({"math.jsonl", "code"}, more);
    EXPECT_FALSE(whole.contains("files"));
    ASSERT_EQ(parts["files"].size(), 2u);
    EXPECT_NEAR(parts["loss"], whole["loss"].get<double>(), 2e-6);
    EXPECT_EQ(parts["loss_tokens"], whole["loss_tokens"]);
    if (whole.contains("kl")) {
      EXPECT_NEAR(parts["kl"], whole["kl"].get<double>(), 2e-6);
    }
    const auto math = evaluated({"math.jsonl"}, more);
    for (const char* key : {"loss", "tokens", "loss_tokens"})
      if (file != "judged.jsonl") {
        EXPECT_EQ(parts["files"]["math"][key], math[key]) << key;
      }
    EXPECT_EQ(parts["files"]["math"]["tokens"].get<int>() + parts["files"]["code"]["tokens"].get<int>(),
              parts["tokens"]);
  }
}

TEST_F(Evaluation, FilesOfOneNameAreToldByTheirPaths) {
  split("pairs.jsonl", 5);
  fs::create_directory(at("other"));
  fs::copy(at("math.jsonl"), at("other/math.jsonl"));
  const auto parts = evaluated({"math.jsonl", "other/math.jsonl"}, {"--objective", "orpo"});
  EXPECT_TRUE(parts["files"].contains("math.jsonl"));
  EXPECT_TRUE(parts["files"].contains("other/math.jsonl"));
}

TEST_F(Evaluation, HeldOutFilesHaveMetricsOfTheirOwnThatMaySayWhichStepIsBest) {
  split("pairs.jsonl", 4);
  const Words held_out{"--validation", "math.jsonl,code", "--eval-every", "2", "--metrics-format", "csv"};
  const Outcome outcome = run_well(dpo(with(held_out, {"--best-metric", "eval_code_rewards/margins"})));
  EXPECT_THAT(outcome.err, HasSubstr("  math: held-out loss "));
  const auto steps = metrics();
  const auto& last = steps.back();
  const double all = (4 * last["eval_math_loss"].get<double>() + 8 * last["eval_code_loss"].get<double>()) / 12;
  EXPECT_NEAR(last["eval_loss"], all, 1e-6) << "the mean over pairs";
  EXPECT_FALSE(steps[0].contains("eval_math_loss"));
  EXPECT_THAT(text_of(at("run/metrics.csv")), HasSubstr(",eval_code_rewards/margins"));
  const auto state = nlohmann::json::parse(text_of(at("run/checkpoints/step-4/state.json")));
  EXPECT_EQ(state["best_eval_loss"], last["eval_code_rewards/margins"]);
  expect_refused(dpo(with({"--overwrite", "--best-metric", "eval_prose_loss"}, held_out)),
                 {"best_metric: found 'eval_prose_loss'", "eval_math_loss"});
}

TEST_F(Evaluation, ThePlanSaysWhatAReferenceTakes) {
  fs::copy(kModels / "llama", at("other"), fs::copy_options::recursive);
  Words words = dpo({"--reference", "other", "--json"});
  words[0] = "plan";
  const auto plan = nlohmann::json::parse(run_well(words).out);
  EXPECT_GT(plan["reference"]["device_bytes"], 4 * plan["reference"]["parameters"].get<int64_t>()) << "in fp32";
  EXPECT_LT(plan["reference"]["device_bytes"], plan["device_bytes"]) << "it has no state and no gradients";
  EXPECT_EQ(plan["reference"]["parameters"],
            plan["parameters"].get<int64_t>() - plan["trainable_parameters"].get<int64_t>());
  words.pop_back();
  EXPECT_THAT(run_well(words).out, HasSubstr("reference     LlamaForCausalLM, "));
  run_well(dpo({"--reference", "other"}));
  EXPECT_EQ(nlohmann::json::parse(text_of(at("run/plan.json")))["reference"]["ranks"], plan["reference"]["ranks"])
      << "the run's own";
}

TEST_F(Evaluation, ARunWithSmoothingAndNoiseGoesOnToTheBitAndWithNothingElse) {
  put_replies();
  const auto sft = [&](const Words& more) {
    return on("replies.jsonl", dpo(with({"--objective", "sft", "--schedule", "constant", "--label-smoothing", "0.1",
                                         "--z-loss", "1e-3", "--neftune-noise-alpha", "5"},
                                        more)));
  };
  const Outcome whole = run_well(sft({"--validation", "0.2"}));
  EXPECT_THAT(whole.err, HasSubstr("objective     sft, label_smoothing 0.1, z_loss 0.001"));
  EXPECT_THAT(whole.err, HasSubstr("the held-out loss is the cross-entropy alone"));
  const auto expected = metrics();
  run_well(sft({"--overwrite", "--validation", "0.2", "--max-steps", "2"}));
  run_well({"train", "--out", "run", "--resume", "--max-steps", "4"});
  auto found = metrics();
  found[1] = expected[1];  // the end of the first half was evaluated
  EXPECT_EQ(found, expected);
  for (const auto& [flag, value] :
       {std::pair("--label-smoothing", "0.2"), {"--z-loss", "0"}, {"--neftune-noise-alpha", "1"}})
    expect_refused({"train", "--out", "run", "--resume", "--max-steps", "6", flag, value}, {"as the run has it"});
  const auto plain = evaluated({"replies.jsonl"}, {"--adapter", "run/adapter"});
  const Outcome smoothed =
      run({"eval", "--model", kModels / "llama", "--data", "replies.jsonl", "--label-smoothing", "0.1",
           "--sequence-length", "64", "--compute", "fp32", "--json", "--adapter", "run/adapter"});
  EXPECT_THAT(smoothed.err, HasSubstr("--label-smoothing 0.1 changes nothing"));
  EXPECT_EQ(nlohmann::json::parse(smoothed.out)["loss"], plain["loss"]);
}

TEST_F(Evaluation, TermsOfTheCrossEntropyAreOfRepliesAlone) {
  expect_refusal(dpo({"--z-loss", "1e-4"}), {"z_loss: found 0.0001", "it is of objective sft"});
  expect_refusal(dpo({"--preference-loss", "cdpo", "--label-smoothing", "0.5"}),
                 {"label_smoothing: found 0.5, expected less than 0.5"});
}

TEST_F(Evaluation, NoiseReachesPairsToo) {
  run_well(dpo({"--max-steps", "2"}));
  const auto plain = metrics();
  run_well(dpo({"--max-steps", "2", "--overwrite", "--neftune-noise-alpha", "5"}));
  EXPECT_NE(metrics()[0]["loss"], plain[0]["loss"]) << "the reference has no noise";
}

}  // namespace
}  // namespace snug
