// Emits APOLLO's updates of matrices (Zhu et al., arXiv:2412.05270).
#pragma once

#include <span>

#include "plan/lowering/scale_matrix.h"
#include "plan/spec/arrangement.h"

namespace snug {

class Apollo {
 public:
  // What is kept of a matrix, in fp32: moments of its projected gradient [channels, rank], and its last update's norm
  // [1].
  struct State {
    Operand first, second, norm;
  };

  // Takes room beside any one of these matrices, whose gradients are of this dtype.
  Apollo(Emitter& emitter, const Numerics& numerics, DType gradient, std::span<const Shape> matrices);

  // Brings the state of a parameter forward by its gradient, in whose place it puts the update.
  void direct(const Operand& gradient, ParamId id, const State& state, const Operand& scalars);

 private:
  Emitter& emitter_;
  const Numerics& numerics_;
  MatrixScaler scaler_;
  Operand projection_, low_, squares_, sums_, scales_, factor_;
};

}  // namespace snug
