// Options of llama-recipes and llama-cookbook: bare, or with the name of their configuration before them.
#include "translate/rules.h"

namespace snug {
namespace {

using enum Mark;

constexpr Row kLlamaRecipes[] = {
    {"model_name train_config.model_name", Same, "model"},
    {"tokenizer_name", Refused, "", say::kVocabulary},
    {"output_dir", Same, "@lc_out"},
    {"dist_checkpoint_root_folder", Same, "@lc_root"},
    {"dist_checkpoint_folder", Same, "@lc_folder"},
    {"use_peft", Same, "@use_peft"},
    {"peft_method", Refused, "lora", say::kAdapterKind, rules::only},
    {"from_peft_checkpoint", Same, "@adapter"},
    {"r lora_config.r", Same, "@lora_rank"},
    {"lora_config.lora_alpha lora_alpha", Same, "@lora_alpha"},
    {"lora_config.lora_dropout lora_dropout", Same, "@lora_dropout"},
    {"target_modules lora_config.target_modules", Same, "@lora_targets"},
    {"lora_config.bias bias", Refused, "none", say::kAdapterKind, rules::only},
    {"lora_config.task_type task_type lora_config.inference_mode inference_mode", Decided, "",
     "the model is a causal language model"},
    {"llama_adapter_config.* prefix_config.*", Decided, "", "of another kind of adapter, which is not trained"},
    {"quantization", Same, "@bits"},
    {"quantization_config.quant_type quant_type", Same, "@quant_type"},
    {"quantization_config.use_double_quant use_double_quant", Same, "@double_quant"},
    {"quantization_config.compute_dtype compute_dtype quantization_config.quant_storage quant_storage", Decided, "",
     "products are in the format of compute"},
    {"mixed_precision fsdp_config.mixed_precision", Decided, "compute: bf16", "products are in bf16 either way"},
    {"use_fp16 fsdp_config.use_fp16", Same, "@fp16"},
    {"pure_bf16 fsdp_config.pure_bf16", Same, "@pure_bf16"},
    {"optimizer fsdp_config.optimizer", Same, "@optimizer"},
    {"batch_size_training", Changed, "@micro"},
    {"gradient_accumulation_steps", Same, "@accumulation"},
    {"batching_strategy", Same, "@batching"},
    {"context_length", Same, "@sequence_length"},
    {"num_epochs", Same, "@epochs"},
    {"max_train_step", Same, "@max_passes"},
    {"max_eval_step", Left, "", "all held-out data is evaluated"},
    {"lr", Same, "learning_rate"},
    {"gamma", Same, "@gamma"},
    {"weight_decay", Changed, "weight_decay", "not on norms and biases, where theirs is on all that is trained",
     [](Translator& t, const Setting& s, const Row& row) {
       const bool none = is_off(s.value);
       t.put("weight_decay", s.value, s, none ? Same : Changed, none ? "" : std::string(row.say));
     }},
    {"gradient_clipping", Same, "@clipping"},
    {"gradient_clipping_threshold", Same, "@clipping_threshold"},
    {"seed", Same, "seed", "", rules::seed},
    {"dataset", Same, "@dataset"},
    {"custom_dataset.file custom_dataset.* data_path train_split test_split samsum_dataset.* alpaca_dataset.* "
     "grammar_dataset.* llamaguard_toxicchat_dataset.* trust_remote_code",
     Refused, "", "data sets are Python code there; write their samples into a file for data"},
    {"run_validation", Same, "@run_validation"},
    {"save_model", Same, "",
     "the last step is written; the checkpoint with the best held-out loss is kept, which is what "
     "theirs writes",
     [](Translator& t, const Setting& s, const Row& row) {
       t.judge(s, is_off(s.value) ? Left : Changed,
               is_off(s.value) ? "what is trained is always written" : std::string(row.say));
     }},
    {"freeze_layers num_freeze_layers freeze_llm_only freeze_LLM_only", Refused, "", say::kParts,
     [](Translator& t, const Setting& s, const Row& row) {
       const bool off = is_off(s.value) || s.name == "num_freeze_layers";
       t.judge(s, off ? Same : row.mark, off ? "nothing is frozen" : filled(row.say, s));
     }},
    // ---- Sharding
    {"enable_fsdp", Decided, "zero: 3", say::kSharding},
    {"sharding_strategy fsdp_config.sharding_strategy", Decided, "", say::kSharding, rules::zero_stage},
    {"hsdp fsdp_config.hsdp sharding_group_size fsdp_config.sharding_group_size", Decided, "", say::kSharding},
    {"replica_group_size fsdp_config.replica_group_size", Decided, "replicas", say::kSharding,
     [](Translator& t, const Setting& s, const Row& row) {
       t.pin("replicas", s.value, s);
       t.judge(s, Decided, std::string(row.say));
     }},
    {"fsdp_cpu_offload fsdp_config.fsdp_cpu_offload", Decided, "", "what is offloaded is chosen so that it fits",
     [](Translator& t, const Setting& s, const Row& row) {
       if (!is_off(s.value)) t.pin("offload_parameters", "host", s), t.pin("offload_states", "host", s);
       t.judge(s, Decided, std::string(row.say));
     }},
    {"fsdp_activation_checkpointing fsdp_config.fsdp_activation_checkpointing", Decided, "block", "", rules::recompute},
    {"low_cpu_fsdp", Decided, "", say::kLoading},
    {"checkpoint_type fsdp_config.checkpoint_type save_optimizer", Decided, "",
     "checkpoints hold all of a run's state, for any number of ranks"},
    {"use_fast_kernels", Decided, "", say::kAttention},
    {"one_gpu num_workers_dataloader val_batch_size", Decided, "", say::kWorkers},
    {"use_wandb wandb_config.* save_metrics flop_counter flop_counter_start", Left, "", say::kMetrics},
    {"use_profiler profiler_dir", Left, "", "--trace FILE writes a trace of the first steps"},
};

constexpr Row kMiniCpm[] = {
    {"data_path", Same, "@dataset"},
    {"eval_data_path", Same, "@validation"},
    {"image_folder", Same, "image_dir"},
    {"max_slice_nums", Same, "max_slices"},
    {"scale_resolution patch_size query_nums query_num slice_config", Left, "",
     "how pictures are cut stands in the model's config.json"},
    {"batch_vision_input batch_vision", Decided, "", "each view of a picture is looked at by itself"},
    {"model_max_length max_length", Same, "@sequence_length"},
    {"llm_type", Same, "@template"},
    {"tune_vision", Same, "@tune_vision"},
    {"tune_llm", Same, "@tune_llm"},
    {"use_lora", Same, "@use_peft"},
    {"lora_r", Same, "@lora_rank"},
    {"lora_alpha", Same, "@lora_alpha"},
    {"lora_dropout", Same, "@lora_dropout"},
    {"lora_target_modules", Same, "@lora_targets"},
    {"lora_weight_path", Same, "@adapter"},
    {"lora_bias", Refused, "none", say::kAdapterKind, rules::only},
    {"lora_layer_replication lora_layers_to_transform lora_layers_pattern lora_modules_to_save", Refused, "",
     say::kAdapterKind},
    {"q_lora", Same, "@load_in_4bit"},
    {"use_flash_attn", Decided, "", say::kAttention},
};

}  // namespace

std::span<const Row> llama_recipes_rows() { return kLlamaRecipes; }
std::span<const Row> minicpm_rows() { return kMiniCpm; }

}  // namespace snug
