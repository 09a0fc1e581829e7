// Names the classes of a layer's forward values, and says for each whether it is kept until the backward.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace snug {

enum class ActivationClass : uint8_t {
  LayerBoundary,    // a layer's input, which is the output of the layer before; never recomputed
  Attention,        // queries, keys and values; the attention's result and row sums
  Residual,         // between attention and MLP
  Mlp,              // gate and up
  Adapter,          // x A^T of a low-rank adapter
  AlwaysRecompute,  // norms and SwiGLU, which are little work for many bytes
  Tiny,             // a norm's row factors and x A^T of the last linear, which are always kept
};

// Lists the classes of which a policy decides, in the order of plans.
inline constexpr std::array kPlannedClasses{ActivationClass::LayerBoundary, ActivationClass::Attention,
                                            ActivationClass::Residual, ActivationClass::Mlp, ActivationClass::Adapter};
// Returns the name of one of the planned classes, such as "input".
constexpr std::string_view name(ActivationClass kind) {
  return std::array{"input", "attention", "residual", "mlp", "adapter"}.at(static_cast<size_t>(kind));
}

// Says whether values stay on the device until the backward, are offloaded, or are recomputed.
enum class Retention : uint8_t { Keep, Offload, Recompute };

// Holds the retention of one layer's values, by class.
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
