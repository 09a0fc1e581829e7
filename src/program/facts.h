// What planning must know of a backend: plain numbers, without the backend.
#pragma once

#include <span>

#include "program/program.h"

namespace snug {

// What an op does, for the forecast of its time.
struct Work {
  double flops = 0;  // of products
  double bytes = 0;  // read and written
};

class OpFacts {
 public:
  virtual ~OpFacts() = default;
  // Bytes of scratch that the op needs beyond its operands; 0 for most. The same number is held against the library's
  // own word when the op is bound, and a run refuses to start above it.
  virtual uint64_t scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const = 0;
  // Of every buffer's start, in bytes: a power of two.
  virtual uint64_t alignment() const = 0;
};

// Operations and bytes of an op, from its attributes and operands alone: the same on every backend.
Work work(const Op& op);

// As long as a document would be whose tokens see as many others on average as those of the longest do through a window
// (Attention).
double seen_length(int64_t longest, int64_t window);

}  // namespace snug
