#include "translate/table.h"

#include <algorithm>

#include "base/error.h"

namespace snug {
namespace {

// As llama-recipes of June 2024 has it in its configurations of training and of LoRA.
constexpr Default kLlamaRecipes[] = {
    {"use_peft", "false"},
    {"batching_strategy", "packing"},
    {"context_length", "4096"},
    {"batch_size_training", "4"},
    {"num_epochs", "3"},
    {"lr", "1e-4", true},
    {"gradient_clipping", "false"},
    {"r", "8", true},
    {"lora_config.lora_alpha", "32", true},
    {"target_modules", "q_proj,v_proj", true},
    {"lora_config.lora_dropout", "0.05", true},
    {"dataset", "samsum_dataset"},
    {"run_validation", "true"},
    {"gamma", "0.85"},
    {"save_model", "true"},
    {"quant_type", "fp4"},
    {"use_double_quant", "false"},
};
constexpr Default kTrainerDefaults[] = {
    {"block_size", "1024"},
    {"per_device_train_batch_size", "8"},
    {"gradient_accumulation_steps", "1"},
    {"num_train_epochs", "3"},
    {"learning_rate", "5e-5"},
    {"lr_scheduler_type", "linear"},
    {"warmup_ratio", "0"},
    {"logging_steps", "500"},
    {"save_steps", "500"},
};
constexpr Default kLlamaFactory[] = {
    {"per_device_train_batch_size", "8"},
    {"gradient_accumulation_steps", "1"},
    {"num_train_epochs", "3"},
    {"learning_rate", "5e-5"},
    {"lr_scheduler_type", "linear"},
    {"warmup_ratio", "0"},
    {"logging_steps", "500"},
    {"save_steps", "500"},
    {"finetuning_type", "lora"},
    {"lora_rank", "8", true},
    {"lora_dropout", "0", true},
    {"lora_target", "all", true},
    {"cutoff_len", "2048"},
    {"packing", "false"},
    {"pref_beta", "0.1", false, "dpo kto"},
};
constexpr Default kMiniCpm[] = {
    {"per_device_train_batch_size", "8"},
    {"gradient_accumulation_steps", "1"},
    {"num_train_epochs", "3"},
    {"learning_rate", "5e-5"},
    {"lr_scheduler_type", "linear"},
    {"warmup_ratio", "0"},
    {"logging_steps", "500"},
    {"save_steps", "500"},
    {"model_max_length", "2048"},
    {"use_lora", "false"},
    {"lora_r", "64", true},
    {"lora_alpha", "64", true},
    {"lora_dropout", "0.05", true},
    {"tune_vision", "true"},
    {"max_slice_nums", "9"},
    {"lora_target_modules", "q_proj,k_proj,v_proj", true},
};
constexpr Default kTrl[] = {
    {"per_device_train_batch_size", "8"},
    {"gradient_accumulation_steps", "1"},
    {"num_train_epochs", "3"},
    {"learning_rate", "2e-5", false, "sft gkd"},
    {"learning_rate", "1e-6", false, "dpo orpo cpo kto"},
    {"learning_rate", "1e-4", false, "reward"},
    {"lr_scheduler_type", "linear"},
    {"warmup_ratio", "0"},
    {"logging_steps", "10"},
    {"save_steps", "500"},
    {"max_length", "1024"},
    {"packing", "false"},
    {"use_peft", "false"},
    {"lora_r", "16", true},
    {"lora_alpha", "32", true},
    {"lora_dropout", "0.05", true},
    {"assistant_only_loss", "false", false, "sft"},
    {"use_bnb_nested_quant", "false"},
    {"beta", "0.1", false, "dpo orpo cpo kto"},
    {"beta", "0.5", false, "gkd"},
    {"temperature", "0.9", false, "gkd"},
    {"lmbda", "0.5", false, "gkd"},
    {"loss_type", "sigmoid", false, "dpo cpo"},
    {"cpo_alpha", "1", false, "cpo"},
    {"train_sampling_strategy", "sequential", false, "kto"},
};
constexpr Default kOpenRlhf[] = {
    {"train_batch_size", "128"},
    {"max_len", "2048", false, "sft kto"},
    {"max_len", "512", false, "dpo rm"},
    {"max_epochs", "2", false, "sft"},
    {"max_epochs", "1", false, "dpo kto rm"},
    {"learning_rate", "5e-6", true, "sft"},
    {"learning_rate", "1e-5", true, "dpo kto"},
    {"learning_rate", "9e-6", true, "rm"},
    {"adam_betas", "0.9,0.95", true},
    {"lr_scheduler", "cosine_with_min_lr"},
    {"lr_warmup_ratio", "0.03"},
    {"lora_rank", "0"},
    {"lora_alpha", "16", true},
    {"lora_dropout", "0", true},
    {"target_modules", "all-linear", true},
    {"packing_samples", "false"},
    {"save_path", "./ckpt"},
    {"max_ckpt_num", "3"},
    {"save_steps", "-1"},
    {"eval_steps", "-1"},
    {"input_key", "input", false, "sft kto"},
    {"input_template", "User: {}\nAssistant: ", false, "sft kto"},
    {"beta", "0.1", false, "dpo"},
    {"beta", "0.01", false, "kto"},
};
constexpr Default kAxolotl[] = {
    {"micro_batch_size", "1"},
    {"gradient_accumulation_steps", "1"},
    {"num_epochs", "1"},
    {"lr_scheduler", "cosine"},
    {"save_total_limit", "4"},
    {"sequence_len", "512"},
    {"sample_packing", "false"},
    {"output_dir", "./model-out"},
    {"optimizer", "adamw_torch_fused"},
    {"train_on_inputs", "false"},
    {"adapter", ""},
    {"lora_dropout", "0", true},
    {"rl_beta", "0.1", false, "dpo ipo orpo simpo kto"},
    {"cpo_alpha", "1", false, "simpo"},
};

// Lists dialects, as those in whose tables an option is looked for.
struct Dialects {
  Dialect all[4];
  size_t count;

  template <class... D>
  constexpr explicit Dialects(D... dialects) : all{dialects...}, count(sizeof...(dialects)) {}
  constexpr operator std::span<const Dialect>() const { return {all, count}; }
};

// Holds what there is of a dialect: its own table, the defaults of its program, and where its options are looked for.
struct Tables {
  Dialect dialect;
  std::span<const Row> (*rows)();
  std::span<const Default> defaults;
  Dialects looked_in;
};

using enum Dialect;

// A row a dialect, in the order of the enumeration.
constexpr Tables kTables[] = {
    {Launcher, launcher_rows, {}, Dialects(Launcher, Accelerate)},
    {Environment, environment_rows, {}, Dialects(Environment)},
    {Trainer, trainer_rows, kTrainerDefaults, Dialects(Trainer)},
    {LlamaFactory, llama_factory_rows, kLlamaFactory, Dialects(LlamaFactory, Trainer)},
    {LlamaRecipes, llama_recipes_rows, kLlamaRecipes, Dialects(LlamaRecipes)},
    {OpenRlhf, openrlhf_rows, kOpenRlhf, Dialects(OpenRlhf)},
    {MiniCpm, minicpm_rows, kMiniCpm, Dialects(MiniCpm, Trainer)},
    {Axolotl, axolotl_rows, kAxolotl, Dialects(Axolotl, Accelerate, Trainer, Launcher)},
    {Trl, trl_rows, kTrl, Dialects(Trl, Trainer, Accelerate, Launcher)},
    {DeepSpeed, deepspeed_rows, {}, Dialects(DeepSpeed)},
    {Accelerate, accelerate_rows, {}, Dialects(Accelerate, DeepSpeed)},
    {DatasetInfo, dataset_info_rows, {}, Dialects(DatasetInfo)},
};

constexpr bool in_order() {
  for (size_t i = 0; i < std::size(kTables); i++)
    if (kTables[i].dialect != static_cast<Dialect>(i)) return false;
  return true;
}
static_assert(in_order());

const Tables& tables(Dialect dialect) {
  const auto at = static_cast<size_t>(dialect);
  check(at < std::size(kTables), "translate: dialect {} has no tables", at);
  return kTables[at];
}

bool matches(std::string_view pattern, std::string_view name) {
  const bool open_end = pattern.ends_with('*'), open_begin = pattern.starts_with('*');
  if (open_begin) pattern.remove_prefix(1);
  if (open_end && !pattern.empty()) pattern.remove_suffix(1);
  if (open_begin && open_end) return name.find(pattern) != std::string_view::npos;
  if (open_end) return name.starts_with(pattern);
  if (open_begin) return name.ends_with(pattern);
  return pattern == name;
}

// Whole names win over patterns, in whatever order the table has them.
const Row* find_in(std::span<const Row> rows, std::string_view name, bool patterns) {
  for (const Row& row : rows)
    for (size_t at = 0; at < row.names.size();) {
      const size_t end = std::min(row.names.find(' ', at), row.names.size());
      const std::string_view pattern = row.names.substr(at, end - at);
      const bool is_pattern = pattern.find('*') != std::string_view::npos;
      if (is_pattern == patterns && matches(pattern, name)) return &row;
      at = end + 1;
    }
  return nullptr;
}

}  // namespace

char letter(Mark mark) {
  switch (mark) {
    case Mark::Same:
      return '=';
    case Mark::Changed:
      return '~';
    case Mark::Decided:
      return '.';
    case Mark::Refused:
    case Mark::Left:
      break;
  }
  return 'x';
}

std::span<const Row> rows_of(Dialect dialect) { return tables(dialect).rows(); }
std::span<const Default> defaults_of(Dialect program) { return tables(program).defaults; }
std::span<const Dialect> tables_of(Dialect dialect) { return tables(dialect).looked_in; }

const Row* find_row(const Setting& setting) {
  for (const bool patterns : {false, true})
    for (const Dialect dialect : tables_of(setting.dialect))
      if (const Row* row = find_in(rows_of(dialect), setting.name, patterns)) return row;
  return nullptr;
}

}  // namespace snug
