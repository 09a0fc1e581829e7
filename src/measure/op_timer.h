// Real ops of the CPU backend, timed on addresses in one arena.
#pragma once

#include <memory>

#include "backend/arena.h"
#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "measure/measure.h"

namespace snug {

// Operands of an op to be timed; operands with the same `buffer` share their bytes.
class OperandList {
 public:
  OperandList& r(DType dtype, const Shape& shape) { return add(Access::Read, dtype, shape); }
  OperandList& w(DType dtype, const Shape& shape) { return add(Access::Write, dtype, shape); }
  OperandList& rw(DType dtype, const Shape& shape) { return add(Access::ReadWrite, dtype, shape); }
  // The bytes of the operand before it, once more.
  OperandList& again(Access access);
  const std::vector<Operand>& operands() const { return operands_; }

 private:
  OperandList& add(Access access, DType dtype, const Shape& shape);
  std::vector<Operand> operands_;
};

// Writes what an op must find in its operands; integers are 0, 1, 2, ... modulo 512 before, floats small numbers.
using FillOperands = std::function<void(std::span<const TensorView>)>;

class OpTimer {
 public:
  explicit OpTimer(Clock clock);

  // Seconds of one launch on the calling thread's team: the lower quartile of some. Launches go round several sets of
  // operands, so that little of what one reads is in the innermost caches, as in a step.
  double seconds(const Attrs& attrs, const OperandList& list, const PassFacts& pass = {},
                 const FillOperands& fill = {});
  // The op as work() counts it.
  static Work work_of(const Attrs& attrs, const OperandList& list);

 private:
  std::vector<TensorView> place(std::vector<Operand>& operands, uint64_t& read_end, uint64_t& write_end);
  void prepare(std::span<const Operand> operands, std::span<const TensorView> views, const FillOperands& fill);

  Clock clock_;
  CpuBackend backend_;
  CpuFacts facts_;
  ProgramSet set_;
  MemoryPlan plan_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace snug
