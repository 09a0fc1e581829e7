#include "plan/arrangement.h"

#include <array>

namespace snug {

std::string_view name(Recompute recompute) {
  constexpr std::array<std::string_view, 4> kNames{"none", "mlp", "attention", "block"};
  return kNames[static_cast<size_t>(recompute)];
}

}  // namespace snug
