// snug translate: objectives on preferences, whose names mean several losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "api/job_file.h"
#include "api/objective.h"
#include "translate/translate.h"
#include "translate_cases.h"

namespace snug {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTrl = "--model_name_or_path m --dataset_name d.jsonl";
constexpr const char* kOpenRlhf = "--pretrain m --dataset d.jsonl";

TranslatedJob translated(const std::vector<std::string>& words, const std::map<std::string, std::string>& files = {}) {
  return translate({words, {}, 1, false}, [&](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  });
}

TranslatedJob trl(const std::string& command, const std::string& more = "") {
  return translated({fmt::format("trl {} {} {}", command, kTrl, more)});
}

TranslatedJob openrlhf(const std::string& command, const std::string& more = "") {
  return translated({fmt::format("deepspeed --module openrlhf.cli.train_{} {} {}", command, kOpenRlhf, more)});
}

TranslatedJob factory(const std::string& lines) {
  return translated({"t.yaml"}, {{"t.yaml", "model_name_or_path: m\ndataset: d.json\n" + lines}});
}

TranslatedJob axolotl(const std::string& lines) {
  return translated({"t.yaml"},
                    {{"t.yaml", "base_model: m\ndatasets:\n  - path: d.jsonl\nlearning_rate: 1e-5\n" + lines}});
}

JobConfig loaded(const TranslatedJob& job) {
  JobConfig options;
  parse_job(job.job, "job.yaml", options);
  return options;
}

// Returns what a translated job minimises, which must be whole.
ObjectiveOptions objective(const TranslatedJob& job) {
  EXPECT_FALSE(job.changes) << job.report_text();
  return objective_of(loaded(job));
}

TEST(TranslateObjective, LabelSmoothingIsTheLossThatItMeansThere) {
  for (const TranslatedJob& job :
       {trl("dpo", "--label_smoothing 0.2"), openrlhf("dpo", "--label_smoothing 0.2"),
        factory("stage: dpo\ndpo_label_smoothing: 0.2\n"), axolotl("rl: dpo\ndpo_label_smoothing: 0.2\n")}) {
    EXPECT_EQ(objective(job).preference_loss, PreferenceLoss::Cdpo);
    EXPECT_EQ(objective(job).label_smoothing, 0.2);
  }
  EXPECT_EQ(line_of(openrlhf("dpo", "--label_smoothing 0.2"), "--label_smoothing").mark, '=');
  const TranslatedJob versions = trl("dpo", "--label_smoothing 0.2");
  EXPECT_EQ(line_of(versions, "--label_smoothing").mark, '~');
  EXPECT_THAT(line_of(versions, "--label_smoothing").text, HasSubstr("since 1.0 it does nothing with sigmoid"));
  EXPECT_EQ(objective(trl("dpo", "--label_smoothing 0.2 --loss_type robust")).preference_loss, PreferenceLoss::Robust);
  EXPECT_EQ(objective(trl("dpo", "--label_smoothing 0.2 --loss_type hinge")).label_smoothing, 0);
  EXPECT_EQ(line_of(trl("dpo", "--label_smoothing 0.2 --loss_type hinge"), "--label_smoothing").mark, '.');
  EXPECT_TRUE(trl("cpo", "--loss_type simpo --label_smoothing 0.2").changes);
  EXPECT_TRUE(trl("dpo", "--label_smoothing 0.7").changes) << "more than half";
}

TEST(TranslateObjective, RewardsAreOfScores) {
  for (const TranslatedJob& job : {trl("reward"), openrlhf("rm"), factory("stage: rm\n"),
                                   axolotl("reward_model: true\nmodel_type: AutoModelForSequenceClassification\n")})
    EXPECT_EQ(objective(job).kind, ObjectiveKind::Reward) << job.report_text();
  EXPECT_EQ(objective(trl("reward", "--center_rewards_coefficient 0.01")).center_coefficient, 0.01);
  EXPECT_EQ(objective(axolotl("reward_model: true\ncenter_rewards_coefficient: 0.02\n")).center_coefficient, 0.02);
  EXPECT_TRUE(trl("sft", "--center_rewards_coefficient 0.01").changes);
  EXPECT_EQ(loaded(trl("reward")).learning_rate, 1e-4);
  EXPECT_EQ(loaded(openrlhf("rm")).learning_rate, 9e-6);
  EXPECT_EQ(loaded(openrlhf("rm")).sequence_length, 1024) << "512 for each half";
  EXPECT_EQ(loaded(trl("reward", "--use_peft")).lora_dropout, 0) << "RewardConfig disables dropout";
  EXPECT_EQ(loaded(factory("stage: rm\nfinetuning_type: lora\nlora_dropout: 0.1\n")).lora_dropout, 0.1);
  EXPECT_FALSE(openrlhf("rm", "--loss sigmoid").changes);
  EXPECT_TRUE(openrlhf("rm", "--loss logexp").changes);
  EXPECT_EQ(line_of(openrlhf("rm", "--margin_loss"), "--margin_loss").mark, '=');
  EXPECT_THAT(openrlhf("rm").remarks, ::testing::Contains(HasSubstr("only with --margin_loss")));
  EXPECT_THAT(factory("stage: rm\n").remarks, ::testing::Contains(HasSubstr("a value head")));
  EXPECT_FALSE(axolotl("reward_model: false\n").changes);
}

TEST(TranslateObjective, WhatTransformersAddsToTheCrossEntropyIsOfSft) {
  const JobConfig both = loaded(trl("sft", "--label_smoothing_factor 0.1 --neftune_noise_alpha 5"));
  EXPECT_EQ(both.label_smoothing, 0.1);
  EXPECT_EQ(both.neftune_noise_alpha, 5);
  EXPECT_EQ(loaded(axolotl("noisy_embedding_alpha: 3\n")).neftune_noise_alpha, 3);
  const TranslatedJob pairs = trl("dpo", "--label_smoothing_factor 0.1 --neftune_noise_alpha 5");
  EXPECT_EQ(objective(pairs).label_smoothing, 0);
  EXPECT_EQ(line_of(pairs, "--label_smoothing_factor").mark, '.');
  EXPECT_EQ(line_of(pairs, "--neftune_noise_alpha").mark, '~');
  EXPECT_EQ(loaded(pairs).neftune_noise_alpha, 5);
}

TEST(TranslateObjective, OptionsOfAdaptersAndOfTheBestStepAreSnugs) {
  const JobConfig plus = loaded(
      factory("finetuning_type: lora\nloraplus_lr_ratio: 16\nadditional_target: embed_tokens,lm_head\nval_size: 0.1\n"
              "eval_strategy: steps\neval_steps: 10\nearly_stopping_steps: 3\nmetric_for_best_model: loss\n"));
  EXPECT_EQ(plus.lora_plus_ratio, 16);
  EXPECT_EQ(plus.modules_to_save, (std::vector<std::string>{"embed_tokens", "lm_head"}));
  EXPECT_EQ(plus.early_stopping, 3);
  EXPECT_EQ(loaded(factory("finetuning_type: lora\npissa_init: true\npissa_iter: 4\n")).lora_init, "pissa");
  EXPECT_EQ(loaded(axolotl("adapter: lora\npeft_init_lora_weights: pissa_niter_4\n")).lora_init, "pissa");
  EXPECT_TRUE(axolotl("adapter: lora\npeft_init_lora_weights: eva\n").changes);
  EXPECT_EQ(plus.best_metric, "eval_loss");
  const JobConfig best = loaded(factory("stage: dpo\nval_size: 0.1\nmetric_for_best_model: rewards/accuracies\n"));
  EXPECT_EQ(best.best_metric, "eval_rewards/accuracies");
  EXPECT_EQ(line_of(factory("stage: sft\nearly_stopping_steps: 3\n"), "early_stopping_steps").mark, '.')
      << "nothing is held out";
  EXPECT_EQ(line_of(factory("stage: sft\nmetric_for_best_model: rouge\n"), "metric_for_best_model").mark, 'x');
}

TEST(TranslateObjective, IpoIsOfMeansAndNotOfSums) {
  for (const TranslatedJob& job :
       {trl("dpo", "--loss_type ipo"), factory("stage: dpo\npref_loss: ipo\n"), axolotl("rl: ipo\n")})
    EXPECT_EQ(objective(job).preference_loss, PreferenceLoss::Ipo);
  EXPECT_EQ(line_of(openrlhf("dpo", "--ipo"), "--ipo").mark, 'x');
  EXPECT_THAT(line_of(openrlhf("dpo", "--ipo"), "--ipo").text, HasSubstr("sums"));
}

TEST(TranslateObjective, AListOfLossesIsOneOfPairsAndACrossEntropy) {
  const ObjectiveOptions two = objective(trl("dpo", "--loss_type apo_zero sft --loss_weights 0.5 1"));
  EXPECT_EQ(two.preference_loss, PreferenceLoss::ApoZero);
  EXPECT_EQ(two.nll_weight, 2);
  EXPECT_EQ(objective(trl("dpo", "--loss_type sigmoid sft")).nll_weight, 1);
  EXPECT_EQ(objective(trl("dpo", "--rpo_alpha 0.3")).nll_weight, 0.3);
  for (const char* refused : {"sigmoid hinge", "sft", "sigmoid bco_pair", "kto_pair", "sigmoid sft --loss_weights 1",
                              "sigmoid sft --loss_weights 0 1", "sigmoid sft --loss_weights 1e-9 1e9"})
    EXPECT_TRUE(trl("dpo", std::string("--loss_type ") + refused).changes) << refused;
}

TEST(TranslateObjective, WithoutReferenceTheLossIsOrpoOrSimpo) {
  EXPECT_EQ(objective(trl("orpo", "--beta 0.2")).kind, ObjectiveKind::Orpo);
  EXPECT_THAT(trl("orpo").remarks, ::testing::Contains(HasSubstr("prompt and reply in TRL")));
  const TranslatedJob job = factory("stage: dpo\npref_loss: orpo\npref_ftx: 0.5\n");
  EXPECT_EQ(objective(job).nll_weight, 1.5) << "beside the one that orpo has";
  EXPECT_THAT(job.remarks, Not(::testing::Contains(HasSubstr("TRL"))));
  EXPECT_EQ(objective(trl("cpo", "--loss_type simpo")).nll_weight, 1) << "CPO's default";
  EXPECT_EQ(objective(trl("cpo", "--loss_type simpo")).beta, 0.1) << "CPO's default, not snug's";
  EXPECT_EQ(objective(axolotl("rl: simpo\ncpo_alpha: 0\nrl_beta: 2.5\nsimpo_gamma: 1\n")).simpo_gamma, 1);
  EXPECT_TRUE(trl("cpo").changes) << "its own loss";
  EXPECT_FALSE(loaded(trl("cpo")).objective == "simpo");
}

TEST(TranslateObjective, DefaultsAreThoseOfTheCommand) {
  EXPECT_EQ(loaded(trl("dpo")).learning_rate, 1e-6);
  EXPECT_EQ(loaded(trl("sft")).learning_rate, 2e-5);
  EXPECT_EQ(loaded(openrlhf("dpo")).learning_rate, 1e-5);
  EXPECT_EQ(loaded(openrlhf("sft")).learning_rate, 5e-6);
  EXPECT_EQ(loaded(openrlhf("dpo")).sequence_length, 1024) << "512 for each half";
  EXPECT_EQ(loaded(openrlhf("kto")).sequence_length, 2048);
  EXPECT_EQ(objective(openrlhf("dpo")).beta, 0.1);
  EXPECT_EQ(objective(openrlhf("kto", "--output_key o")).beta, 0.01);
  EXPECT_FALSE(loaded(trl("kto")).shuffle) << "KTOTrainer draws in order";
  EXPECT_TRUE(loaded(trl("dpo")).shuffle);
  EXPECT_EQ(loaded(trl("dpo", "--use_peft")).lora_dropout, 0);
  EXPECT_EQ(loaded(trl("dpo", "--use_peft --disable_dropout false")).lora_dropout, 0.05);
  EXPECT_EQ(loaded(trl("sft", "--use_peft")).lora_dropout, 0.05);
  EXPECT_EQ(loaded(trl("dpo")).train_on, "assistant");
  EXPECT_FALSE(loaded(factory("stage: dpo\npacking: true\ntrain_on_prompt: true\n")).packing);
  EXPECT_EQ(loaded(factory("stage: dpo\npacking: true\ntrain_on_prompt: true\n")).train_on, "assistant");
}

TEST(TranslateObjective, BetaIsTheFirstThatIsGiven) {
  EXPECT_EQ(objective(axolotl("rl: orpo\norpo_alpha: 0.3\n")).beta, 0.3);
  EXPECT_EQ(objective(axolotl("rl: orpo\norpo_alpha: 0.3\nrl_beta: 0.2\n")).beta, 0.2);
  EXPECT_EQ(objective(axolotl("rl: dpo\nrl_beta: 0.2\ntrl:\n  beta: 0.4\n")).beta, 0.4);
  EXPECT_TRUE(trl("dpo", "--beta 0").changes) << "nothing would be learnt";
}

TEST(TranslateObjective, AReferenceIsTheModelOrItsAdapter) {
  EXPECT_FALSE(factory("stage: dpo\nref_model: m\n").changes);
  EXPECT_EQ(loaded(factory("stage: dpo\nref_model: other\n")).reference, "other");
  EXPECT_EQ(objective(factory("stage: dpo\nref_model: m\nadapter_name_or_path: a\nref_model_adapters: a\n")).reference,
            Reference::Adapter);
  EXPECT_TRUE(factory("stage: dpo\nref_model: m\nadapter_name_or_path: a\nref_model_adapters: b\n").changes);
  EXPECT_EQ(loaded(factory("stage: dpo\nadapter_name_or_path: a,b\nref_model_adapters: a,b\n")).reference, "auto");
  EXPECT_EQ(line_of(trl("dpo", "--precompute_ref_log_probs"), "--precompute_ref_log_probs").mark, '.');
  for (const char* refused : {"--reference_free", "--sync_ref_model", "--ld_alpha 0", "--ld_alpha 0.5",
                              "--use_weighting", "--f_divergence_type js_divergence"})
    EXPECT_TRUE(trl("dpo", refused).changes) << refused;
  EXPECT_FALSE(trl("dpo", "--ld_alpha 1.0 --reference_free false --f_divergence_type reverse_kl").changes);
}

TEST(TranslateObjective, WhatAnObjectiveHasNoUseForIsSaid) {
  EXPECT_EQ(line_of(factory("stage: dpo\nsimpo_gamma: 2\n"), "simpo_gamma").mark, '.');
  EXPECT_EQ(line_of(factory("stage: sft\npref_beta: 2\n"), "pref_beta").mark, '.');
  const JobConfig texts = loaded(axolotl("rl: dpo\npretraining_dataset: t.jsonl\n"));
  EXPECT_EQ(texts.data_format, "auto");
  EXPECT_EQ(texts.train_on, "assistant");
  EXPECT_TRUE(factory("stage: kto\npref_ftx: 1\n").changes);
  EXPECT_TRUE(trl("kto", "--loss_type apo_zero_unpaired").changes);
  EXPECT_TRUE(trl("sft", "--beta 0.1").changes) << "a file of another command's";
  EXPECT_THAT(line_of(trl("sft", "--beta 0.1"), "--beta").text, HasSubstr("trl dpo"));
  EXPECT_TRUE(trl("grpo").changes);
  EXPECT_EQ(line_of(trl("sft", "--loss_type nll"), "--loss_type").mark, '=');
  EXPECT_EQ(line_of(trl("sft", "--loss_type dft"), "--loss_type").mark, 'x');
}

TEST(TranslateObjective, SetsOfPreferencesHaveTheirFields) {
  const std::string info =
      "{\"d.json\": {\"file_name\": \"d.json\", \"ranking\": true, \"columns\": {\"prompt\": \"q\", \"chosen\": \"a\", "
      "\"rejected\": \"b\"}}}";
  const auto with = [&](const std::string& stage) {
    return translated({"t.yaml"}, {{"t.yaml", "model_name_or_path: m\ndataset: d.json\nstage: " + stage + "\n"},
                                   {"data/dataset_info.json", info}});
  };
  EXPECT_EQ(loaded(with("dpo")).columns,
            (std::map<std::string, std::string>{{"instruction", "q"}, {"chosen", "a"}, {"rejected", "b"}}));
  EXPECT_TRUE(with("sft").changes) << "pairs";
  EXPECT_TRUE(with("kto").changes) << "pairs";
  const JobConfig kto = loaded(openrlhf("kto", "--input_key q --output_key a --label_key good"));
  EXPECT_EQ(kto.prompt_pattern, "User: {prompt}\nAssistant: ");
  EXPECT_EQ(kto.columns, (std::map<std::string, std::string>{{"prompt", "q"}, {"completion", "a"}, {"label", "good"}}));
  const JobConfig types = loaded(translated(
      {"t.yaml"},
      {{"t.yaml", "base_model: m\nrl: dpo\ndatasets:\n  - path: d.jsonl\n    type: llama3.prompt_pairs\n"}}));
  EXPECT_EQ(types.chat_template, "llama3");
  EXPECT_EQ(types.columns, (std::map<std::string, std::string>{{"instruction", "prompt"}}));
  EXPECT_TRUE(translated({"t.yaml"}, {{"t.yaml",
                                       "base_model: m\nrl: dpo\ndatasets:\n  - path: d.jsonl\n"
                                       "    type: llama3.intel\n  - path: e.jsonl\n    type: chatml.intel\n"}})
                  .changes)
      << "one template for all sets";
}

TEST(TranslateObjective, ASwitchIsTurnedOffByNo) {
  EXPECT_EQ(line_of(trl("dpo", "--no_remove_unused_columns"), "--no_remove_unused_columns").mark, '.');
  EXPECT_EQ(line_of(trl("dpo", "--use_peft --no_disable_dropout"), "--no_disable_dropout").mark, '=');
  EXPECT_EQ(loaded(trl("dpo", "--use_peft --no_disable_dropout")).lora_dropout, 0.05);
  EXPECT_EQ(line_of(trl("dpo", "--no_such_option"), "--no_such_option").mark, 'x');
}

}  // namespace
}  // namespace snug
