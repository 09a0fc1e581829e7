// What planning knows of the CPU backend.
#pragma once

#include <map>
#include <vector>

#include "program/facts.h"

namespace snug {

// For the number of threads that is set when it is asked (snug::set_threads). One thread at a time.
class CpuFacts : public OpFacts {
 public:
  uint64_t scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const override;
  uint64_t alignment() const override { return 256; }

 private:
  // Asking the library costs as much as a small compile; blocks ask for the same products again and again.
  mutable std::map<std::vector<int64_t>, uint64_t> products_;
};

}  // namespace snug
