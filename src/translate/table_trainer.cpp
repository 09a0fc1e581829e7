// Options of transformers' TrainingArguments, which LLaMA-Factory, MiniCPM-V and TRL carry; of launchers; of
// environments.
#include "translate/rules.h"

namespace snug {
namespace {

using enum Mark;

constexpr Row kTrainer[] = {
    {"model_name_or_path", Same, "model"},
    {"dataset_name dataset train_file dataset_path", Same, "@dataset"},
    {"validation_file", Same, "@validation"},
    {"config_name tokenizer_name cache_dir use_fast_tokenizer model_revision", Decided, "",
     "the model's own files are read"},
    {"block_size max_seq_length", Same, "@sequence_length"},
    {"max_train_samples", Same, "max_samples"},
    {"max_eval_samples", Left, "", "all held-out data is evaluated"},
    {"validation_split_percentage", Refused, "", "give validation as a share of all, such as 0.05"},
    {"text_column", Same, "@text_column"},
    {"preprocessing_num_workers overwrite_cache", Decided, "", say::kWorkers},
    {"torch_dtype dtype", Decided, "", "weights are kept as state_format and base_format say"},
    {"trust_remote_code", Decided, "", say::kCode},
    // ---- Batch and length
    {"per_device_train_batch_size per_gpu_train_batch_size", Changed, "@micro"},
    {"gradient_accumulation_steps", Same, "@accumulation"},
    {"num_train_epochs", Same, "@epochs"},
    {"max_steps", Same, "@max_steps"},
    {"per_device_eval_batch_size per_gpu_eval_batch_size eval_accumulation_steps", Decided, "", say::kEvaluation},
    {"auto_find_batch_size", Decided, "", "how a step is cut is chosen so that it fits"},
    {"group_by_length length_column_name train_sampling_strategy", Decided, "",
     "blocks are as long as what is in them needs"},
    {"dataloader_drop_last", Same, "", "an incomplete last step is kept, of which this drops samples",
     [](Translator& t, const Setting& s, const Row& row) {
       t.judge(s, is_off(s.value) ? Same : Changed, is_off(s.value) ? "as here" : filled(row.say, s));
     }},
    {"dataloader_*", Decided, "", say::kWorkers},
    {"average_tokens_across_devices include_num_input_tokens_seen num_input_tokens_seen", Decided, "",
     "a step's loss is the mean over its tokens, of all ranks"},
    // ---- Rate
    {"learning_rate", Same, "learning_rate"},
    {"lr_scheduler_type lr_scheduler", Same, "@schedule"},
    {"lr_scheduler_kwargs", Same, "@schedule_kwargs"},
    {"lr_scheduler_kwargs.min_lr_rate", Same, "@min_lr_rate"},
    {"lr_scheduler_kwargs.min_lr", Same, "@min_lr"},
    {"lr_scheduler_kwargs.*", Refused, "", say::kSchedule},
    {"warmup_ratio", Same, "@warmup_ratio"},
    {"warmup_steps", Same, "@warmup_steps"},
    {"optim", Same, "@optimizer"},
    {"optim_args", Same, "@optim_args"},
    {"optim_target_modules", Refused, "all-linear, all_linear",
     "muon and apollo take all linears of layers, others all that is trained", rules::only},
    {"weight_decay", Same, "weight_decay", "not on norms and biases, as there"},
    {"adam_beta1", Same, "beta1"},
    {"adam_beta2", Same, "beta2"},
    {"adam_epsilon", Same, "epsilon"},
    {"max_grad_norm", Same, "max_grad_norm"},
    {"adafactor", Same, "@adafactor"},
    {"label_smoothing_factor", Same, "@smoothing_factor"},
    {"neftune_noise_alpha", Same, "@neftune"},
    // ---- Numbers
    {"bf16", Same, "@bf16"},
    {"fp16", Same, "@fp16"},
    {"fp16_opt_level fp16_backend half_precision_backend", Decided, "", "there is no loss scale"},
    {"tf32 bf16_full_eval fp16_full_eval jit_mode_eval use_ipex", Decided, "", "products are in the format of compute"},
    // ---- Runs
    {"output_dir", Same, "out"},
    {"overwrite_output_dir", Same, "overwrite"},
    {"resume_from_checkpoint", Same, "resume", "", rules::resume},
    {"ignore_data_skip", Refused, "", "a resumed run goes on where the data was"},
    {"restore_callback_states_from_checkpoint", Decided, "", "a checkpoint holds all of a run's state"},
    {"seed", Same, "seed", "", rules::seed},
    {"data_seed", Changed, "", "seed says the order of data too"},
    {"full_determinism", Decided, "", "runs are always deterministic"},
    {"logging_steps", Same, "log_every", "", rules::logging},
    {"logging_strategy", Decided, "", "log_every is in steps"},
    {"logging_first_step logging_nan_inf_filter log_level log_level_replica log_on_each_node log_file", Decided, "",
     "every step is in out/metrics.jsonl as it was"},
    {"save_steps", Same, "@save_steps"},
    {"save_strategy", Same, "@save_strategy"},
    {"save_total_limit", Same, "@keep"},
    {"save_only_model", Left, "", "checkpoints hold what resume needs; keep says how many stay"},
    {"save_safetensors save_on_each_node enable_jit_checkpoint", Decided, "", "all is written as safetensors, once"},
    {"eval_steps", Same, "@eval_steps"},
    {"eval_strategy evaluation_strategy", Same, "@eval_strategy"},
    {"eval_delay eval_on_start", Left, "", "evaluations are where eval_every says, and at the end"},
    {"metric_for_best_model", Same, "@best_metric"},
    {"load_best_model_at_end greater_is_better", Left, "", say::kBest},
    {"early_stopping_*", Left, "", "early_stopping ends a run after so many evaluations without a better one"},
    {"do_train", Same, "train", "", rules::command},
    {"do_eval", Same, "eval", "", rules::command},
    {"do_predict predict_with_generate generation_* sortish_sampler", Same, "predict", "", rules::command},
    {"report_to", Same, "", "", rules::trackers},
    {"run_name logging_dir project trackio_space_id trackio_*", Left, "", say::kMetrics},
    {"push_to_hub hub_* push_to_hub_*", Left, "", say::kHub},
    // ---- Machine
    {"gradient_checkpointing", Decided, "block", "", rules::recompute},
    {"gradient_checkpointing_kwargs gradient_checkpointing_kwargs.*", Decided, "",
     "what is recomputed is chosen so that it fits"},
    {"deepspeed", Decided, "", "read, as its options say", rules::file_read},
    {"fsdp", Decided, "", say::kSharding,
     [](Translator& t, const Setting& s, const Row& row) {
       if (s.value.find("full_shard") != std::string::npos || s.value.find("hybrid_shard") != std::string::npos)
         t.pin("zero", "3", s);
       if (s.value.find("shard_grad_op") != std::string::npos) t.pin("zero", "2", s);
       if (s.value.find("offload") != std::string::npos)
         t.pin("offload_parameters", "host", s), t.pin("offload_states", "host", s);
       t.judge(s, Decided, std::string(row.say));
     }},
    {"fsdp_config fsdp_config.* fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap accelerator_config "
     "accelerator_config.* parallelism_config parallelism_config.*",
     Decided, "", say::kSharding},
    {"local_rank ddp_* dispatch_batches split_batches use_cpu_offload", Decided, "",
     "ranks find each other by themselves"},
    {"no_cuda use_cpu", Same, "device", "",
     [](Translator& t, const Setting& s, const Row&) {
       if (is_on(s.value))
         t.put("device", "cpu", s);
       else
         t.judge(s, Same, "off, as here");
     }},
    {"use_mps_device tpu_* past_index xpu_backend ray_* torchdynamo mp_parameters sagemaker_*", Decided, "",
     "snug runs on what is here"},
    {"torch_compile torch_compile_* use_liger_kernel liger_kernel_config liger_kernel_config.* torch_empty_cache_steps",
     Decided, "", say::kKernels},
    {"prediction_loss_only remove_unused_columns label_names include_inputs_for_metrics include_for_metrics "
     "include_tokens_per_second batch_eval_metrics disable_tqdm skip_memory_metrics debug eval_do_concat_batches "
     "eval_use_gather_object use_legacy_prediction_loop use_cache",
     Decided, "", "nothing is learnt from it"},
};

constexpr Row kLauncher[] = {
    {"nproc_per_node nproc_per_gpu num_gpus num_processes", Same, "@ranks"},
    {"gpu_ids include", Same, "@gpu_list"},
    {"exclude", Refused, "", "say with --ranks how many GPUs are meant"},
    {"nnodes num_nodes num_machines", Same, "@hosts"},
    {"hostfile", Left, "", "mpirun --hostfile starts snug on its machines, one process each"},
    {"config_file", Decided, "", "read, as its options say", rules::file_read},
    {"accelerate_config", Decided, "", "read, as its options say", rules::file_read},
    {"mixed_precision", Same, "@mixed_precision"},
    {"use_deepspeed use_fsdp multi_gpu deepspeed_config_file deepspeed_multinode_launcher", Decided, "",
     say::kSharding},
    {"node_rank machine_rank master_addr master_port main_process_ip main_process_port main_process_port standalone "
     "rdzv_* "
     "max_restarts monitor_interval start_method tee redirects log_dir no_python run_path launcher launcher_args "
     "module m enable_each_rank_log bind_cores_to_core force_multi local_ranks_filter role same_network autotuning "
     "elastic_training num_cpu_threads_per_process dynamo_backend",
     Decided, "", "ranks find each other by themselves"},
    {"mpi nodes ntasks_per_node gres partition job_name time output error cpus_per_task gpus gpus_per_node mem account "
     "exclusive N n c p J",
     Left, "", "of whoever starts snug, not of the job"},
    {"gradient_accumulation_steps", Same, "@accumulation"},
};

constexpr Row kEnvironment[] = {
    {"CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ASCEND_RT_VISIBLE_DEVICES", Same, "@visible"},
    {"NPROC_PER_NODE", Same, "@ranks"},
    {"NNODES", Same, "@hosts"},
    {"FORCE_TORCHRUN ACCELERATE_* FSDP_* NODE_RANK MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK", Decided, "",
     "ranks find each other by themselves"},
    {"NCCL_* GLOO_* CUDA_* TORCH_* PYTORCH_* OMP_* MKL_* TOKENIZERS_* PYTHON* PATH LD_* TRITON_* DS_* DEEPSPEED_* "
     "CUBLAS_* "
     "TF_* BITSANDBYTES_* HYDRA_* LOGLEVEL UCX_* FI_* XLA_* DISABLE_VERSION_CHECK",
     Decided, "", "snug does not go by it"},
    {"WANDB_* MLFLOW_* COMET_* SWANLAB_* CLEARML_* TRACKIO_* TENSORBOARD_*", Left, "", say::kMetrics},
    {"HF_* HUGGINGFACE_* TRANSFORMERS_* USE_MODELSCOPE_HUB MODELSCOPE_* USE_OPENMIND_HUB XDG_* HOME", Decided, "",
     "models are looked for where it says, or in the usual cache; nothing is downloaded"},
};

}  // namespace

std::span<const Row> trainer_rows() { return kTrainer; }
std::span<const Row> launcher_rows() { return kLauncher; }
std::span<const Row> environment_rows() { return kEnvironment; }

}  // namespace snug
