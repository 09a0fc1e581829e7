// Visits the fields of adapter configurations (base/fields.h), as far as they decide results.
#pragma once

#include "base/fields.h"
#include "format/peft.h"

namespace snug {

// Returns an entry of rank_pattern or alpha_pattern as text.
template <class T>
std::string field_text(const std::pair<Pattern, T>& entry) {
  return fmt::format("{}={}", written_pattern(entry.first), entry.second);
}

// Leaves out the name of the base, and what adapters that are trained do not have.
template <RecordOf<PeftConfig> R, class Visit>
void visit_fields(R& adapter, Visit&& visit) {
  auto& [base_model, rank, alpha, dropout, rslora, dora, init, target_modules, target_expression, exclude_modules,
         layers_to_transform, layers_pattern, rank_pattern, alpha_pattern, bias, modules_to_save,
         trainable_token_indices, scores, ensure_weight_tying, spelling] = adapter;
  visit("lora_rank", rank);
  visit("lora_alpha", alpha);
  visit("lora_dropout", dropout);
  visit("lora_rslora", rslora);
  visit("lora_dora", dora);
  visit("lora_init", init);
  visit("lora_targets", target_modules);
  visit("lora_layers", layers_to_transform);
  visit("lora_rank_pattern", rank_pattern);
  visit("lora_alpha_pattern", alpha_pattern);
  visit("modules_to_save", modules_to_save);
  visit("scores", scores);
  visit("ensure_weight_tying", ensure_weight_tying);
}

}  // namespace snug
