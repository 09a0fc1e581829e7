#include "cli/other_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/ascii.h"

namespace snug {
namespace {

constexpr std::string_view kDtypes = "'bf16' (the default), 'fp32' or 'fp8'";
constexpr std::string_view kAttention = "attention needs no choice: it goes by tiles and keeps no matrix of scores";
constexpr std::string_view kRanks = "mpirun, or nothing, starts the processes: 'ranks' says how many GPUs";
constexpr std::string_view kSharding = "what is sharded and offloaded is chosen so that it fits";
constexpr std::string_view kCommand = "what is done is the command: 'snug train', 'snug eval', 'snug generate'";
constexpr std::string_view kLogs = "steps are written to metrics.jsonl in 'out', which 'snug report' shows";
constexpr std::string_view kReplies = "a flag of 'snug generate' and 'snug chat', not of a job file";
constexpr std::string_view kLater = "it is not supported yet in this version";
constexpr std::string_view kTrainOn = "'assistant' (the default) or 'all'";
constexpr std::string_view kTrain = "every reply carries loss but one whose message has 'train: false'";
constexpr std::string_view kEndOfTurn = "an end-of-turn token carries loss where its reply does";
constexpr std::string_view kThoughts =
    "thinking is 'reasoning_content' or 'thinking' of a message, or <think>...</think> in it";
constexpr std::string_view kSystem = "a record's 'system', or its system message, is its system text";
constexpr std::string_view kKept = "token ids of large data are kept by its content: what changes is encoded anew";
constexpr std::string_view kAllFiles = "samples of all files are shuffled together; 'max_samples' takes fewer of each";
constexpr std::string_view kKernels = "kernels need no choice";
constexpr std::string_view kGenerate = "it is a flag of 'snug generate' and 'snug chat'";

constexpr std::string_view kRevision = "the cache's snapshot of branch main is read; the directory of another names it";
constexpr std::string_view kRope = "positions are rotated as the model's config.json says";
constexpr std::string_view kInit = "'default' (A drawn from the seed, B zero), 'pissa' or 'olora'";
constexpr std::string_view kNewTokens =
    "tokens are not added, nor rows of an embedding trained alone, in this version yet";

constexpr OtherName kNames[] = {
    // ---- Model and files
    {"model_name_or_path", "model", ""},
    {"model_name", "model", ""},
    {"model_path", "model", ""},
    {"model_id", "model", ""},
    {"base_model", "model", ""},
    {"pretrained_model_name_or_path", "model", ""},
    {"pretrained_model", "model", ""},
    {"config_name", "model", ""},
    {"tokenizer", "", "the tokenizer is the model's own"},
    {"tokenizer_name", "", "the tokenizer is the model's own"},
    {"tokenizer_name_or_path", "", "the tokenizer is the model's own"},
    {"trust_remote_code", "", "no code of a model is ever run"},
    {"adapter_name_or_path", "adapter", ""},
    {"adapter_path", "adapter", ""},
    {"lora_model_dir", "adapter", ""},
    {"peft_model", "adapter", ""},
    {"peft_model_id", "adapter", ""},
    {"lora_path", "adapter", ""},
    {"lora_weights", "adapter", ""},
    {"output_dir", "out", ""},
    {"output", "out", ""},
    {"outdir", "out", ""},
    {"out_dir", "out", ""},
    {"revision", "model", kRevision},
    {"model_revision", "model", kRevision},
    {"rope_scaling", "", kRope},
    {"rope_theta", "", kRope},
    {"output_path", "out", ""},
    {"save_dir", "out", ""},
    {"save_path", "out", ""},
    {"export_dir", "out", ""},
    {"logging_dir", "out", kLogs},
    {"overwrite_output_dir", "overwrite", ""},
    {"overwrite_cache", "", kKept},
    {"tokenized_path", "cache_dir", kKept},
    {"dataset_prepared_path", "cache_dir", kKept},
    {"resume_from_checkpoint", "resume", "true goes on with the run in 'out'"},
    {"resume_from", "resume", "true goes on with the run in 'out'"},
    {"auto_resume_from_checkpoints", "resume", "true goes on with the run in 'out'"},
    // ---- Data
    {"dataset", "data", ""},
    {"datasets", "data", ""},
    {"dataset_name", "data", ""},
    {"dataset_path", "data", ""},
    {"dataset_dir", "data", ""},
    {"data_path", "data", ""},
    {"data_files", "data", ""},
    {"train_data", "data", ""},
    {"train_data_path", "data", ""},
    {"train_file", "data", ""},
    {"train_dataset", "data", ""},
    {"training_data", "data", ""},
    {"eval_dataset", "validation", ""},
    {"eval_data", "validation", ""},
    {"valid_data", "validation", ""},
    {"validation_file", "validation", ""},
    {"validation_data", "validation", ""},
    {"test_file", "validation", ""},
    {"test_datasets", "validation", ""},
    {"eval_on_each_dataset", "validation", "one loss is of all its files"},
    {"val_size", "validation", "a fraction of the data such as 0.02"},
    {"val_set_size", "validation", "a fraction of the data such as 0.02"},
    {"eval_ratio", "validation", "a fraction of the data such as 0.02"},
    {"validation_split", "validation", "a fraction of the data such as 0.02"},
    {"validation_split_percentage", "validation", "a fraction of the data such as 0.02"},
    {"max_train_samples", "max_samples", ""},
    {"max_eval_samples", "max_samples", ""},
    {"shuffle_merged_datasets", "shuffle", ""},
    {"disable_shuffling", "shuffle", "false takes blocks in file order"},
    {"streaming", "", "samples are read once, when a run starts"},
    {"buffer_size", "", kAllFiles},
    {"mix_strategy", "", kAllFiles},
    {"interleave_probs", "", kAllFiles},
    {"chat_template", "template", ""},
    {"chat_template_jinja", "template", "by name; 'auto' (the default) takes the model's own"},
    {"default_system", "", kSystem},
    {"default_system_message", "", kSystem},
    {"drop_system_message", "", kSystem},
    {"eot_tokens", "template", "which has its end-of-turn token"},
    {"special_tokens", "", "special tokens are those of the model's own tokenizer"},
    {"prompt_template", "template,prompt", ""},
    {"conversation_template", "template", ""},
    {"conv_template", "template", ""},
    {"dataset_format", "data_format", ""},
    {"dataset_type", "data_format", ""},
    {"formatting", "data_format", ""},
    {"dataset_text_field", "columns", "columns: {text: NAME}"},
    {"text_column", "columns", "columns: {text: NAME}"},
    {"column_mapping", "columns", ""},
    {"ds_type", "data", "a file's ending says what it is"},
    {"field", "columns", "columns: {text: NAME}"},
    {"field_instruction", "columns", "columns: {instruction: NAME}"},
    {"field_input", "columns", "columns: {input: NAME}"},
    {"field_output", "columns", "columns: {output: NAME}"},
    {"field_system", "columns", "columns: {system: NAME}"},
    {"field_messages", "columns", "columns: {messages: NAME}"},
    {"message_field_role", "columns", "columns: {role: NAME}"},
    {"message_field_content", "columns", "columns: {content: NAME}"},
    {"message_field_training", "columns", "columns: {train: NAME}"},
    {"message_field_training_detail", "", "a message carries loss as a whole, or not: 'train: false'"},
    {"message_property_mappings", "columns", "columns: {role: NAME, content: NAME}"},
    {"role_tag", "columns", "columns: {role: NAME}"},
    {"content_tag", "columns", "columns: {content: NAME}"},
    {"user_tag", "roles", "roles: {NAME: user}"},
    {"assistant_tag", "roles", "roles: {NAME: assistant}"},
    {"system_tag", "roles", "roles: {NAME: system}"},
    {"train_on_inputs", "train_on", kTrainOn},
    {"train_on_prompt", "train_on", kTrainOn},
    {"train_on_input", "train_on", kTrainOn},
    {"train_on_responses_only", "train_on", kTrainOn},
    {"assistant_only_loss", "train_on", kTrainOn},
    {"completion_only_loss", "train_on", kTrainOn},
    {"mask_prompt", "train_on", kTrainOn},
    {"roles_to_train", "train_on", kTrainOn},
    {"response_template", "train_on", "'assistant' (the default) finds the replies by the chat template"},
    {"instruction_template", "train_on", "'assistant' (the default) finds the replies by the chat template"},
    {"mask_history", "", kTrain},
    {"train_on_last_turn_only", "", kTrain},
    {"train_on_eos", "", kEndOfTurn},
    {"train_on_eot", "", kEndOfTurn},
    {"ignore_pad_token_for_loss", "", "padding never carries loss"},
    {"cutoff_len", "sequence_length", ""},
    {"max_length", "sequence_length", ""},
    {"max_len", "sequence_length", ""},
    {"max_seq_length", "sequence_length", ""},
    {"max_seq_len", "sequence_length", ""},
    {"max_sequence_length", "sequence_length", ""},
    {"seq_length", "sequence_length", ""},
    {"seq_len", "sequence_length", ""},
    {"sequence_len", "sequence_length", ""},
    {"model_max_length", "sequence_length", ""},
    {"context_length", "sequence_length", ""},
    {"block_size", "sequence_length", ""},
    {"truncation", "long_samples", "'cut', 'split' or 'drop'"},
    {"truncation_side", "long_samples", "'cut', 'split' or 'drop'"},
    {"excess_length_strategy", "long_samples", "'cut', 'split' or 'drop'"},
    {"sample_packing", "packing", ""},
    {"neat_packing", "packing", ""},
    {"eval_sample_packing", "packing", ""},
    {"pack_dataset", "packing", ""},
    {"pad_to_sequence_len", "packing", "false: one sample a block, padded"},
    {"group_by_length", "packing", "blocks are filled with whole samples, so that lengths need no sorting"},
    {"preprocessing_num_workers", "threads", ""},
    {"dataloader_num_workers", "threads", ""},
    {"dataset_num_proc", "threads", ""},
    {"num_workers", "threads", ""},
    {"remove_unused_columns", "", "fields of a record that nothing uses are passed over"},
    {"data_seed", "seed", ""},
    {"random_state", "seed", ""},
    {"random_seed", "seed", ""},
    // ---- What is trained
    {"finetuning_type", "method", "'lora' or 'full'"},
    {"train_type", "method", "'lora' or 'full'"},
    {"peft_type", "method", "'lora' or 'full'"},
    {"use_lora", "method", "'lora' (the default) or 'full'"},
    {"use_peft", "method", "'lora' (the default) or 'full'"},
    {"stage", "", "the objective is supervised fine-tuning, others are not supported yet"},
    {"task_type", "", "the model is a causal language model"},
    {"lora_r", "lora_rank", ""},
    {"r", "lora_rank", ""},
    {"rank", "lora_rank", ""},
    {"peft_lora_r", "lora_rank", ""},
    {"alpha", "lora_alpha", ""},
    {"peft_lora_alpha", "lora_alpha", ""},
    {"lora_target", "lora_targets", ""},
    {"lora_target_modules", "lora_targets", ""},
    {"target_modules", "lora_targets", ""},
    {"lora_target_linear", "lora_targets", "'all' (the default)"},
    {"use_rslora", "lora_rslora", ""},
    {"pissa_init", "lora_init", "'pissa'"},
    {"pissa_iter", "", "PiSSA's halves are found by 16 iterations in a subspace that is wider by 16"},
    {"pissa_convert", "", "adapters of PiSSA are written as plain LoRA of twice the rank, always"},
    {"init_lora_weights", "lora_init", kInit},
    {"peft_init_lora_weights", "lora_init", kInit},
    {"add_special_tokens", "", kNewTokens},
    {"new_special_tokens", "", kNewTokens},
    {"resize_vocab", "", kNewTokens},
    {"trainable_token_indices", "", kNewTokens},
    {"lora_dora", "", "DoRA is not supported yet in this version"},
    {"peft_use_dora", "", "DoRA is not supported yet in this version"},
    {"freeze_trainable_layers", "train_modules", "with --method full: the last two of 32 layers are 'layers.30-31'"},
    {"freeze_trainable_modules", "train_modules", "with --method full: names of modules such as 'layers.0.mlp'"},
    {"freeze_extra_modules", "train_modules", "with --method full, beside the layers: 'embed_tokens,norm'"},
    {"unfrozen_parameters", "train_modules", "with --method full: names of modules such as 'layers.30-31'"},
    {"trainable_layers", "train_modules", "with --method full: names of modules such as 'layers.30-31'"},
    {"freeze_layers", "freeze", "with --method full: 'layers.0-15'"},
    {"use_dora", "", "DoRA is not supported yet in this version"},
    {"lora_modules_to_save", "modules_to_save", ""},
    {"additional_target", "modules_to_save", ""},
    {"layers_to_transform", "lora_layers", ""},
    {"peft_layers_to_transform", "lora_layers", ""},
    {"rank_pattern", "lora_rank_pattern", ""},
    {"alpha_pattern", "lora_alpha_pattern", ""},
    {"lora_bias", "", "biases are not trained beside adapters"},
    {"loraplus_lr_ratio", "lora_plus_ratio", ""},
    {"neftune_noise_alpha", "", "no noise is added to embeddings"},
    {"load_in_4bit", "base_format", "'nf4'"},
    {"load_in_8bit", "base_format", "'int8'"},
    {"quantization_bit", "base_format", "'nf4' or 'int8'"},
    {"quantization", "base_format", "'nf4', 'int8' or 'fp8'"},
    {"bnb_4bit_quant_type", "base_format", "'nf4'"},
    {"bnb_4bit_compute_dtype", "compute", kDtypes},
    {"bnb_4bit_use_double_quant", "base_format", "scales of 'nf4' are always quantised in their turn"},
    {"double_quantization", "base_format", "scales of 'nf4' are always quantised in their turn"},
    {"bf16", "compute", kDtypes},
    {"fp16", "compute", kDtypes},
    {"fp32", "compute", kDtypes},
    {"fp8", "compute", kDtypes},
    {"pure_bf16", "compute,state_format", ""},
    {"tf32", "compute", kDtypes},
    {"dtype", "compute", kDtypes},
    {"torch_dtype", "compute", kDtypes},
    {"precision", "compute", kDtypes},
    {"mixed_precision", "compute", kDtypes},
    // ---- How
    {"lr", "learning_rate", ""},
    {"lr_scheduler_type", "schedule", ""},
    {"lr_scheduler", "schedule", ""},
    {"lr_scheduler_kwargs", "schedule,min_learning_rate_ratio", ""},
    {"scheduler", "schedule", ""},
    {"min_lr", "min_learning_rate_ratio", "a share of the learning rate"},
    {"min_lr_rate", "min_learning_rate_ratio", "a share of the learning rate"},
    {"cosine_min_lr_ratio", "min_learning_rate_ratio", ""},
    {"lr_warmup_steps", "warmup_steps", ""},
    {"num_warmup_steps", "warmup_steps", ""},
    {"lr_warmup_ratio", "warmup_ratio", ""},
    {"optim", "", "the optimizer is AdamW; 'state_format' says in how many bits its state is kept"},
    {"optimizer", "", "the optimizer is AdamW; 'state_format' says in how many bits its state is kept"},
    {"optim_bits", "state_format", "'8bit'"},
    {"adam_beta1", "beta1", ""},
    {"adam_beta2", "beta2", ""},
    {"adam_epsilon", "epsilon", ""},
    {"adam_eps", "epsilon", ""},
    {"eps", "epsilon", ""},
    {"betas", "beta1,beta2", ""},
    {"wd", "weight_decay", ""},
    {"gradient_clipping", "max_grad_norm", ""},
    {"clip_grad", "max_grad_norm", ""},
    {"clip_grad_norm", "max_grad_norm", ""},
    {"grad_clip", "max_grad_norm", ""},
    {"max_norm", "max_grad_norm", ""},
    {"num_train_epochs", "epochs", ""},
    {"num_epochs", "epochs", ""},
    {"n_epochs", "epochs", ""},
    {"train_epochs", "epochs", ""},
    {"max_epochs", "epochs", ""},
    {"num_train_steps", "max_steps", ""},
    {"num_steps", "max_steps", ""},
    {"max_train_steps", "max_steps", ""},
    {"total_steps", "max_steps", ""},
    {"iters", "max_steps", ""},
    {"per_device_train_batch_size", "micro_batch_size", "'batch_size' is of all ranks and passes together"},
    {"per_gpu_train_batch_size", "micro_batch_size", "'batch_size' is of all ranks and passes together"},
    {"train_micro_batch_size_per_gpu", "micro_batch_size", "'batch_size' is of all ranks and passes together"},
    {"per_device_eval_batch_size", "micro_batch_size", "validation has the micro-batch of training"},
    {"eval_batch_size", "micro_batch_size", "validation has the micro-batch of training"},
    {"micro_batch", "micro_batch_size", ""},
    {"train_batch_size", "batch_size", ""},
    {"global_batch_size", "batch_size", ""},
    {"total_batch_size", "batch_size", ""},
    {"gradient_accumulation", "gradient_accumulation_steps", ""},
    {"grad_accumulation_steps", "gradient_accumulation_steps", ""},
    {"grad_accum_steps", "gradient_accumulation_steps", ""},
    {"gradient_accum_steps", "gradient_accumulation_steps", ""},
    {"gas", "gradient_accumulation_steps", ""},
    {"auto_find_batch_size", "", "the micro-batch is chosen so that it fits unless 'micro_batch_size' says"},
    // ---- The machine
    {"gradient_checkpointing", "recompute", "chosen so that it fits unless named"},
    {"grad_checkpoint", "recompute", "chosen so that it fits unless named"},
    {"activation_checkpointing", "recompute", "chosen so that it fits unless named"},
    {"enable_activation_checkpointing", "recompute", "chosen so that it fits unless named"},
    {"gradient_checkpointing_kwargs", "recompute", "chosen so that it fits unless named"},
    {"use_gradient_checkpointing", "recompute", "chosen so that it fits unless named"},
    {"use_reentrant", "recompute", ""},
    {"activation_offloading", "offload_activations", ""},
    {"enable_activation_offloading", "offload_activations", ""},
    {"cpu_offload", "offload_states,offload_gradients,offload_parameters", ""},
    {"offload_optimizer", "offload_states", ""},
    {"offload_param", "offload_parameters", ""},
    {"zero_stage", "zero", ""},
    {"zero_optimization", "zero,offload_states,offload_parameters", kSharding},
    {"deepspeed", "zero,offload_states,offload_parameters", kSharding},
    {"fsdp", "zero,replicas,offload_parameters", kSharding},
    {"fsdp_config", "zero,replicas,offload_parameters", kSharding},
    {"fsdp_cpu_offload", "offload_parameters,offload_states", ""},
    {"local_rank", "ranks", kRanks},
    {"num_gpus", "ranks", kRanks},
    {"n_gpu", "ranks", kRanks},
    {"n_gpus", "ranks", kRanks},
    {"gpus", "ranks", kRanks},
    {"num_processes", "ranks", kRanks},
    {"nproc_per_node", "ranks", kRanks},
    {"world_size", "ranks", kRanks},
    {"nnodes", "ranks", kRanks},
    {"ddp_find_unused_parameters", "", "ranks need no such care: every parameter is used"},
    {"ddp_timeout", "", "ranks that say nothing for a while are found out by themselves"},
    {"ddp_backend", "", "ranks find their way to each other by themselves"},
    {"device_map", "device", "'cpu' or 'cuda'"},
    {"use_cpu", "device", "'cpu'"},
    {"no_cuda", "device", "'cpu'"},
    {"max_memory", "device_memory,host_memory", ""},
    {"gpu_memory_utilization", "device_memory", "a size such as 24GiB"},
    {"flash_attn", "", kAttention},
    {"flash_attention", "", kAttention},
    {"flash_attn2", "", kAttention},
    {"use_flash_attn", "", kAttention},
    {"use_flash_attention_2", "", kAttention},
    {"attn_implementation", "", kAttention},
    {"sdp_attention", "", kAttention},
    {"xformers_attention", "", kAttention},
    {"use_cache", "", "training keeps no cache of keys and values"},
    {"torch_compile", "", kKernels},
    {"compile", "", kKernels},
    {"use_unsloth", "", kKernels},
    {"unsloth", "", kKernels},
    {"enable_liger_kernel", "", kKernels},
    {"use_liger_kernel", "", kKernels},
    // ---- What is saved and said
    {"strict", "", "options and records are always held to what they say: nothing is passed over in silence"},
    {"do_train", "", kCommand},
    {"do_eval", "", kCommand},
    {"do_predict", "", kCommand},
    {"eval_steps", "eval_every", ""},
    {"eval_interval", "eval_every", ""},
    {"steps_per_eval", "eval_every", ""},
    {"evals_per_epoch", "eval_every", "steps, 'epoch' or a duration"},
    {"eval_strategy", "eval_every", "steps, 'epoch' or a duration"},
    {"evaluation_strategy", "eval_every", "steps, 'epoch' or a duration"},
    {"save_steps", "save_every", ""},
    {"save_interval", "save_every", ""},
    {"saves_per_epoch", "save_every", "steps, 'epoch' or a duration"},
    {"save_strategy", "save_every", "steps, 'epoch' or a duration"},
    {"checkpointing_steps", "save_every", ""},
    {"save_total_limit", "keep", ""},
    {"save_only_model", "", "checkpoints always hold what --resume needs; 'keep' says how many stay"},
    {"save_safetensors", "", "everything is written as safetensors"},
    {"load_best_model_at_end", "", "the best checkpoint is kept, 'checkpoint: best' uses it"},
    {"metric_for_best_model", "", "the best checkpoint is the one with the least held-out loss"},
    {"early_stopping_patience", "", "a run does not stop early; the best checkpoint is kept"},
    {"logging_steps", "log_every", ""},
    {"log_steps", "log_every", ""},
    {"log_interval", "log_every", ""},
    {"steps_per_report", "log_every", ""},
    {"log_every_n_steps", "log_every", ""},
    {"logging_strategy", "log_every", ""},
    {"logging_first_step", "log_every", ""},
    {"report_to", "metrics_format", kLogs},
    {"wandb_project", "", kLogs},
    {"use_wandb", "", kLogs},
    {"run_name", "out", kLogs},
    {"plot_loss", "", kLogs},
    {"disable_tqdm", "", "a progress line is shown on terminals alone"},
    {"push_to_hub", "", "nothing is sent anywhere"},
    {"hub_model_id", "", "nothing is sent anywhere"},
    {"profile", "trace", ""},
    {"profiler", "trace", ""},
    // ---- Of generation
    {"max_new_tokens", "", kGenerate},
    {"max_tokens", "", "it is '--max-new-tokens' of 'snug generate' and 'snug chat'"},
    {"temperature", "", kGenerate},
    {"prompts", "", "it is a flag of 'snug generate'"},
    {"num_beams", "", "generation takes one token at a time, the likeliest or one drawn"},
    {"do_sample", "", "'snug generate --temperature' above 0 draws tokens"},
    // ---- Of later versions
    {"objective", "", kLater},
    {"beta", "", kLater},
    {"pref_beta", "", kLater},
    {"dpo_beta", "", kLater},
    {"pref_loss", "", kLater},
    {"preference_loss", "", kLater},
    {"label_smoothing", "", kLater},
    {"label_smoothing_factor", "", kLater},
    {"ref_model", "", kLater},
    {"reference", "", kLater},
    {"reward_model", "", kLater},
    {"image_dir", "", kLater},
    {"image_max_pixels", "", kLater},
    {"freeze_vision_tower", "", kLater},
    {"media_dir", "", kLater},
    {"tool_format", "", "the model's chat template says how tools and calls are written"},
    {"field_tools", "columns", "columns: {tools: FIELD}"},
    {"field_thinking", "", kThoughts},
    {"split_thinking", "", kThoughts},
    {"enable_thinking", "", kLater},
    {"add_tokens", "", kLater},
    {"top_p", "", kReplies},
    {"top_k", "", kReplies},
    {"min_p", "", kReplies},
    {"repetition_penalty", "", kReplies},
    {"stop", "", kReplies},
    {"system", "", "a flag of 'snug generate' and 'snug chat'; in data the system text is a message of its own"},
};

// Returns Levenshtein's distance.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) row[j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); j++) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row.back();
}

// Returns the names in quotes: "a,b" -> "'a', 'b'".
std::string quoted(std::string_view names) {
  std::string text = "'";
  for (const char c : names) text += c == ',' ? "', '" : std::string{c};
  return text + "'";
}

}  // namespace

std::span<const OtherName> other_names() { return kNames; }

std::string advice_on_name(std::string_view name, const std::vector<std::string>& known) {
  const std::string word = lower_case(name);
  const auto* const other = std::ranges::find(kNames, word, &OtherName::name);
  if (other != std::end(kNames)) {
    const bool taken = std::ranges::any_of(known, [&](const std::string& one) {
      return fmt::format(",{},", other->ours).find("," + one + ",") != std::string::npos;
    });
    if (other->ours.empty()) return fmt::format("; {}", other->remark);
    if (!taken && other->ours == "sequence_length" && std::ranges::find(known, "max_new_tokens") != known.end())
      return "; here it is 'max_new_tokens', the tokens of a reply beside its prompt's";
    if (!taken) return fmt::format("; elsewhere it is {}, which this command does not take", quoted(other->ours));
    return fmt::format("; here it is {}{}{}", quoted(other->ours), other->remark.empty() ? "" : ": ", other->remark);
  }
  std::vector<std::string> longer;
  for (const std::string& one : known)
    if (one.size() > word.size() && one.starts_with(word + "_")) longer.push_back(one);
  if (!longer.empty()) return fmt::format("; known are '{}'", fmt::join(longer, "', '"));
  const auto nearest = std::ranges::min_element(known, {}, [&](const auto& one) { return edit_distance(one, word); });
  if (nearest == known.end() || edit_distance(*nearest, word) > std::max<size_t>(1, word.size() / 4)) return "";
  return fmt::format("; the nearest known one is '{}'", *nearest);
}

}  // namespace snug
