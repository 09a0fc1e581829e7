// Facts of a backend whose kernels need nothing for themselves.
#pragma once

#include "program/facts.h"

namespace snug {

// What kernels need differs from processor to processor, and with it what is planned.
class NoScratch : public OpFacts {
 public:
  uint64_t scratch_bytes(const Attrs&, std::span<const Operand>) const override { return 0; }
  uint64_t alignment() const override { return 256; }
};

}  // namespace snug
