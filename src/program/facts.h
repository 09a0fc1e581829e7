// What planning must know of a backend: plain numbers, without the backend.
#pragma once

#include <span>
#include <string_view>

#include "program/program.h"

namespace snug {

// What an op does, for the forecast of its time.
struct Work {
  double flops = 0;  // of products
  double bytes = 0;  // read and written
};

// What an op runs as, by its shapes and dtypes and the kind of device alone: never by where anything lies or what is
// kept. Texts are static.
struct Kernel {
  std::string_view name{};  // "wgmma tiles"; empty: there is but one
  bool composed = false;    // run as the ops that it is made of (program/op_call.h)
  std::string_view slow{};  // why it is not the device's fastest for such an op, in words; empty: it is
  // Of attention: columns of a head as the kernel computes them, padding included; 0: as many as it has.
  int64_t columns = 0;
  bool without_tensor_cores = false;  // it has the rates of fp32, whatever its numbers are
};

class OpFacts {
 public:
  virtual ~OpFacts() = default;
  // What backends and prices share. Unless said otherwise, what can be made of other ops is.
  virtual Kernel kernel(const Attrs& attrs, std::span<const Operand> operands) const;
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
