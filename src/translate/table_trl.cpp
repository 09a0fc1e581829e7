// Options of TRL's commands beyond those of transformers' TrainingArguments; of DeepSpeed's JSON; of accelerate's YAML.
#include "translate/rules.h"

namespace snug {
namespace {

using enum Mark;

constexpr Row kTrl[] = {
    {"command", Same, "@task"},
    {"dataset_name", Same, "@dataset"},
    {"datasets.path datasets.data_files", Same, "@dataset"},
    {"datasets.*", Refused, "train", say::kData, rules::only},
    {"dataset_config dataset_streaming", Refused, "", say::kData},
    {"dataset_train_split dataset_test_split", Refused, "train,test", say::kData, rules::only},
    {"dataset_text_field", Same, "@text_column"},
    {"dataset_kwargs dataset_kwargs.* dataset_num_proc dataset_batch_size num_of_sequences chars_per_token", Decided,
     "", say::kWorkers},
    {"config accelerate_config", Decided, "", "read, as its options say", rules::file_read},
    {"max_length max_seq_length", Same, "@sequence_length"},
    {"truncation_mode", Refused, "keep_start", "long samples are cut at their end, split or dropped",
     [](Translator& t, const Setting& s, const Row& row) {
       if (t.learns_pairs())
         t.judge(s, Changed, std::string(say::kPairLength));
       else
         rules::only(t, s, row);
     }},
    {"max_prompt_length max_completion_length max_target_length", Changed, "", say::kPairLength,
     [](Translator& t, const Setting& s, const Row& row) {
       const bool off = is_off(s.value);
       t.judge(s, off ? Same : row.mark,
               off                ? "no limit, as here"
               : t.learns_pairs() ? std::string(row.say)
                                  : "sequence_length bounds prompt and reply together, and cuts ends");
     }},
    {"shuffle_dataset", Decided, "", "samples are shuffled"},
    {"packing", Same, "@packing"},
    {"packing_strategy", Same, "@packing_strategy"},
    {"padding_free pad_to_multiple_of eval_packing pad_token", Decided, "",
     "blocks are as long as what is in them needs"},
    {"completion_only_loss", Same, "@completion_only"},
    {"assistant_only_loss", Same, "@assistant_only"},
    {"activation_offloading", Decided, "offload_activations: host", "what is offloaded is chosen so that it fits"},
    {"eos_token", Changed, "", "a turn ends as the chat template ends it"},
    {"chat_template_path", Refused, "",
     "a chat template is the model's own or one by name; put it into the model directory"},
    {"model_init_kwargs model_init_kwargs.*", Decided, "", say::kLoading},
    {"model_revision model_code_revision", Refused, "main", say::kVocabulary, rules::only},
    {"attn_implementation use_flash_attention_2", Decided, "", say::kAttention},
    {"use_peft", Same, "@use_peft"},
    {"lora_r", Same, "@lora_rank"},
    {"lora_alpha", Same, "@lora_alpha"},
    {"lora_dropout", Same, "@lora_dropout"},
    {"lora_target_modules", Same, "@lora_targets"},
    {"lora_task_type", Decided, "", "the objective says it"},
    {"use_rslora", Same, "@rslora"},
    {"use_dora", Same, "@dora"},
    {"lora_modules_to_save", Same, "@modules_to_save"},
    {"lora_target_parameters", Refused, "", say::kAdapterKind},
    {"load_in_8bit", Same, "@load_in_8bit"},
    {"load_in_4bit", Same, "@load_in_4bit"},
    {"bnb_4bit_quant_type", Same, "@quant_type"},
    {"use_bnb_nested_quant", Same, "@double_quant"},
    {"bnb_4bit_quant_storage", Decided, "", say::kLoading},
    {"ignore_bias_buffers sanity_check", Decided, "", "nothing is learnt from it"},
    {"gradient_checkpointing_use_reentrant", Decided, "", "what is recomputed is chosen so that it fits"},
    // ---- Objectives
    {"loss_type", Same, "@preference_loss"},
    {"loss_weights", Same, "@loss_weights"},
    {"beta", Same, "@beta"},
    {"label_smoothing", Same, "@label_smoothing"},
    {"rpo_alpha", Same, "@nll_weight"},
    {"cpo_alpha", Same, "@nll_weight"},
    {"simpo_gamma", Same, "@simpo_gamma"},
    {"desirable_weight", Same, "@desirable"},
    {"undesirable_weight", Same, "@undesirable"},
    {"train_sampling_strategy", Decided, "", "blocks are as long as what is in them needs",
     [](Translator& t, const Setting& s, const Row& row) {
       const bool ordered = s.value == "sequential";
       if (ordered || s.value == "random")
         t.put("shuffle", ordered ? "false" : "true", s);
       else
         t.judge(s, row.mark, std::string(row.say));
     }},
    {"teacher_model_name_or_path", Same, "@teacher"},
    {"teacher_model_init_kwargs teacher_model_init_kwargs.*", Decided, "", say::kLoading},
    {"temperature", Same, "@distill_temperature"},
    {"lmbda", Same, "@own_replies"},
    {"seq_kd", Same, "@teachers_replies"},
    {"max_new_tokens", Decided, "", say::kGeneration},
    {"ref_model ref_model_name_or_path", Same, "@reference"},
    {"precompute_ref_log_probs precompute_ref_batch_size", Decided, "", "they are always computed first, and kept"},
    {"reference_free", Refused, "", "dpo and kto need a reference; orpo and simpo need none"},
    {"sync_ref_model", Refused, "", say::kReference},
    {"ref_model_mixup_alpha ref_model_sync_steps", Left, "", say::kReference},
    {"model_adapter_name ref_adapter_name", Refused, "", "reference: adapter takes the adapter that is continued"},
    {"force_use_ref_model ref_model_init_kwargs ref_model_init_kwargs.*", Decided, "", say::kReference},
    {"ld_alpha", Refused, "1", say::kTail, rules::tail_weight},
    {"use_weighting", Refused, "", "pairs count alike"},
    {"alpha", Refused, "", "snug has SimPO's rewards, not AlphaPO's"},
    {"f_divergence_type", Refused, "reverse_kl", "the divergence is the reverse one", rules::only},
    {"f_alpha_divergence_coef discopop_tau", Left, "", "of a loss that is not translated"},
    {"disable_dropout", Same, "@disable_dropout"},
    {"generate_during_eval", Left, "", say::kGeneration},
    {"label_pad_token_id padding_value is_encoder_decoder", Decided, "", "padding is never learnt"},
    {"router_aux_loss_coef", Refused, "", say::kLoss},
    {"center_rewards_coefficient", Same, "@center"},
    {"num_generations reward_*", Refused, "", say::kObjective},
    {"dataset_mixer dataset_mixer.* dataset_mixture.* dataset_splits", Refused, "", say::kData},
    {"env.*", Decided, "", "snug does not go by it"},
};

constexpr Row kDeepSpeed[] = {
    {"train_batch_size", Same, "@ds_batch"},
    {"train_micro_batch_size_per_gpu", Same, "@ds_micro"},
    {"gradient_accumulation_steps", Same, "@ds_accumulation"},
    {"optimizer.type", Same, "@ds_optimizer"},
    {"optimizer.params.lr", Same, "@ds_lr"},
    {"optimizer.params.betas", Same, "@ds_betas"},
    {"optimizer.params.eps", Same, "@ds_eps"},
    {"optimizer.params.weight_decay", Same, "@ds_decay"},
    {"optimizer.params.torch_adam", Decided, "", say::kKernels},
    {"optimizer.params.adam_w_mode", Refused, "true", say::kOptimizer, rules::only},
    {"optimizer.params.* optimizer.legacy_fusion", Refused, "", say::kOptimizer},
    {"scheduler.type", Same, "@ds_scheduler"},
    {"scheduler.params.warmup_num_steps", Same, "@ds_warmup"},
    {"scheduler.params.warmup_type", Same, "@ds_warmup_type"},
    {"scheduler.params.warmup_max_lr", Same, "@ds_max_lr"},
    {"scheduler.params.warmup_min_lr scheduler.params.total_num_steps scheduler.params.warmup_min_ratio "
     "scheduler.params.cos_min_ratio",
     Same, "@ds_schedule_number"},
    {"scheduler.params.*", Refused, "", say::kSchedule},
    {"bf16.enabled", Same, "@ds_bf16"},
    {"bf16.bf16_optimizer_states bf16.bf16_master_weights_and_grads", Same, "@ds_pure_bf16"},
    {"bf16.*", Decided, "", "products are in bf16, sums in fp32"},
    {"fp16.enabled amp.enabled", Same, "@ds_fp16"},
    {"fp16.* amp.*", Decided, "", "there is no loss scale"},
    {"torch_autocast.* data_types.*", Decided, "", "products are in the format of compute"},
    {"gradient_clipping", Same, "@ds_clipping"},
    {"steps_per_print", Decided, "", "log_every says how often"},
    {"zero_quantized_nontrainable_weights zero_optimization.zero_quantized_nontrainable_weights", Changed,
     "@ds_quantized"},
    {"zero_optimization.stage", Decided, "", say::kSharding, rules::zero_stage},
    {"zero_optimization.offload_optimizer.device offload_optimizer_device zero_optimization.cpu_offload", Decided,
     "offload_states", "", rules::offload},
    {"zero_optimization.offload_param.device offload_param_device", Decided, "offload_parameters", "", rules::offload},
    {"zero_optimization.offload_optimizer.ratio", Decided, "", "what is offloaded is chosen so that it fits",
     [](Translator& t, const Setting& s, const Row& row) {
       t.pin("offload_states", s.value, s);
       t.judge(s, Decided, std::string(row.say));
     }},
    {"zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.nvme_path "
     "offload_optimizer_nvme_path "
     "offload_param_nvme_path",
     Decided, "", "what is offloaded to disk lies in disk_dir",
     [](Translator& t, const Setting& s, const Row& row) {
       if (!is_off(s.value)) t.pin("disk_dir", s.value, s);
       t.judge(s, Decided, std::string(row.say));
     }},
    {"activation_checkpointing.cpu_checkpointing", Decided, "offload_activations: host",
     "what is offloaded is chosen so that it fits"},
    {"zero_optimization.zero_quantized_weights zero_optimization.zero_quantized_gradients zenflow.* "
     "zero_optimization.zenflow.* "
     "compression_training.* curriculum_learning.* data_efficiency.* progressive_layer_drop.*",
     Refused, "", say::kOptimizer},
    {"sparse_attention.*", Refused, "", say::kVocabulary},
    {"tensor_parallel.* sequence_parallel_size pipeline.* autotp_size zero_optimization.autotp_size", Left, "",
     say::kParallel},
    {"tensorboard.enabled tensorboard.* wandb.* csv_monitor.* comet.* monitor_config.*", Left, "", say::kMetrics,
     [](Translator& t, const Setting& s, const Row&) {
       t.judge(s, Decided, "steps are in out/metrics.jsonl; snug report shows them");
     }},
    {"zero_optimization.offload_optimizer.* zero_optimization.offload_param.* aio.* zero_optimization.super_offload",
     Decided, "", "what is offloaded is chosen so that it fits"},
    {"zero_optimization.*", Decided, "", say::kSharding},
    {"activation_checkpointing.*", Decided, "", "what is recomputed is chosen so that it fits"},
    {"wall_clock_breakdown memory_breakdown dump_state flops_profiler.* comms_logger.* comms_config.* timers.*",
     Decided, "", "snug plan says what takes bytes and seconds, --trace FILE when"},
    {"checkpoint.* nebula.* load_universal_checkpoint", Decided, "",
     "checkpoints hold all of a run's state, for any number of ranks"},
    {"communication_data_type prescale_gradients gradient_predivide_factor sparse_gradients "
     "seq_parallel_communication_data_type fp32_allreduce disable_allgather",
     Decided, "", "gradients are added in fp32, in the order of ranks"},
    {"autotuning.* elasticity.* hybrid_engine.* compile.* graph_harvesting "
     "use_data_before_expert_parallel_",
     Decided, "", say::kKernels},
    {"zero_allow_untested_optimizer zero_force_ds_cpu_optimizer", Decided, "",
     "the optimizer is AdamW, wherever its states are"},
    {"dataloader_drop_last", Decided, "", "an incomplete last step is kept"},
};

constexpr Row kAccelerate[] = {
    {"num_processes", Same, "@ranks"},
    {"num_machines", Same, "@hosts"},
    {"gpu_ids", Same, "@gpu_list"},
    {"mixed_precision", Same, "@mixed_precision"},
    {"deepspeed_config.deepspeed_config_file deepspeed_config_file", Decided, "", "read, as its options say",
     rules::file_read},
    {"deepspeed_config.zero_stage zero_stage", Decided, "", say::kSharding, rules::zero_stage},
    {"deepspeed_config.offload_optimizer_device", Decided, "offload_states", "", rules::offload},
    {"deepspeed_config.offload_param_device", Decided, "offload_parameters", "", rules::offload},
    {"deepspeed_config.offload_optimizer_nvme_path deepspeed_config.offload_param_nvme_path", Decided, "",
     "what is offloaded to disk lies in disk_dir"},
    // The trainer puts its own number in the place of this one.
    {"deepspeed_config.gradient_accumulation_steps", Decided, "", "the trainer's own number counts"},
    {"deepspeed_config.gradient_clipping", Decided, "", "the trainer's own number counts"},
    {"deepspeed_config.* deepspeed_multinode_launcher zero3_init_flag zero3_save_16bit_model", Decided, "",
     say::kSharding},
    {"fsdp_config.fsdp_sharding_strategy fsdp_sharding_strategy", Decided, "fsdp", say::kSharding, rules::zero_stage},
    {"fsdp_config.fsdp_reshard_after_forward fsdp_reshard_after_forward", Decided, "fsdp", say::kSharding,
     [](Translator& t, const Setting& s, const Row& row) {
       if (is_on(s.value) || is_off(s.value))
         t.pin("zero", is_on(s.value) ? "3" : "2", s), t.judge(s, Decided, std::string(row.say));
       else
         rules::zero_stage(t, s, row);
     }},
    {"fsdp_config.fsdp_offload_params fsdp_offload_params", Decided, "", "what is offloaded is chosen so that it fits",
     [](Translator& t, const Setting& s, const Row& row) {
       if (is_on(s.value)) t.pin("offload_parameters", "host", s), t.pin("offload_states", "host", s);
       t.judge(s, Decided, std::string(row.say));
     }},
    {"fsdp_config.fsdp_activation_checkpointing fsdp_activation_checkpointing", Decided, "block", "", rules::recompute},
    {"fsdp_config fsdp_config.* fsdp_*", Decided, "", say::kSharding},
    {"parallelism_config.parallelism_config_tp_size parallelism_config.parallelism_config_cp_size "
     "parallelism_config.parallelism_config_sp_size",
     Left, "", say::kParallel,
     [](Translator& t, const Setting& s, const Row& row) {
       t.judge(s, s.value == "1" || is_off(s.value) ? Same : Left, filled(row.say, s));
     }},
    {"use_cpu", Decided, "", "device says where"},
    {"compute_environment machine_rank main_process_* same_network rdzv_backend enable_cpu_affinity mpirun_*", Decided,
     "", "ranks find each other by themselves"},
    {"distributed_type deepspeed_config megatron_lm_config megatron_lm_config.* parallelism_config "
     "parallelism_config.* "
     "use_deepspeed use_fsdp multi_gpu",
     Decided, "", say::kSharding},
    {"downcast_bf16 fp8_config.*", Decided, "", "products are in the format of compute"},
    {"dynamo_* dynamo_config.*", Decided, "", say::kKernels},
    {"tpu_* sagemaker_* ipex_config.*", Decided, "", "snug runs on what is here"},
    {"main_training_function command_file commands debug", Decided, "", "nothing is learnt from it"},
};

}  // namespace

std::span<const Row> trl_rows() { return kTrl; }
std::span<const Row> deepspeed_rows() { return kDeepSpeed; }
std::span<const Row> accelerate_rows() { return kAccelerate; }

}  // namespace snug
