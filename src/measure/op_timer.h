// Times real ops of a backend, on addresses in one arena.
#pragma once

#include <memory>

#include "backend/arena.h"
#include "measure/measure.h"

namespace snug {

// Lists operands of an op to be timed; operands with one `buffer` share their bytes.
class OperandList {
 public:
  OperandList& r(DType dtype, const Shape& shape) { return add(Access::Read, dtype, shape); }
  OperandList& w(DType dtype, const Shape& shape) { return add(Access::Write, dtype, shape); }
  OperandList& rw(DType dtype, const Shape& shape) { return add(Access::ReadWrite, dtype, shape); }
  // Adds the bytes of the operand before it once more.
  OperandList& again(Access access);
  const std::vector<Operand>& operands() const { return operands_; }

 private:
  OperandList& add(Access access, DType dtype, const Shape& shape);
  std::vector<Operand> operands_;
};

// Writes integers that an op needs; they are 0, 1, 2, ... modulo 512 before. Floats are normally distributed, as a
// processor's power depends on the bits that change.
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
  // Says how much room a backend's caches ask for: sets of operands together fill about `round` bytes; operands that
  // are only read lie in `half` bytes, written ones in another `half`.
  struct Room {
    uint64_t half = 112u << 20, round = 24u << 20;
  };
  OpTimer(Backend& backend, const OpFacts& facts, Clock clock, const Room& room);

  // Makes a card do large products and some copies, from now on, before a long op is timed, so that it runs at the
  // clock that it holds within its power limit in training. Takes some of the room.
  void keep_hot();

  // Returns the seconds of one launch, on the calling thread's team or a card: the lower quartile of several launches.
  // These go round several sets of operands, so that, as in a step, little of what one reads is in the innermost
  // caches.
  double seconds(const Sample& sample);
  // Returns the seconds of each of several samples, none of which reads floats and writes over them. On a card that is
  // kept hot, long ops are timed in rounds in which the card never rests, and the median counts: after a rest of 30 ms
  // a card runs 15 % faster for longer than any op is timed.
  std::vector<double> seconds(std::span<const Sample> samples);
  // Returns the op's work as work() counts it.
  static Work work_of(const Attrs& attrs, const OperandList& list);

 private:
  // Holds launches on sets of operands, which take turns.
  struct Bound {
    std::vector<Launch> launches;
    RuntimeScalars pass;
    double once = 0;  // seconds of one launch by itself, where launches only enqueue
    size_t next = 0;
  };

  // Returns the op with the scratch that it asks for.
  Op with_scratch(const Attrs& attrs, const OperandList& list) const;
  std::vector<TensorView> place(std::vector<Operand>& operands, uint64_t& read_end, uint64_t& write_end);
  void prepare(std::span<const Operand> operands, std::span<const TensorView> views, const FillOperands& fill);
  // Binds the sample on every set of operands, and launches each once.
  Bound bind(const Sample& sample);
  void heat(double seconds);
  // Returns the seconds of one launch out of `launches`.
  double burst(Bound& bound, size_t launches);
  double time(Bound& bound);
  // Returns medians by place in `which`.
  std::vector<double> time_in_rounds(std::vector<Bound>& bound, std::span<const size_t> which);

  Backend& backend_;
  const OpFacts& facts_;
  Clock clock_;
  Room room_;
  uint64_t integers_ = 0;     // bytes at the arena's start, for integers of bound ops
  std::vector<Launch> heat_;  // launches that keep a card hot, in turn
  ProgramSet set_;
  MemoryPlan plan_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace snug
