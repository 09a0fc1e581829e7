// Real ops of a backend, timed on addresses in one arena.
#pragma once

#include <memory>

#include "backend/arena.h"
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

// Writes what an op must find in its integers, which are 0, 1, 2, ... modulo 512 before; floats are normally
// distributed, as a processor's power goes by the bits that change.
using FillOperands = std::function<void(std::span<const TensorView>)>;

class OpTimer {
 public:
  // What a backend's caches ask for: sets of operands together fill about `round` bytes; what is only read lies in
  // `half` bytes, what is written in as many.
  struct Room {
    uint64_t half = 112u << 20, round = 24u << 20;
  };
  OpTimer(Backend& backend, const OpFacts& facts, Clock clock, const Room& room);

  // From here on a card does large products before what takes long is timed, so that it runs at the clock that it holds
  // within its power while it trains. Takes some of the room.
  void keep_hot();

  // Seconds of one launch, on the calling thread's team or a card: the lower quartile of some. Launches go round
  // several sets of operands, so that little of what one reads is in the innermost caches, as in a step.
  double seconds(const Attrs& attrs, const OperandList& list, const PassFacts& pass = {},
                 const FillOperands& fill = {});
  // The op as work() counts it.
  static Work work_of(const Attrs& attrs, const OperandList& list);

 private:
  // The op with the scratch that it asks for.
  Op with_scratch(const Attrs& attrs, const OperandList& list) const;
  std::vector<TensorView> place(std::vector<Operand>& operands, uint64_t& read_end, uint64_t& write_end);
  void prepare(std::span<const Operand> operands, std::span<const TensorView> views, const FillOperands& fill);
  void heat(double seconds);
  double time(std::span<const Launch> launches, const PassFacts& pass);

  Backend& backend_;
  const OpFacts& facts_;
  Clock clock_;
  Room room_;
  Launch heat_;
  ProgramSet set_;
  MemoryPlan plan_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace snug
