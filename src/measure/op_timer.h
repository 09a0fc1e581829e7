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

// An op to be timed.
struct Sample {
  Attrs attrs;
  OperandList list;
  RuntimeScalars pass{};
  FillOperands fill{};
};

class OpTimer {
 public:
  // What a backend's caches ask for: sets of operands together fill about `round` bytes; what is only read lies in
  // `half` bytes, what is written in as many.
  struct Room {
    uint64_t half = 112u << 20, round = 24u << 20;
  };
  OpTimer(Backend& backend, const OpFacts& facts, Clock clock, const Room& room);

  // From here on a card does large products and some copies before what takes long is timed, so that it runs at the
  // clock that it holds within its power while it trains. Takes some of the room.
  void keep_hot();

  // Seconds of one launch, on the calling thread's team or a card: the lower quartile of some. Launches go round
  // several sets of operands, so that little of what one reads is in the innermost caches, as in a step.
  double seconds(const Sample& sample);
  // Of each of several, none of which reads floats and writes over them. On a card that is kept hot what takes long is
  // timed in rounds, in which the card never rests, and the median counts: after a rest of 30 ms it runs 15 % faster
  // for longer than any op is timed.
  std::vector<double> seconds(std::span<const Sample> samples);
  // The op as work() counts it.
  static Work work_of(const Attrs& attrs, const OperandList& list);

 private:
  // Launches on sets of operands, one after the other.
  struct Bound {
    std::vector<Launch> launches;
    RuntimeScalars pass;
    double once = 0;  // seconds of one launch by itself, where launches only enqueue
    size_t next = 0;
  };

  // The op with the scratch that it asks for.
  Op with_scratch(const Attrs& attrs, const OperandList& list) const;
  std::vector<TensorView> place(std::vector<Operand>& operands, uint64_t& read_end, uint64_t& write_end);
  void prepare(std::span<const Operand> operands, std::span<const TensorView> views, const FillOperands& fill);
  // Launched once on every set.
  Bound bind(const Sample& sample);
  void heat(double seconds);
  // Seconds of a launch of so many.
  double burst(Bound& bound, size_t launches);
  double time(Bound& bound);
  // By place in `which`.
  std::vector<double> time_in_rounds(std::vector<Bound>& bound, std::span<const size_t> which);

  Backend& backend_;
  const OpFacts& facts_;
  Clock clock_;
  Room room_;
  uint64_t integers_ = 0;     // bytes at the arena's start that integers of bound ops take
  std::vector<Launch> heat_;  // of a card that is kept hot, one after the other
  ProgramSet set_;
  MemoryPlan plan_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace snug
