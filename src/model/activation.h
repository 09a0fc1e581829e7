// Classes of a layer's forward values, and what becomes of each until the backward.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace snug {

enum class ActivationClass : uint8_t {
  LayerInput,       // what a layer starts from: the one before ends with it. Never computed again
  Attention,        // queries, keys and values; the attention's result and row sums
  Residual,         // between attention and MLP
  Mlp,              // gate and up
  Adapter,          // x A^T of a low-rank adapter
  AlwaysRecompute,  // norms and SwiGLU: little work for many bytes
  Tiny,             // a norm's row factors, x A^T of the last linear: always kept
};

// The classes of which a policy decides, in the order of plans.
inline constexpr std::array kPlannedClasses{ActivationClass::LayerInput, ActivationClass::Attention,
                                            ActivationClass::Residual, ActivationClass::Mlp, ActivationClass::Adapter};
// "input", "attention": of those.
constexpr std::string_view name(ActivationClass kind) {
  return std::array{"input", "attention", "residual", "mlp", "adapter"}.at(static_cast<size_t>(kind));
}

// Whether values stay on the device until the backward, wait elsewhere, or are computed again.
enum class Retention : uint8_t { Keep, Offload, Recompute };

// What becomes of one layer's values, by class.
class ActivationPolicy {
 public:
  Retention& operator[](ActivationClass kind) { return planned_.at(static_cast<size_t>(kind)); }
  Retention operator[](ActivationClass kind) const {
    if (kind == ActivationClass::AlwaysRecompute) return Retention::Recompute;
    return kind == ActivationClass::Tiny ? Retention::Keep : planned_[static_cast<size_t>(kind)];
  }
  bool has(Retention retention) const { return std::ranges::find(planned_, retention) != planned_.end(); }
  bool operator==(const ActivationPolicy&) const = default;

 private:
  std::array<Retention, kPlannedClasses.size()> planned_{};
};

}  // namespace snug
