// Options of OpenRLHF: with dots, as it has them since April 2026, and flat, as before.
#include "translate/rules.h"

namespace snug {
namespace {

using enum Mark;

constexpr Row kOpenRlhf[] = {
    {"command", Same, "@task"},
    {"model.model_name_or_path pretrain", Same, "model"},
    {"train.batch_size train_batch_size", Same, "@global_batch"},
    {"train.micro_batch_size micro_train_batch_size", Decided, "",
     "how a step is cut into passes is chosen so that it fits"},
    {"ds.packing_samples fsdp.packing_samples packing_samples", Same, "@or_packing"},
    {"data.max_len max_len", Same, "@sequence_length"},
    {"train.max_epochs max_epochs", Same, "@epochs"},
    {"train.max_steps max_steps", Same, "@max_steps"},
    {"adam.lr learning_rate", Same, "learning_rate"},
    {"adam.betas adam_betas", Same, "@betas"},
    {"adam.eps", Same, "epsilon"},
    {"adam.weight_decay l2", Same, "weight_decay", "not on norms and biases, as there"},
    {"lr_scheduler train.lr_scheduler adam.lr_scheduler", Same, "@schedule"},
    {"min_lr_ratio train.min_lr_ratio", Same, "@min_lr_rate"},
    {"lr_warmup_ratio train.lr_warmup_ratio", Same, "@warmup_ratio"},
    {"max_norm train.max_norm adam.max_norm", Same, "max_grad_norm"},
    {"optim", Same, "@optimizer"},
    {"muon.*", Refused, "", "Muon's momentum is 0.95, and its learning rate is AdamW's"},
    {"ds.lora.rank fsdp.lora.rank lora_rank", Same, "@or_rank"},
    {"ds.lora.alpha fsdp.lora.alpha lora_alpha", Same, "@lora_alpha"},
    {"ds.lora.dropout fsdp.lora.dropout lora_dropout", Same, "@lora_dropout"},
    {"ds.lora.target_modules fsdp.lora.target_modules target_modules", Same, "@lora_targets"},
    {"ds.load_in_4bit fsdp.load_in_4bit load_in_4bit", Same, "@load_in_4bit"},
    {"ds.param_dtype fsdp.param_dtype param_dtype", Same, "@param_dtype"},
    {"bf16", Same, "@bf16"},
    {"data.dataset dataset", Same, "@dataset"},
    {"data.dataset_probs dataset_probs", Refused, "1.0",
     "samples of all files are drawn alike; max_samples "
     "takes fewer of each",
     rules::only},
    {"data.dataset_split dataset_split train_split data.train_split eval.split eval_split data.eval_split", Refused,
     "train,test", say::kData, rules::only},
    {"eval.dataset eval_dataset", Same, "@validation"},
    {"data.input_key input_key", Same, "@input_key"},
    {"data.output_key output_key", Same, "@output_key"},
    {"data.input_template input_template", Same, "@input_template"},
    {"data.max_samples max_samples", Same, "@or_samples"},
    {"data.apply_chat_template apply_chat_template", Same, "@apply_chat_template"},
    {"data.multiturn multiturn", Same, "@multiturn"},
    {"data.tokenizer_chat_template tokenizer_chat_template", Refused, "",
     "a chat template is the model's own or one by name; put it into the model directory"},
    {"model.pretrain_mode_enable pretrain_mode", Same, "@pretrain_mode"},
    {"ckpt.output_dir save_path", Same, "out"},
    {"ckpt.save_steps save_steps", Same, "@save_steps"},
    {"ckpt.max_num max_ckpt_num", Same, "@keep"},
    {"ckpt.load_enable load_checkpoint", Same, "resume", "", rules::resume},
    {"ckpt.path ckpt_path ckpt.max_mem max_ckpt_mem ckpt.save_hf save_hf_ckpt save_hf_model ckpt.disable_ds "
     "disable_ds_ckpt use_ds_universal_ckpt ckpt.use_ds_universal ds.use_universal_ckpt",
     Decided, "", "checkpoints are in out/checkpoints, what is trained beside them"},
    {"logger.logging_steps logging_steps", Same, "log_every"},
    {"eval.steps eval_steps", Same, "@eval_steps"},
    {"seed train.seed", Same, "seed", "", rules::seed},
    // ---- Objectives
    {"model.beta beta", Same, "@beta"},
    {"model.ipo_enable ipo", Refused, "",
     "IPO takes sums of log-probabilities there; preference_loss: ipo takes their means a token, with another beta"},
    {"model.label_smoothing label_smoothing", Same, "@label_smoothing"},
    {"model.nll_loss_coef nll_loss_coef", Same, "@nll_weight"},
    {"desirable_loss_weight", Same, "@desirable"},
    {"undesirable_loss_weight", Same, "@undesirable"},
    {"ref.model_name_or_path ref_pretrain", Same, "@reference"},
    {"ref.* ref_offload", Decided, "",
     "the reference's log-probabilities are computed before the first step, without a second model"},
    {"data.chosen_key chosen_key", Same, "@chosen_key"},
    {"data.rejected_key rejected_key", Same, "@rejected_key"},
    {"data.prompt_key prompt_key", Same, "@prompt_key"},
    {"data.label_key label_key", Same, "@label_key"},
    {"vanilla_loss", Refused, "", "kto sets replies against others' prompts, in whatever order they are drawn"},
    {"model.loss_type loss", Refused, "sigmoid", "the loss of reward is -log sigmoid of how far the scores are apart",
     rules::only},
    {"value_head_prefix model.value_head_prefix", Changed, "", "the head is transformers', 'score'"},
    {"compute_fp32_loss model.compute_fp32_loss model.compute_fp32_loss_enable", Same, "", "losses are in fp32"},
    {"model.margin_loss_enable margin_loss", Same, "@margin"},
    {"kd_coef teacher_*", Refused, "", say::kObjective},
    {"model.aux_loss_coef aux_loss_coef", Refused, "", say::kLoss},
    // ---- Sharding
    {"ds.zero_stage zero_stage", Decided, "", say::kSharding, rules::zero_stage},
    {"ds.adam_offload fsdp.cpu_offload adam_offload", Decided, "offload_states: host",
     "what is offloaded is chosen so that it fits"},
    {"ds.zpg zpg ds.overlap_comm overlap_comm ds.grad_accum_dtype grad_accum_dtype ds.deepcompile deepcompile "
     "disable_trace_cache ds.disable_trace_cache local_rank ds.local_rank",
     Decided, "", say::kSharding},
    {"ds.attn_implementation fsdp.attn_implementation ds.experts_implementation attn_implementation flash_attn",
     Decided, "", say::kAttention},
    {"ds.use_liger_kernel fsdp.use_liger_kernel use_liger_kernel", Decided, "", say::kKernels},
    {"model.gradient_checkpointing_enable gradient_checkpointing", Decided, "block", "", rules::recompute},
    {"model.gradient_checkpointing_reentrant model.gradient_checkpointing_use_reentrant "
     "gradient_checkpointing_use_reentrant",
     Decided, "", "what is recomputed is chosen so that it fits"},
    {"data.disable_fast_tokenizer disable_fast_tokenizer", Decided, "", "the tokenizer is the model's own"},
    {"train.full_determinism_enable full_determinism", Decided, "", "runs are always deterministic"},
    {"data.num_workers data.dataloader_num_workers dataloader_num_workers", Decided, "", say::kWorkers},
    {"ds.tensor_parallel_size ds_tensor_parallel_size fsdp.tp_size fsdp.cp_size fsdp.ep_size fsdp.pp_size", Left, "",
     say::kParallel,
     [](Translator& t, const Setting& s, const Row& row) {
       t.judge(s, s.value == "1" || is_off(s.value) ? Same : Left, filled(row.say, s));
     }},
    {"ds.ring_attn_size ring_attn_size ds.ring_attn_head_stride ring_head_stride fsdp.sequence_parallel "
     "fsdp.no_sequence_parallel",
     Left, "", say::kParallel,
     [](Translator& t, const Setting& s, const Row& row) {
       t.judge(s, s.value == "1" || is_off(s.value) ? Same : Left, filled(row.say, s));
     }},
    {"logger.* use_wandb wandb wandb_* use_tensorboard use_mlflow", Left, "", say::kMetrics},
    {"use_ms", Left, "", "nothing is downloaded; give directories and files"},
};

}  // namespace

std::span<const Row> openrlhf_rows() { return kOpenRlhf; }

}  // namespace snug
