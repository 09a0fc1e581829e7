// Emits Muon's orthogonalisation of matrices (Jordan et al., 2024): their singular values become about 1, by products
// alone.
#pragma once

#include <array>
#include <span>

#include "program/emitter.h"

namespace snug {

class Orthogonalizer {
 public:
  // Takes room beside any one of these matrices, the same for the largest on every rank, whichever of them it works
  // out.
  Orthogonalizer(Emitter& emitter, DType dtype, std::span<const Shape> matrices);

  // Puts about U V^T, of the singular value decomposition U S V^T of `matrix`, times `factor`, in its place: five turns
  // of X = a X + b G X + c G G X with G = X X^T (or of the transposed, where there are more rows than columns), from
  // the matrix over its Frobenius norm.
  void orthogonalize(const Operand& matrix, double factor);

 private:
  Emitter& emitter_;
  std::array<Operand, 2> x_;  // [the most elements]
  Operand gram_, polynomial_, partials_, sum_;
};

// Returns the operations that the products of one such matrix take.
double orthogonalize_flops(const Shape& matrix);

}  // namespace snug
