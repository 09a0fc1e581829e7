// The execution half of a backend: arenas, and ops bound to addresses. The planning half is program/facts.h.
#pragma once

#include <functional>
#include <span>

#include "program/program.h"

namespace snug {

// An op made ready: everything found out and prepared, nothing left to allocate. Called once a pass.
using Launch = std::function<void(const PassFacts&)>;

class Backend {
 public:
  virtual ~Backend() = default;
  // One block of zeroed bytes for a space's arena, aligned to OpFacts::alignment(); called once a space, by Arena only.
  // Released with the backend. DeviceError with the number of bytes if the machine refuses.
  virtual std::byte* reserve(Space space, uint64_t bytes) = 0;
  // Prepares an op on given addresses (operands in ops.h's order). All allocation and look-up happens here; the launch
  // itself allocates nothing. InternalError if the operands are not what the op's kind says, or if a library wants more
  // scratch than the facts declared. HostTask, ReadFile and WriteFile are the executor's, not the backend's.
  virtual Launch bind(const Op& op, std::span<const TensorView> views) = 0;
};

}  // namespace snug
