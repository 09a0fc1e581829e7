#include "objective/objective.h"

#include <array>

#include "base/error.h"

namespace snug {
namespace {

constexpr std::array<std::string_view, 7> kKinds{"sft", "dpo", "orpo", "simpo", "kto", "reward", "distill"};
constexpr std::array<std::string_view, 8> kLosses{"sigmoid", "cdpo",         "robust",   "hinge",
                                                  "ipo",     "sigmoid_norm", "apo_zero", "apo_down"};

template <class Value, size_t N>
Value value_of(std::string_view name, const std::array<std::string_view, N>& names, std::string_view option) {
  for (size_t i = 0; i < N; i++)
    if (names[i] == name) return static_cast<Value>(i);
  user_error("{}: found '{}', expected one of {}", option, name, fmt::join(names, ", "));
}

}  // namespace

ObjectiveKind objective_from_name(std::string_view name) { return value_of<ObjectiveKind>(name, kKinds, "objective"); }
std::string_view name(ObjectiveKind kind) { return kKinds[static_cast<size_t>(kind)]; }

PreferenceLoss preference_loss_from_name(std::string_view name) {
  return value_of<PreferenceLoss>(name, kLosses, "preference_loss");
}
std::string_view name(PreferenceLoss loss) { return kLosses[static_cast<size_t>(loss)]; }

std::string_view name(Reference reference) {
  constexpr std::array<std::string_view, 3> kNames{"auto", "adapter", "model"};
  return kNames[static_cast<size_t>(reference)];
}

}  // namespace snug
