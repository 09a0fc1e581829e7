// Options of axolotl's YAML.
#include "translate/rules.h"

namespace snug {
namespace {

using enum Mark;

// Once, twice ... an epoch: a whole one is said as it is, parts of one are not.
void per_epoch(Translator& t, const Setting& setting, const Row& row) {
  if (is_off(setting.value))
    t.judge(setting, Same, "off, as here");
  else if (read_number(setting.value) == 1.0)
    t.put(row.ours, "epoch", setting);
  else
    t.put(row.ours, "epoch", setting, Changed, "once an epoch; or give it in steps");
}

constexpr Row kAxolotl[] = {
    // ---- Model
    {"base_model", Same, "model"},
    {"base_model_config tokenizer_config processor_type base_model_ignore_patterns", Decided, "",
     "the model directory's own files are read"},
    {"model_type tokenizer_type cls_model_config is_llama_derived_model is_falcon_derived_model "
     "is_mistral_derived_model "
     "is_qwen_derived_model tokenizer_use_fast tokenizer_legacy tokenizer_use_mistral_common",
     Decided, "", "the model's config.json says what it is"},
    {"revision_of_model", Refused, "main", say::kVocabulary, rules::only},
    {"trust_remote_code", Decided, "", say::kCode},
    {"tokens", Same, "add_tokens"},
    {"resize_token_embeddings_to_32x shrink_embeddings added_tokens_overrides embeddings_skip_upcast "
     "overrides_of_model_config.* overrides_of_model_kwargs.* model_config.* rope_scaling.* rope_scaling",
     Refused, "", say::kVocabulary},
    {"special_tokens special_tokens.*", Changed, "",
     "padding is never learnt; other special tokens are the tokenizer's own"},
    {"reinit_weights", Same, "@from_scratch"},
    // ---- What is trained
    {"adapter", Same, "@axolotl_adapter"},
    {"lora_model_dir", Same, "@adapter"},
    {"lora_r", Same, "@lora_rank"},
    {"lora_alpha", Same, "@lora_alpha"},
    {"lora_dropout", Same, "@lora_dropout"},
    {"lora_target_modules", Same, "@lora_targets"},
    {"lora_target_linear", Same, "@target_linear"},
    {"lora_modules_to_save", Same, "@modules_to_save"},
    {"lora_fan_in_fan_out", Decided, "", "the model says how its linears are stored"},
    {"lora_on_cpu lora_mlp_kernel lora_qkv_kernel lora_o_kernel lora_embedding_kernel "
     "peft_autocast_adapter_dtype qlora_sharded_model_loading",
     Decided, "", say::kKernels},
    {"peft_use_rslora", Same, "@rslora"},
    {"peft_use_dora", Same, "@dora"},
    {"loraplus_lr_ratio", Same, "@lora_plus"},
    {"loraplus_lr_embedding", Decided, "", "embeddings have no adapters"},
    {"neftune_noise_alpha noisy_embedding_alpha", Same, "@neftune"},
    {"peft_init_lora_weights", Same, "@lora_init"},
    {"peft_layers_* peft_layer_* peft_trainable_token_indices peft_* relora* jagged_restart_* "
     "lora_target_parameters lisa_* spectrum_*",
     Refused, "", say::kAdapterKind},
    {"peft peft.*", Refused, "", say::kAdapterKind},
    {"unfrozen_parameters", Refused, "", say::kParts},
    {"load_in_8bit", Same, "@load_in_8bit"},
    {"load_in_4bit", Same, "@load_in_4bit"},
    {"bnb_config_kwargs.* gptq gptq_* quantization.* qat.*", Refused, "", say::kStored},
    // ---- Data
    {"datasets.path", Same, "@dataset"},
    {"datasets.type", Same, "@dataset_type"},
    {"datasets.type.field_prompt datasets.type.field_chosen datasets.type.field_rejected "
     "datasets.type.field_completion "
     "datasets.type.field_label",
     Same, "@column"},
    {"datasets.type.prompt_format datasets.type.chosen_format datasets.type.rejected_format "
     "datasets.type.completion_format",
     Refused, "{prompt},{chosen},{rejected},{completion}", "give the pattern as prompt", rules::only},
    {"datasets.data_files", Same, "@data_files"},
    {"datasets.ds_type", Decided, "", "a file's ending says what it is"},
    {"datasets.split datasets.name datasets.revision datasets.shards datasets.shards_idx datasets.preprocess_shards",
     Refused, "train", say::kData, rules::only},
    {"datasets.field_messages datasets.field_instruction datasets.field_input datasets.field_output "
     "datasets.field_system "
     "datasets.field datasets.message_field_role datasets.message_field_content datasets.message_field_training "
     "datasets.field_tools datasets.message_property_mappings.* datasets.text_column",
     Same, "@column"},
    {"datasets.conversation datasets.field_human datasets.field_model", Changed, "",
     "roles and turns are as the file has them"},
    {"datasets.roles.*", Same, "@role"},
    {"datasets.roles_to_train", Refused, "assistant,gpt",
     "replies carry loss, or messages whose 'train' says "
     "so",
     rules::only},
    {"datasets.train_on_eos", Refused, "turn,all", "a reply's end of turn carries loss", rules::only},
    {"datasets.train_on_eot", Refused, "turn,all", "a reply's end of turn carries loss", rules::only},
    {"datasets.chat_template", Same, "@template"},
    {"datasets.type.*", Refused, "", "give the pattern as prompt and the fields as columns"},
    {"datasets.drop_system_message datasets.split_thinking datasets.message_field_training_detail "
     "datasets.trust_remote_code "
     "datasets.temperature",
     Refused, "", say::kData},
    {"datasets.field_chosen datasets.field_rejected", Same, "@column"},
    {"datasets", Same, "@dataset"},
    {"test_datasets.path", Same, "@validation"},
    {"test_datasets.*", Decided, "", "held-out files are read as the others"},
    {"pretraining_dataset.path pretraining_dataset", Same, "@pretraining"},
    {"pretraining_dataset.text_column", Same, "@text_column"},
    {"pretraining_dataset.*", Changed, "", "files are read whole, as text"},
    {"dataset_prepared_path dataset_processes dataset_keep_in_memory skip_prepare_dataset dataset_shard_* "
     "push_dataset_to_hub "
     "dataset_exact_deduplication streaming streaming_* num_dataset_shards_to_save",
     Decided, "", "token ids of large data are kept by its content"},
    {"shuffle_merged_datasets shuffle_before_merging_datasets", Same, "shuffle", "",
     [](Translator& t, const Setting& s, const Row& row) {
       if (s.name == "shuffle_before_merging_datasets")
         t.judge(s, Decided, "samples of all files are shuffled together");
       else
         t.put(row.ours, s.value.empty() ? "true" : s.value, s);
     }},
    {"chat_template", Same, "@template"},
    {"chat_template_jinja", Refused, "",
     "a chat template is the model's own or one by name; put it into the model directory"},
    {"default_system_message", Refused, "", say::kData},
    {"eot_tokens", Changed, "", "a turn ends as the chat template ends it"},
    {"train_on_inputs", Same, "train_on", "",
     [](Translator& t, const Setting& s, const Row&) { t.put("train_on", is_on(s.value) ? "all" : "assistant", s); }},
    {"val_set_size", Same, "@val_size"},
    {"sequence_len", Same, "@sequence_length"},
    {"min_sample_len eval_sequence_len", Decided, "", "every sample with a token of loss is learnt"},
    {"excess_length_strategy", Same, "@excess"},
    {"sample_packing", Same, "@packing"},
    {"eval_sample_packing pad_to_sequence_len sample_packing_* multipack_* batch_flattening group_by_length "
     "sample_packing_eff_est total_num_tokens pretrain_multipack_* curriculum_sampling",
     Decided, "", "blocks are as long as what is in them needs"},
    {"pretrain_multipack_attn", Decided, "", "packed samples never see each other"},
    {"remove_unused_columns", Decided, "", "fields that nothing uses are passed over"},
    // ---- Batch and rate
    {"micro_batch_size", Changed, "@micro"},
    {"gradient_accumulation_steps", Same, "@accumulation"},
    {"batch_size", Same, "@global_batch"},
    {"eval_batch_size auto_find_batch_size", Decided, "", say::kEvaluation},
    {"num_epochs", Same, "@epochs"},
    {"max_steps", Same, "@max_steps"},
    {"learning_rate", Same, "learning_rate"},
    {"embedding_lr embedding_lr_scale lr_groups lr_groups.*", Refused, "", "one rate is for all"},
    {"lr_scheduler", Same, "@schedule"},
    {"cosine_min_lr_ratio", Same, "@min_lr_rate"},
    {"cosine_constant_lr_ratio lr_quadratic_warmup lr_div_factor lr_scheduler_kwargs lr_scheduler_kwargs.*", Refused,
     "", say::kSchedule},
    {"warmup_steps", Same, "@warmup_steps"},
    {"warmup_ratio", Same, "@warmup_ratio"},
    {"optimizer", Same, "@optimizer"},
    {"optim_args", Same, "@optim_args"},
    {"optim_args.rank", Same, "@apollo_rank"},
    {"optim_args.update_proj_gap", Same, "@apollo_update_interval"},
    {"optim_args.scale", Same, "@apollo_scale"},
    {"optim_args.scale_type", Same, "@apollo_scale_type"},
    {"optim_args.proj", Refused, "random", "apollo projects at random", rules::only},
    {"optim_args.proj_type", Refused, "std", "apollo projects the smaller side", rules::only},
    {"optim_target_modules", Refused, "all-linear, all_linear",
     "muon and apollo take all linears of layers, others all that is trained", rules::only},
    {"optim_args.* adam_epsilon2 adam_beta3 torchdistx_path dion_* muon_*", Refused, "", say::kOptimizer},
    {"weight_decay", Same, "weight_decay", "not on norms and biases, as there"},
    {"adam_beta1", Same, "beta1"},
    {"adam_beta2", Same, "beta2"},
    {"adam_epsilon", Same, "epsilon"},
    {"max_grad_norm", Same, "max_grad_norm"},
    // ---- Objectives
    {"rl", Same, "@task"},
    {"rl_beta dpo_beta", Same, "@beta"},
    {"trl.beta", Same, "@trl_beta"},
    {"orpo_alpha", Same, "@orpo_alpha"},
    {"dpo_loss_type", Same, "@preference_loss"},
    {"dpo_loss_weights", Same, "@loss_weights"},
    {"dpo_norm_loss", Same, "@dpo_norm"},
    {"dpo_label_smoothing", Same, "@label_smoothing"},
    {"rpo_alpha", Same, "@nll_weight"},
    {"cpo_alpha", Same, "@nll_weight"},
    {"simpo_gamma", Same, "@simpo_gamma"},
    {"kto_desirable_weight", Same, "@desirable"},
    {"kto_undesirable_weight", Same, "@undesirable"},
    {"dpo_use_weighting", Refused, "", "pairs count alike"},
    {"dpo_padding_free dpo_use_logits_to_keep dpo_use_liger_kernel", Decided, "", say::kKernels},
    {"dpo_generate_during_eval", Left, "", say::kGeneration},
    {"precompute_ref_log_probs rl_adapter_ref_model", Decided, "",
     "the reference's log-probabilities are computed before the first step, without a second model"},
    {"reward_model", Same, "@reward_model"},
    {"center_rewards_coefficient", Same, "@center"},
    {"dpo_* kto_* orpo_* simpo_* cpo_* trl.* process_reward_model", Refused, "", say::kObjective},
    {"use_eaft eaft_* use_dft use_dynamic_finetuning chunked_cross_entropy_loss", Refused, "", say::kLoss},
    {"kd_*", Refused, "", "objective: distill asks a teacher itself, and reads no logits from the data"},
    // ---- Numbers
    {"bf16 bfloat16", Same, "@bf16"},
    {"fp16 float16", Same, "@fp16"},
    {"fp8", Same, "@fp8"},
    {"fp8_enable_fsdp_float8_all_gather fp8_*", Decided, "", say::kKernels},
    {"tf32", Decided, "", "products are in the format of compute"},
    // ---- Runs
    {"output_dir", Same, "out"},
    {"resume_from_checkpoint", Same, "resume", "", rules::resume},
    {"auto_resume_from_checkpoints", Same, "resume", "", rules::resume},
    {"seed", Same, "seed", "", rules::seed},
    {"logging_steps", Same, "log_every", "", rules::logging},
    {"evals_per_epoch", Same, "eval_every", "", per_epoch},
    {"saves_per_epoch", Same, "save_every", "", per_epoch},
    {"eval_steps", Same, "@eval_steps"},
    {"eval_strategy evaluation_strategy", Same, "@eval_strategy"},
    {"save_steps", Same, "@save_steps"},
    {"save_strategy", Same, "@save_strategy"},
    {"save_total_limit", Same, "@keep"},
    {"save_only_model", Left, "", "checkpoints hold what resume needs; keep says how many stay"},
    {"metric_for_best_model", Same, "@best_metric"},
    {"early_stopping_patience", Same, "@early_stopping"},
    {"save_first_step save_safetensors load_best_model_at_end greater_is_better", Left, "", say::kBest},
    {"eval_table_size eval_table_max_new_tokens eval_max_new_tokens eval_causal_lm_metrics do_causal_lm_eval "
     "do_bench_eval generate_samples",
     Left, "", say::kGeneration},
    {"wandb_* use_wandb mlflow_* use_mlflow comet_* use_comet swanlab_* use_swanlab use_tensorboard trackio_* "
     "use_trackio report_to",
     Left, "", say::kMetrics},
    {"hub_model_id hub_strategy hub_* hf_use_auth_token push_to_hub", Left, "", say::kHub},
    {"loss_watchdog_threshold loss_watchdog_patience", Left, "",
     "a run ends only where its loss or norm is "
     "not finite"},
    // ---- Machine
    {"gradient_checkpointing", Decided, "block", "", rules::recompute},
    {"gradient_checkpointing_kwargs gradient_checkpointing_kwargs.*", Decided, "",
     "what is recomputed is chosen so that it fits"},
    {"activation_offloading layer_offloading", Decided, "offload_activations: host",
     "what is offloaded is chosen so that it fits"},
    {"deepspeed", Decided, "", "read, as its options say", rules::file_read},
    {"fsdp", Decided, "", say::kSharding,
     [](Translator& t, const Setting& s, const Row& row) {
       if (s.value.find("full_shard") != std::string::npos) t.pin("zero", "3", s);
       t.judge(s, Decided, std::string(row.say));
     }},
    {"fsdp_config.fsdp_offload_params fsdp_config.offload_params", Decided, "",
     "what is offloaded is chosen so that it fits",
     [](Translator& t, const Setting& s, const Row& row) {
       if (is_on(s.value)) t.pin("offload_parameters", "host", s), t.pin("offload_states", "host", s);
       t.judge(s, Decided, std::string(row.say));
     }},
    {"fsdp_config fsdp_config.* fsdp_version fsdp_final_state_dict_type "
     "device device_map max_memory gpu_memory_limit low_cpu_mem_usage num_gpus use_ray ray_* dp_shard_size "
     "dp_replicate_size accelerate_config accelerate_config.* launcher launcher_args",
     Decided, "", say::kSharding},
    {"ddp ddp_* local_rank world_size rank", Decided, "", "ranks find each other by themselves"},
    {"tensor_parallel_size sequence_parallel_degree context_parallel_size heads_k_stride ring_attn_func "
     "expert_parallel_size",
     Left, "", say::kParallel,
     [](Translator& t, const Setting& s, const Row& row) {
       t.judge(s, s.value == "1" || is_off(s.value) ? Same : Left, filled(row.say, s));
     }},
    {"flash_attention flash_attn_* sdp_attention xformers_attention s2_attention eager_attention flex_attention "
     "sage_attention attn_implementation scaling_softmax tiled_mlp tiled_mlp_* flex_attn_compile_kwargs.*",
     Decided, "", say::kAttention,
     [](Translator& t, const Setting& s, const Row& row) {
       const bool other = (s.name == "s2_attention" || s.name == "scaling_softmax") && !is_off(s.value);
       t.judge(s, other ? Refused : Decided, other ? filled(say::kVocabulary, s) : std::string(row.say));
     }},
    {"torch_compile torch_compile_* liger_* unsloth_* cut_cross_entropy use_kernels use_scattermoe use_sonicmoe "
     "dataloader_* gc_steps xpu dynamic_checkpoint use_otel_metrics include_tokens_per_second include_tkps "
     "profiler_steps profiler_steps_start torch_compile_mode experimental_*",
     Decided, "", say::kKernels},
    {"plugins", Changed, "", "no code is run; what a plugin's options ask for is said of each"},
    {"strict", Same, "", "options are always held to what they say"},
    {"debug debug_* ddp_find_unused_parameters telemetry_* config_path comment version merge_lora merge_method",
     Decided, "", "nothing is learnt from it"},
    {"freeze_mm_modules image_size image_resize_algorithm", Left, "", say::kImages},
};

}  // namespace

std::span<const Row> axolotl_rows() { return kAxolotl; }

}  // namespace snug
