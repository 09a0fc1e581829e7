// Declares the facts of the CPU backend that planning knows.
#pragma once

#include <map>
#include <vector>

#include "program/facts.h"

namespace snug {

// Gives facts for the number of threads that is set when they are asked for (snug::set_threads), on one thread at a
// time.
class CpuFacts : public OpFacts {
 public:
  uint64_t scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const override;
  uint64_t alignment() const override { return 256; }

 private:
  // Caches scratch of products: asking the library costs as much as a small compile, and layers repeat their products.
  mutable std::map<std::vector<int64_t>, uint64_t> products_;
};

}  // namespace snug
