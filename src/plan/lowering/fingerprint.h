// Lists what decides the results of a job, field by field (base/fields.h). Ranks compare their fields before they
// begin, and a resumed run compares its own with its checkpoint's.
#pragma once

#include "base/fields.h"
#include "plan/lowering/compile.h"

namespace snug {

// Returns the words for the numbers by which files store the enumerators.
inline std::map<std::string, std::string> words_of(StateFormat) {
  return {{"0", "fp32"}, {"1", "bf16"}, {"2", "8bit"}};
}
inline std::map<std::string, std::string> words_of(Optimizer) {
  return {{"0", "adamw"}, {"1", "lion"},      {"2", "schedule_free_adamw"},
          {"3", "muon"},  {"4", "adafactor"}, {"5", "apollo"}};
}
inline std::map<std::string, std::string> words_of(ScaleType) { return {{"0", "channel"}, {"1", "tensor"}}; }
inline std::map<std::string, std::string> words_of(BaseFormat) {
  return {{"plain", "numbers, as base_format bf16 and fp32 keep them"}};
}

template <RecordOf<Numerics> R, class Visit>
void visit_fields(R& numerics, Visit&& visit) {
  auto& [compute, fp8_products, base, base_format, plain_scales, accumulator, reduce_once_per_step, logits_chunk_rows,
         beta1, beta2, epsilon, weight_decay, max_grad_norm, state, seed, optimizer, neftune_alpha, apollo_rank,
         apollo_update_interval, apollo_scale, apollo_scale_type] = numerics;
  visit("compute", compute);
  visit("compute fp8", fp8_products);
  visit("base", base);
  visit("base_format", base_format);
  visit("plain scales", plain_scales);
  visit("gradient_accumulator", accumulator);
  visit("reduce_every step", reduce_once_per_step);
  visit("rows of logits", logits_chunk_rows);
  visit("beta1", beta1);
  visit("beta2", beta2);
  visit("epsilon", epsilon);
  visit("weight_decay", weight_decay);
  visit("max_grad_norm", max_grad_norm);
  visit("state_format", state);
  visit("seed", seed);
  visit("optimizer", optimizer);
  visit("neftune_noise_alpha", neftune_alpha);
  visit("apollo_rank", apollo_rank);
  visit("apollo_update_interval", apollo_update_interval);
  visit("apollo_scale", apollo_scale);
  visit("apollo_scale_type", apollo_scale_type);
}

// The fields of the adapter are added by themselves.
template <RecordOf<ParamRules> R, class Visit>
void visit_fields(R& rules, Visit&& visit) {
  auto& [adapter, train, freeze, lora_plus_ratio, tower_rate, projector_rate] = rules;
  visit("train_modules", train);
  visit("freeze", freeze);
  visit("lora_plus_ratio", lora_plus_ratio);
  visit("learning_rate_vision", tower_rate);
  visit("learning_rate_projector", projector_rate);
}

template <RecordOf<Cut> R, class Visit>
void visit_fields(R& cut, Visit&& visit) {
  auto& [sequence_length, micro_batch, passes, ranks, short_eighths, patches] = cut;
  visit("sequence_length", sequence_length);
  visit("micro_batch_size", micro_batch);
  visit("gradient_accumulation_steps", passes);
  visit("ranks", ranks);
  visit("short_passes", short_eighths);
  visit("patches", patches);
}

// Name the groups of fields.
inline constexpr std::string_view kModelFields = "model";        // configuration, and hash of the weights not trained
inline constexpr std::string_view kNumericsFields = "numerics";  // arithmetic and the optimizer's numbers
inline constexpr std::string_view kMethodFields = "method";      // what is trained: the adapter, or all weights
inline constexpr std::string_view kCutFields = "cut";            // two cuts differ in the last bits of sums

// Lists the groups whose fields stay equal from a run's beginning to its end; the cut may change.
inline const std::vector<std::string_view> kResultFields{kMethodFields, kModelFields, kNumericsFields};

// Returns all groups of a job's fields, without the field of the weights.
Fields fields_of(const JobSpec& spec);

// Returns the field of the weights that are not trained: a hash of what their files hold, or "init random" where the
// seed draws them; it is empty where all are trained.
Field weights_field(const JobSpec& spec, const Heartbeat& heartbeat);

}  // namespace snug
