// Says what a step minimises: the cross-entropy of replies, or what preferences say of them. Formulas: Rafailov et al.,
// arXiv:2305.18290 (DPO); Azar et al., arXiv:2310.12036 (IPO); D'Oosterlinck et al., arXiv:2408.06266 (APO); Hong et
// al., arXiv:2403.07691 (ORPO); Meng et al., arXiv:2405.14734 (SimPO); Ethayarajh et al., arXiv:2402.01306 (KTO);
// Hinton et al., arXiv:1503.02531, and Agarwal et al., arXiv:2306.13649 (distillation).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fields.h"

namespace snug {

enum class ObjectiveKind : uint8_t { Sft, Dpo, Orpo, SimPo, Kto, Reward, Distill };

// Returns the value of "sft", "dpo", "orpo", "simpo", "kto", "reward" or "distill"; throws UserError for another name.
ObjectiveKind objective_from_name(std::string_view name);
std::string_view name(ObjectiveKind kind);

// Names the losses of dpo.
enum class PreferenceLoss : uint8_t { Sigmoid, Cdpo, Robust, Hinge, Ipo, SigmoidNorm, ApoZero, ApoDown };

// Returns the value of "sigmoid", "cdpo", "robust", "hinge", "ipo", "sigmoid_norm", "apo_zero" or "apo_down"; throws
// UserError for another name.
PreferenceLoss preference_loss_from_name(std::string_view name);
std::string_view name(PreferenceLoss loss);

// Says whose log-probabilities a model's are set against: its own before the first step, without an adapter or with the
// one that is continued, or another model's. Of distill it is the teacher: another model's, but in the teacher's own
// job.
enum class Reference : uint8_t { Auto, Adapter, Model };
std::string_view name(Reference reference);

struct ObjectiveOptions {
  ObjectiveKind kind = ObjectiveKind::Sft;
  PreferenceLoss preference_loss = PreferenceLoss::Sigmoid;  // dpo
  double beta = 0.1;  // scales log-ratios; of orpo, weighs the odds beside the cross-entropy
  // cdpo, robust: the share of pairs that are taken to be the wrong way round, below 0.5; sft: of the probability of a
  // target that all tokens of the vocabulary share, below 1.
  double label_smoothing = 0;
  double nll_weight = 0;     // dpo, orpo, simpo: weighs the mean cross-entropy of the chosen replies' tokens
  double simpo_gamma = 0.5;  // simpo: the margin between the two replies' rewards
  Reference reference = Reference::Auto;                // dpo, kto
  std::string reference_weights{};                      // of another model: what tells it from others
  double desirable_weight = 1, undesirable_weight = 1;  // kto: of replies of either kind
  double center_coefficient = 0;                        // reward: weighs the square of a pair's sum of scores
  double z_loss = 0;                                    // sft: weighs the square of the logarithm of a softmax's sum

  // distill: 0: KL(teacher | model), 1: KL(model | teacher), between them the Jensen-Shannon divergence with this share
  // of the teacher in its mixture; by what logits are divided before; the share of the divergence beside that of the
  // cross-entropy; how many of the teacher's tokens a row keeps.
  double distill_beta = 0, distill_temperature = 1, distill_weight = 1;
  int64_t teacher_top_k = 64;

  // Returns whether samples are replies, or texts, that are learnt as they stand.
  bool learns_replies() const { return kind == ObjectiveKind::Sft || has_teacher(); }
  // Returns whether a sample is a pair of replies.
  bool pairs() const {
    return kind == ObjectiveKind::Dpo || kind == ObjectiveKind::Orpo || kind == ObjectiveKind::SimPo || scores();
  }
  // Returns whether the model gives each reply a score, of its last token, instead of log-probabilities of all.
  bool scores() const { return kind == ObjectiveKind::Reward; }
  // Returns whether log-probabilities count by their distance from a reference model's.
  bool has_reference() const { return kind == ObjectiveKind::Dpo || kind == ObjectiveKind::Kto; }
  // Returns whether what a row weighs follows from the log-probabilities of whole replies.
  bool weighs_rows() const { return pairs() || kind == ObjectiveKind::Kto; }
  // Returns whether the cross-entropy of each row is smoothed by itself.
  bool smooths_rows() const { return kind == ObjectiveKind::Sft && label_smoothing > 0; }
  // Return whether there is a teacher, and whether the model is the one that learns from it.
  bool has_teacher() const { return kind == ObjectiveKind::Distill; }
  bool distills() const { return has_teacher() && reference == Reference::Model; }
  // Returns whether a step has more to say than its loss (train/step_objective.h).
  bool has_metrics() const { return weighs_rows() || has_teacher(); }
  // Returns whether the weights of a step's replies follow from those of other replies to their prompts, which are
  // scored before its passes and not learnt from.
  bool scores_others() const { return kind == ObjectiveKind::Kto; }
  bool operator==(const ObjectiveOptions&) const = default;
};

template <RecordOf<ObjectiveOptions> R, class Visit>
void visit_fields(R& options, Visit&& visit) {
  auto& [kind, preference_loss, beta, label_smoothing, nll_weight, simpo_gamma, reference, reference_weights,
         desirable_weight, undesirable_weight, center_coefficient, z_loss, distill_beta, distill_temperature,
         distill_weight, teacher_top_k] = options;
  visit("objective", kind);
  visit("preference_loss", preference_loss);
  visit("beta", beta);
  visit("label_smoothing", label_smoothing);
  visit("nll_weight", nll_weight);
  visit("simpo_gamma", simpo_gamma);
  visit("reference", reference);
  visit("reference's weights", reference_weights);
  visit("desirable_weight", desirable_weight);
  visit("undesirable_weight", undesirable_weight);
  visit("center_coefficient", center_coefficient);
  visit("z_loss", z_loss);
  visit("distill_beta", distill_beta);
  visit("distill_temperature", distill_temperature);
  visit("distill_weight", distill_weight);
  visit("teacher_top_k", teacher_top_k);
}

}  // namespace snug
