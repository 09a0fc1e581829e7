// docs/translate.md has the tables that translations go by.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "translate/ours.h"
#include "translate/table.h"
#include "translate_cases.h"

namespace snug {
namespace {

const std::string kPage = SNUG_DOCS "/translate.md";
constexpr std::string_view kTables =
    "any ending. A verdict is the usual one: a value that snug's key does not take is an `x`, one that asks for "
    "nothing is `=`.\n";

// Keys that are made of what is held, by its name in the tables.
const std::map<std::string, std::string> kKeysOf{{"micro", "batch_size"},
                                                 {"accumulation", "batch_size"},
                                                 {"global_batch", "batch_size"},
                                                 {"ds_batch", "batch_size"},
                                                 {"ds_micro", "batch_size"},
                                                 {"ds_accumulation", "batch_size"},
                                                 {"schedule_kwargs", "schedule"},
                                                 {"min_lr_rate", "min_learning_rate_ratio"},
                                                 {"min_lr", "min_learning_rate_ratio"},
                                                 {"optimizer", "state_format"},
                                                 {"ds_optimizer", "state_format"},
                                                 {"bf16", "compute"},
                                                 {"fp16", "compute"},
                                                 {"fp8", "compute"},
                                                 {"mixed_precision", "compute"},
                                                 {"param_dtype", "compute"},
                                                 {"ds_bf16", "compute"},
                                                 {"ds_fp16", "compute"},
                                                 {"pure_bf16", "state_format"},
                                                 {"ds_pure_bf16", "state_format"},
                                                 {"save_steps", "save_every"},
                                                 {"save_strategy", "save_every"},
                                                 {"eval_steps", "eval_every"},
                                                 {"eval_strategy", "eval_every"},
                                                 {"run_validation", "eval_every"},
                                                 {"gpu_list", "ranks"},
                                                 {"visible", "ranks"},
                                                 {"hosts", "ranks"},
                                                 {"dataset", "data"},
                                                 {"data_files", "data"},
                                                 {"pretraining", "data"},
                                                 {"file_name", "data"},
                                                 {"dataset_type", "data_format"},
                                                 {"formatting", "data_format"},
                                                 {"task", "objective"},
                                                 {"loss_weights", "nll_weight"},
                                                 {"dpo_norm", "preference_loss"},
                                                 {"label_smoothing", "label_smoothing, preference_loss"},
                                                 {"smoothing_factor", "label_smoothing"},
                                                 {"neftune", "neftune_noise_alpha"},
                                                 {"lora_plus", "lora_plus_ratio"},
                                                 {"pissa", "lora_init"},
                                                 {"center", "center_coefficient"},
                                                 {"reward_model", "objective"},
                                                 {"desirable", "desirable_weight"},
                                                 {"undesirable", "undesirable_weight"},
                                                 {"reference_adapter", "reference"},
                                                 {"disable_dropout", "lora_dropout"},
                                                 {"orpo_alpha", "beta"},
                                                 {"trl_beta", "beta"},
                                                 {"chosen_key", "columns"},
                                                 {"rejected_key", "columns"},
                                                 {"prompt_key", "columns"},
                                                 {"label_key", "columns"},
                                                 {"pretrain_mode", "data_format, train_on"},
                                                 {"multiturn", "data_format"},
                                                 {"apply_chat_template", "template"},
                                                 {"text_column", "columns"},
                                                 {"column", "columns"},
                                                 {"tag", "columns, roles"},
                                                 {"role", "roles"},
                                                 {"input_key", "columns"},
                                                 {"output_key", "columns"},
                                                 {"input_template", "prompt"},
                                                 {"completion_only", "train_on"},
                                                 {"assistant_only", "train_on"},
                                                 {"val_size", "validation"},
                                                 {"use_peft", "method"},
                                                 {"axolotl_adapter", "method"},
                                                 {"or_rank", "method, lora_rank"},
                                                 {"tune_llm", "freeze_language_model"},
                                                 {"tune_vision", "freeze_vision_tower"},
                                                 {"target_linear", "lora_targets"},
                                                 {"rslora", "lora_rslora"},
                                                 {"dora", "lora_dora"},
                                                 {"bits", "base_format"},
                                                 {"load_in_8bit", "base_format"},
                                                 {"load_in_4bit", "base_format"},
                                                 {"quant_type", "base_format"},
                                                 {"double_quant", "base_format"},
                                                 {"ds_quantized", "base_format"},
                                                 {"from_scratch", "init"},
                                                 {"batching", "packing, long_samples"},
                                                 {"neat_packing", "packing"},
                                                 {"or_packing", "packing"},
                                                 {"packing_strategy", "long_samples"},
                                                 {"excess", "long_samples"},
                                                 {"or_samples", "max_samples"},
                                                 {"max_passes", "max_steps"},
                                                 {"gamma", "schedule"},
                                                 {"betas", "beta1, beta2"},
                                                 {"ds_betas", "beta1, beta2"},
                                                 {"clipping", "max_grad_norm"},
                                                 {"clipping_threshold", "max_grad_norm"},
                                                 {"ds_clipping", "max_grad_norm"},
                                                 {"ds_lr", "learning_rate"},
                                                 {"ds_max_lr", "learning_rate"},
                                                 {"ds_eps", "epsilon"},
                                                 {"ds_decay", "weight_decay"},
                                                 {"ds_scheduler", "schedule"},
                                                 {"ds_warmup", "warmup_steps"},
                                                 {"ds_warmup_type", "warmup_steps"},
                                                 {"ds_schedule_number", "schedule"},
                                                 {"lc_out", "out"},
                                                 {"lc_root", "out"},
                                                 {"lc_folder", "out"}};

std::string keys_of(const std::string& held) {
  const auto found = kKeysOf.find(held);
  return found == kKeysOf.end() ? held : found->second;
}

std::string table_of(Dialect dialect) {
  std::string text = "\n### " + std::string(name(dialect)) + "\n\n| theirs | | snug's | |\n|---|---|---|---|\n";
  for (const Row& row : rows_of(dialect)) {
    std::string names(row.names), ours(row.ours);
    for (size_t at = 0; (at = names.find(' ', at)) != std::string::npos; at += 4) names.replace(at, 1, "`, `");
    if (ours.starts_with('@')) ours = keys_of(ours.substr(1));
    // Of rows with a rule the column may hold a value of theirs instead.
    const bool is_key = std::ranges::any_of(our_keys(), [&](const OurKey& key) {
      return ours == key.name || ours.starts_with(std::string(key.name) + ":") ||
             ours.starts_with(std::string(key.name) + ",");
    });
    std::string say(row.say);
    for (const std::string_view fill : {"{option} {value}: ", "{option} {value}", "{option}: "})
      if (const size_t at = say.find(fill); at != std::string::npos) say.erase(at, fill.size());
    for (size_t at = 0; (at = say.find('|', at)) != std::string::npos; at += 2) say.replace(at, 1, "\\|");
    text += "| `" + names + "` | " + letter(row.mark) + " | " + (is_key ? "`" + ours + "`" : "") + " | " + say + " |\n";
  }
  return text;
}

std::string written() {
  std::string page = *text_if_there(kPage);
  const size_t end = page.find(kTables);
  EXPECT_NE(end, page.npos);
  page.erase(end + kTables.size());
  for (const Dialect dialect : {Dialect::Launcher, Dialect::Environment, Dialect::Trainer, Dialect::LlamaFactory,
                                Dialect::DatasetInfo, Dialect::LlamaRecipes, Dialect::OpenRlhf, Dialect::MiniCpm,
                                Dialect::Axolotl, Dialect::Trl, Dialect::DeepSpeed, Dialect::Accelerate})
    page += table_of(dialect);
  return page;
}

TEST(TranslateDoc, ThePageHasTheTables) { EXPECT_EQ(*text_if_there(kPage), written()); }

TEST(TranslateDoc, DISABLED_Rewrite) {
  const std::string page = written();
  std::ofstream(kPage) << page;
}

}  // namespace
}  // namespace snug
