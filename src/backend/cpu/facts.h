// What planning knows of the CPU backend.
#pragma once

#include "program/facts.h"

namespace snug {

class CpuFacts : public OpFacts {
 public:
  uint64_t scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const override;
  uint64_t alignment() const override { return 256; }
};

}  // namespace snug
