// Options of LLaMA-Factory, of February 2025 and of its newer configuration, and of its dataset_info.json.
#include "translate/rules.h"

namespace snug {
namespace {

using enum Mark;

constexpr Row kLlamaFactory[] = {
    {"train_from_scratch", Same, "init", "",
     [](Translator& t, const Setting& s, const Row&) { t.put("init", is_off(s.value) ? "pretrained" : "random", s); }},
    {"stage", Same, "@task"},
    {"finetuning_type", Same, "@method"},
    {"adapter_name_or_path", Same, "@adapter"},
    {"adapter_folder", Refused, "", "give the adapter's own directory"},
    {"create_new_adapter", Refused, "",
     "snug merge puts the first adapter into the model; then a new one "
     "is trained"},
    {"lora_rank peft_config.r", Same, "@lora_rank"},
    {"lora_alpha peft_config.lora_alpha", Same, "@lora_alpha"},
    {"lora_dropout peft_config.lora_dropout", Same, "@lora_dropout"},
    {"lora_target peft_config.target_modules", Same, "@lora_targets"},
    {"peft_config.name", Same, "@method"},
    {"use_rslora", Same, "@rslora"},
    {"use_dora", Same, "@dora"},
    {"loraplus_lr_ratio", Same, "@lora_plus"},
    {"loraplus_lr_embedding", Decided, "", "embeddings have no adapters"},
    {"additional_target", Same, "@modules_to_save"},
    {"pissa_init", Same, "@pissa"},
    {"pissa_iter", Decided, "", "PiSSA's halves are found by 16 iterations in a subspace that is wider by 16"},
    {"pissa_convert", Decided, "", "adapters of PiSSA are written as plain LoRA of twice the rank, always"},
    {"use_llama_pro oft_* module_dropout", Refused, "", say::kAdapterKind},
    {"freeze_trainable_* freeze_extra_modules name_module_trainable", Refused, "", say::kParts},
    {"freeze_vision_tower", Same, "freeze_vision_tower"},
    {"freeze_multi_modal_projector", Same, "freeze_projector"},
    {"freeze_language_model", Same, "freeze_language_model"},
    {"quantization_bit quant_config.quantization_bit", Same, "@bits"},
    {"quantization_type", Same, "@quant_type"},
    {"double_quantization", Same, "@double_quant"},
    {"quantization_method quant_config.name", Refused, "bitsandbytes,bnb", say::kStored, rules::only},
    {"quantization_device_map", Decided, "", say::kLoading},
    {"pure_bf16", Same, "@pure_bf16"},
    {"fp8", Same, "@fp8"},
    {"fp8_*", Decided, "", say::kKernels},
    // ---- Data
    {"dataset train_dataset", Same, "@dataset"},
    {"eval_dataset", Same, "@validation"},
    {"dataset_dir", Decided, "", "where the data's files are looked for"},
    {"media_dir", Same, "image_dir"},
    {"image_max_pixels", Same, "image_max_pixels"},
    {"image_min_pixels", Same, "image_min_pixels"},
    {"dataset_revision", Refused, "", say::kData},
    {"mix_strategy", Refused, "concat", "samples of all files are shuffled together", rules::only},
    {"interleave_probs mask_history default_system buffer_size streaming", Refused, "", say::kData,
     [](Translator& t, const Setting& s, const Row& row) {
       if (is_off(s.value) || s.name == "buffer_size")
         t.judge(s, Same, "as here");
       else if (s.name == "streaming")
         t.judge(s, Changed, "samples are read once, when the run starts, and shuffled whole");
       else
         t.judge(s, row.mark, filled(row.say, s));
     }},
    {"tool_format", Changed, "", "tools are rendered as the model's own template does"},
    {"template", Same, "@template"},
    {"enable_thinking preserve_thinking reasoning_effort", Refused, "",
     "a chat template is told nothing; thinking: keep, drop or last",
     [](Translator& t, const Setting& s, const Row& row) {
       if (is_on(s.value) || s.value.empty())
         t.judge(s, Same, "thinking is kept as the template has it");
       else
         t.judge(s, row.mark, filled(row.say, s));
     }},
    {"cutoff_len", Same, "@sequence_length"},
    {"packing", Same, "@packing"},
    {"neat_packing", Same, "@neat_packing"},
    {"max_samples", Same, "max_samples", "the first of each file"},
    {"val_size", Same, "@val_size"},
    {"train_on_prompt", Same, "train_on", "",
     [](Translator& t, const Setting& s, const Row&) { t.put("train_on", is_off(s.value) ? "assistant" : "all", s); }},
    {"disable_shuffling", Same, "shuffle", "", rules::inverted},
    {"ignore_pad_token_for_loss", Same, "true", "padding never carries loss", rules::only},
    {"eval_on_each_dataset", Left, "", "one loss is of all held-out files"},
    {"eval_num_beams", Decided, "", "nothing is generated while snug trains"},
    {"tokenized_path overwrite_cache preprocessing_batch_size preprocessing_num_workers data_shared_file_system",
     Decided, "", "token ids of large data are kept by its content"},
    {"image_* video_* audio_* crop_to_patches use_audio_in_video mask_*", Refused, "", say::kImages,
     [](Translator& t, const Setting& s, const Row& row) {
       // These bound what data has; where it has no such images they do nothing.
       t.judge(s, Left, filled(row.say, s) + "; it does nothing to data without them");
     }},
    // ---- Model
    {"add_tokens", Same, "add_tokens"},
    {"add_special_tokens", Same, "add_special_tokens"},
    {"resize_vocab", Decided, "", "embedding and head get rows for tokens that are added"},
    {"new_special_tokens_config split_special_tokens", Refused, "", say::kVocabulary},
    {"init_special_tokens", Decided, "", "the row of a new token begins as the mean of those that its text was before"},
    {"rope_scaling shift_attn mixture_of_depths", Refused, "", say::kVocabulary},
    {"moe_aux_loss_coef", Refused, "", say::kLoss},
    {"model_revision", Refused, "main", say::kVocabulary, rules::only},
    {"use_fast_tokenizer", Decided, "", "the tokenizer is the model's own"},
    {"flash_attn attn", Decided, "", say::kAttention},
    {"use_unsloth enable_liger_kernel use_v1_kernels use_kt kt_* use_kv_cache use_hyper_parallel", Decided, "",
     say::kKernels},
    {"use_unsloth_gc", Decided, "offload_activations: host", "what is offloaded is chosen so that it fits"},
    {"disable_gradient_checkpointing", Decided, "none", "", rules::recompute},
    {"use_reentrant_gc upcast_layernorm upcast_lmhead_output low_cpu_mem_usage offload_folder", Decided, "",
     say::kLoading},
    {"print_param_status print_env infer_* vllm_* sglang_* export_* hf_hub_token ms_hub_token om_hub_token cache_dir "
     "include_effective_tokens_per_second compute_accuracy include_mfu",
     Decided, "", "nothing is learnt from it"},
    // ---- Objectives and optimizers
    {"pref_beta dpo_beta orpo_beta", Same, "@beta"},
    {"pref_loss dpo_loss", Same, "@preference_loss"},
    {"pref_ftx dpo_ftx kto_ftx", Same, "@nll_weight"},
    {"dpo_label_smoothing", Same, "@label_smoothing"},
    {"simpo_gamma", Same, "@simpo_gamma"},
    {"kto_chosen_weight", Same, "@desirable"},
    {"kto_rejected_weight", Same, "@undesirable"},
    {"pref_bco_weight", Refused, "", "snug minimises one loss of pairs"},
    {"ld_alpha", Refused, "1", say::kTail, rules::tail_weight},
    {"ref_model", Same, "@reference"},
    {"ref_model_adapters", Same, "@reference_adapter"},
    {"ref_model_quantization_bit", Refused, "", "the reference is read as the model is, in its base_format"},
    {"pref_* dpo_* kto_* ppo_* reward_model* score_norm", Refused, "", say::kObjective},
    {"use_muon", Same, "@use_muon"},
    {"use_apollo", Same, "@use_apollo"},
    {"apollo_rank", Same, "@apollo_rank"},
    {"apollo_update_interval", Same, "@apollo_update_interval"},
    {"apollo_scale", Same, "@apollo_scale"},
    {"apollo_scale_type", Same, "@apollo_scale_type"},
    {"apollo_target", Refused, "all", "apollo scales all linears of layers", rules::only},
    {"apollo_proj", Refused, "random", "apollo projects at random", rules::only},
    {"apollo_proj_type", Refused, "std", "apollo projects the smaller side", rules::only},
    {"apollo_layerwise", Same, "@apollo_layerwise"},
    {"apollo_scale_front", Refused, "", "apollo scales updates after it limits their growth", rules::only},
    {"use_galore galore_* use_badam badam_* use_adam_mini", Refused, "", say::kOptimizer,
     [](Translator& t, const Setting& s, const Row& row) {
       const bool sub = s.name.find("use_") != 0;
       t.judge(s,
               is_off(s.value) ? Same
               : sub           ? Left
                               : row.mark,
               is_off(s.value) ? "off, as here" : filled(row.say, s));
     }},
    {"switch_mode switch_block_every", Left, "", say::kOptimizer},
    {"use_dft_loss use_asft_loss asft_alpha use_eaft_loss eaft_alpha", Refused, "", say::kLoss},
    {"disable_dropout", Same, "", "dropout is on adapters alone"},
    {"plot_loss use_swanlab swanlab_* ray_*", Left, "", say::kMetrics},
    {"early_stopping_steps", Same, "@early_stopping"},
    {"do_sample temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty length_penalty "
     "skip_special_tokens seed_generation",
     Left, "", say::kGeneration},
    // ---- The newer configuration
    {"model", Same, "model"},
    {"model_class", Refused, "llm", "it is no language model alone", rules::only},
    {"micro_batch_size", Changed, "@micro"},
    {"global_batch_size", Same, "@global_batch"},
    {"dist_config.*", Decided, "", say::kSharding},
    {"kernel_config.*", Decided, "", say::kKernels},
    {"init_config.*", Decided, "", say::kLoading},
    {"sample_backend", Left, "", say::kGeneration},
};

constexpr Row kDatasetInfo[] = {
    {"file_name", Same, "@file_name"},
    {"hf_hub_url ms_hub_url om_hub_url script_url cloud_file_name", Refused, "",
     "snug reads files: download it, and give its file"},
    {"formatting", Same, "@formatting"},
    {"ranking", Same, "@ranking"},
    {"subset split folder num_samples", Refused, "", say::kData},
    {"columns.*", Same, "@column"},
    {"tags.*", Same, "@tag"},
};

}  // namespace

std::span<const Row> llama_factory_rows() { return kLlamaFactory; }
std::span<const Row> dataset_info_rows() { return kDatasetInfo; }

}  // namespace snug
