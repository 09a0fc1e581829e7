// Declares what planning must know about a backend: plain numbers, so that no backend is needed.
#pragma once

#include <span>
#include <string_view>

#include "program/program.h"

namespace snug {

// Holds how much an op computes and moves, from which its time is forecast.
struct Work {
  double flops = 0;  // of products
  double bytes = 0;  // read and written
};

// Says what an op runs as. This follows from its shapes, its dtypes and the kind of device alone, never from where
// values lie or what is kept. The texts are static.
struct Kernel {
  std::string_view name{};  // "wgmma tiles"; empty: the backend has one kernel for the op
  bool composed = false;    // run as the ops of which it is made (program/op_call.h)
  std::string_view slow{};  // why it is not the device's fastest kernel for such an op; empty: it is the fastest
  // Holds, for attention, the columns of a head that the kernel computes, padding included; 0: as many as the head has.
  int64_t columns = 0;
  bool without_tensor_cores = false;  // it runs at the rates of fp32, whatever its dtypes are
  // Says by what an op takes longer than at its kind's rate: its kernel is not the one that has the rate, or its work
  // is cut into too few parts for the device.
  double stretch = 1;
};

class OpFacts {
 public:
  virtual ~OpFacts() = default;
  // Returns what backends and prices agree on: unless overridden, a composite op runs as the ops of which it is made.
  virtual Kernel kernel(const Attrs& attrs, std::span<const Operand> operands) const;
  // Returns the bytes of scratch that the op needs beyond its operands; 0 for most ops. When the op is bound, the
  // number is compared with what the library asks for, and a run refuses to start if the library asks for more.
  virtual uint64_t scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const = 0;
  // Returns the alignment of every buffer's start, in bytes: a power of two.
  virtual uint64_t alignment() const = 0;
};

// Returns the operations and bytes of an op. They follow from its attributes and operands alone, on every backend.
Work work(const Op& op);

// Returns the length of a document in which, if tokens see all tokens up to themselves, one attends to as many on
// average as a token of the longest document does as the attributes say.
double seen_length(const Attention& attention);

}  // namespace snug
