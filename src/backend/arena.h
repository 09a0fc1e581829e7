// The one block of bytes of each space, and views into it. The only caller of Backend::reserve.
#pragma once

#include "backend/backend.h"

namespace snug {

class Arena {
 public:
  // Reserves each space's bytes of the plan, once. DeviceError if the machine refuses.
  Arena(Backend& backend, const MemoryPlan& plan);

  // An operand's bytes under a plan whose reserved bytes do not exceed this arena's.
  TensorView view(const Operand& operand, const MemoryPlan& plan, const ProgramSet& set) const;
  uint64_t bytes(Space space) const { return bytes_[index(space)]; }

 private:
  PerSpace<std::byte*> base_{};
  PerSpace<uint64_t> bytes_{};
};

}  // namespace snug
