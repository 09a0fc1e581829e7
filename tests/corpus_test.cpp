#include "api/corpus.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "api/options.h"
#include "train/checkpoint.h"

namespace snug {
namespace {

uint64_t hash_of_labels(std::vector<int32_t> labels) {
  Corpus corpus;
  corpus.training.add({{1, 2, 3, 4}, std::move(labels)});
  corpus.training_samples = all_samples(1);
  return hash_of_fields(data_fields(corpus, JobConfig(), {}), {kContentFields});
}

// A checkpoint is not resumed with other labels, however many there are.
TEST(Corpus, TheHashOfTheDataIsOfEachLabel) {
  const uint64_t plain = hash_of_labels({kNoLabel, kNoLabel, 3, 4});
  EXPECT_EQ(hash_of_labels({1, kNoLabel, 3, 4}), plain);  // nothing predicts a first token
  EXPECT_NE(hash_of_labels({kNoLabel, 2, 3, kNoLabel}), plain);
  EXPECT_NE(hash_of_labels({kNoLabel, kNoLabel, 3, 5}), plain);
  EXPECT_NE(hash_of_labels({kNoLabel, kNoLabel, kNoLabel, 4}), plain);
}

// Another value of each option that says what is learnt from: a checkpoint is not resumed with it in silence, even
// where the labels happen to be the same.
const std::map<std::string, std::string> kOtherData{
    {"objective", "dpo"},
    {"data", "other.jsonl"},
    {"validation", "held_out.jsonl"},
    {"data_format", "alpaca"},
    {"columns", "instruction=question"},
    {"roles", "human=user"},
    {"prompt", "{question}"},
    {"max_samples", "3"},
    {"empty_records", "skip"},
    {"text_split", "line"},
    {"template", "chatml"},
    {"train_on", "all"},
    {"thinking", "last"},
    {"image_dir", "photos"},
    {"image_min_pixels", "784"},
    {"image_max_pixels", "7840"},
    {"max_slices", "4"},
    {"add_tokens", "<think>"},
    {"add_special_tokens", "<|turn|>"},
    {"sequence_length", "64"},
    {"long_samples", "drop"},
    {"packing", "false"},
    {"shuffle", "false"},
    {"batch_size", "3"},
};
// Options that say nothing of the data.
const std::set<std::string> kNotOfData{
    // What is trained and in which arithmetic: fields of the job (plan/lowering/fingerprint.h).
    "model", "family", "init", "adapter", "checkpoint", "method", "lora_rank", "lora_alpha", "lora_targets",
    "lora_rslora", "lora_dora", "lora_dropout", "lora_rank_pattern", "lora_alpha_pattern", "lora_layers", "lora_init",
    "lora_plus_ratio", "modules_to_save", "ensure_weight_tying", "train_modules", "freeze", "freeze_vision_tower",
    "freeze_projector", "freeze_language_model", "learning_rate_vision", "learning_rate_projector", "base_format",
    "compute", "state_format", "gradient_accumulator", "weight_decay", "beta1", "beta2", "epsilon", "max_grad_norm",
    "seed", "reduce_every", "preference_loss", "beta", "label_smoothing", "nll_weight", "simpo_gamma",
    "desirable_weight", "undesirable_weight", "reference", "reference_cache", "image_tokens", "center_coefficient",
    "image_cache", "optimizer", "z_loss", "neftune_noise_alpha", "apollo_rank", "apollo_update_interval",
    "apollo_scale", "apollo_scale_type", "teacher", "teacher_top_k", "distill_beta", "distill_temperature",
    "distill_weight",
    // How the rate goes on and how long, which a resumed run may change.
    "learning_rate", "schedule", "schedule_cycles", "schedule_power", "decay_ratio", "warmup_steps", "warmup_ratio",
    "min_learning_rate_ratio", "max_steps", "epochs",
    // The cut, which it may change too.
    "micro_batch_size", "gradient_accumulation_steps", "ranks", "nodes",
    // Where bytes lie and when work happens; what is written and said.
    "device", "machine", "network_rate", "threads", "zero", "replicas", "device_memory", "host_memory", "disk_memory",
    "disk_dir", "order", "recompute", "offload_states", "offload_gradients", "offload_parameters",
    "offload_activations", "speculative_updates", "out", "cache_dir", "reference_cache", "overwrite", "resume",
    "log_every", "log_format", "metrics_format", "on_event", "eval_every", "save_every", "keep", "best_metric",
    "early_stopping", "trace"};

TEST(Corpus, EachOptionOfTheDataIsAFieldOfIt) {
  const Corpus corpus;
  const auto hash = [&](const JobConfig& options) {
    return hash_of_fields(data_fields(corpus, options, {}), {kBlockFields, kDataOptionFields});
  };
  for (const OptionSpec& spec : option_specs()) {
    const auto other = kOtherData.find(spec.key);
    EXPECT_NE(other != kOtherData.end(), kNotOfData.contains(spec.key)) << spec.key << ": is it of the data or not?";
    if (other == kOtherData.end()) continue;
    JobConfig options;
    spec.set(options, other->second);
    EXPECT_NE(hash(options), hash(JobConfig())) << spec.key;
  }
}

}  // namespace
}  // namespace snug
