// Says what a job is, as whoever asks for it chooses.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "format/tokenizer_added.h"

namespace snug {

// There may be this many ranks, nodes and the like at most: products of a few of them stay within 64 bits.
inline constexpr int64_t kMaxCount = 1 << 20;
// A step may have this many blocks at most, as the planner walks through all its passes.
inline constexpr int64_t kMaxBatch = 1 << 16;

// Says how often something happens: "10", "epoch" or "30min".
struct Cadence {
  enum class Unit : uint8_t { Steps, Epochs, Seconds } unit = Unit::Steps;
  int64_t count = 0;  // 0: at the end only
};

// Holds what commands have found of a job's inputs; no options.
struct FoundOfJob {
  // Hold the text by which model and adapter were given; find_inputs() puts the directories in their place.
  std::string given_model, given_adapter;
  std::vector<AddedToken> new_tokens;  // what find_new_tokens() makes of add_tokens and add_special_tokens
  uint64_t disk_taken = 0;             // of disk_memory, by what is kept of the data; by note_found()
  uint64_t teacher_bytes = 0;          // of these, by what a teacher says of the data
  uint64_t decoding_bytes = 0;         // of a rank's host memory, by images as they are read; by note_found()
  int64_t block_patches = 0;           // the most of a block's images, or 0 without images; by note_found()
  bool given_embeddings = false;       // JobSpec::given_embeddings; by use_image_cache()
  uint64_t disk_wanted = 0;            // of what is free, by rows of images that are still to be written; likewise
};

struct JobConfig {
  std::string model, family, init = "pretrained", adapter, checkpoint;
  // Hold the keys that a job file or the command line named, without those of the file that a run wrote itself; and
  // those of the command line alone.
  std::set<std::string> given, flags;
  FoundOfJob found;
  std::vector<std::string> add_tokens, add_special_tokens;
  std::string objective = "sft";
  std::vector<std::string> data, validation;
  std::string data_format = "auto";
  std::map<std::string, std::string> columns, roles;
  std::string prompt_pattern;
  std::optional<int64_t> max_samples;
  std::string chat_template = "auto", train_on = "assistant", thinking = "keep", long_samples = "cut";
  std::string empty_records = "error", text_split = "document";
  int64_t image_tokens = 0;  // plan without data: of a block's images
  std::string image_dir;     // empty: the folder of each file of data
  std::string image_cache = "auto";
  std::optional<int64_t> image_min_pixels, image_max_pixels, max_slices;  // not given: as the model's files say
  int64_t sequence_length = 2048;
  bool packing = true;

  std::string method = "lora";
  int64_t lora_rank = 16;
  double lora_alpha = 32;
  std::vector<std::string> lora_targets{"all"};
  bool lora_rslora = false;
  bool lora_dora = false;
  std::vector<std::string> lora_rank_pattern, lora_alpha_pattern;  // "NAME=NUMBER"; the first that fits counts
  std::vector<std::string> lora_layers;                            // "0", "4-7"; empty: all
  double lora_plus_ratio = 1;
  std::string lora_init = "default";
  std::vector<std::string> modules_to_save;
  bool ensure_weight_tying = false;
  std::vector<std::string> train_modules, freeze;
  bool freeze_vision_tower = true, freeze_projector = true, freeze_language_model = false;
  std::string compute = "bf16";
  std::optional<std::string> base_format;  // not given: as the model is stored, else the products' format
  std::string gradient_accumulator = "fp32";

  std::string preference_loss = "sigmoid", reference = "auto", reference_cache;
  std::string teacher;  // of distill
  double distill_beta = 0, distill_temperature = 1, distill_weight = 1;
  int64_t teacher_top_k = 64;
  std::optional<double> beta, nll_weight;  // not given: by objective
  double label_smoothing = 0, simpo_gamma = 0.5, desirable_weight = 1, undesirable_weight = 1, center_coefficient = 0;
  double z_loss = 0, neftune_noise_alpha = 0;

  std::optional<double> learning_rate;                                  // not given: by method and objective
  std::optional<double> learning_rate_vision, learning_rate_projector;  // not given: learning_rate
  std::string schedule = "cosine";
  std::optional<int64_t> warmup_steps;
  std::optional<double> warmup_ratio;  // not given: by schedule and steps
  double min_learning_rate_ratio = 0, schedule_power = 1, decay_ratio = 0.1;
  int64_t schedule_cycles = 1;
  std::string optimizer = "adamw";
  int64_t apollo_rank = 256, apollo_update_interval = 200;
  double apollo_scale = 1;
  std::string apollo_scale_type = "channel";
  std::optional<double> beta2;  // not given: by optimizer
  double weight_decay = 0, beta1 = 0.9, epsilon = 1e-8, max_grad_norm = 1;
  int64_t batch_size = 0;  // 0: the product of the next two if both are given, else 16 or a multiple of the ranks
  std::optional<int64_t> micro_batch_size, gradient_accumulation_steps, max_steps, epochs;
  uint64_t seed = 42;
  bool shuffle = true;

  std::string device = "auto", machine;
  int64_t threads = 0;  // 0: all cores
  std::optional<uint64_t> device_memory, host_memory;
  double lora_dropout = 0;
  std::string state_format = "fp32";
  int64_t ranks = 0;  // 0: one for each GPU, or one on the CPU
  int64_t nodes = 1, replicas = 1;
  std::optional<uint64_t> network_rate;  // bytes a second
  std::optional<uint64_t> disk_memory;
  std::string disk_dir, zero = "auto";
  std::string order = "auto", reduce_every = "pass";
  std::string recompute = "auto", offload_activations = "auto", offload_states = "auto", offload_gradients = "auto",
              offload_parameters = "auto";
  bool speculative_updates = false;

  std::string out, trace, cache_dir, on_event;
  bool overwrite = false, resume = false;
  std::vector<std::string> metrics_format;
  std::string log_format = "text";
  Cadence log_every{Cadence::Unit::Steps, 1}, eval_every, save_every{Cadence::Unit::Seconds, 1800};
  int64_t keep = 2;  // -1: all
  std::string best_metric = "eval_loss";
  int64_t early_stopping = 0;
};

// Return the text by which model and adapter were given, which the job file keeps.
const std::string& model_as_given(const JobConfig& options);
const std::string& adapter_as_given(const JobConfig& options);

}  // namespace snug
