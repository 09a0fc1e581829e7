#include "plan/lowering/orthogonalize.h"

#include <algorithm>
#include <utility>

#include "base/rounding.h"

namespace snug {
namespace {

constexpr int kTurns = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;  // Jordan's, as torch.optim.Muon has them

int64_t side_of(const Shape& matrix) { return std::min(matrix.rows(), matrix.cols()); }

// Returns the beginning of a vector as a matrix.
Operand matrix_in(const Operand& room, const Shape& shape) { return reshaped(elements(room, 0, shape.count()), shape); }

}  // namespace

Orthogonalizer::Orthogonalizer(Emitter& emitter, DType dtype, std::span<const Shape> matrices) : emitter_(emitter) {
  int64_t most = 0, side = 0;
  for (const Shape& matrix : matrices) {
    most = std::max(most, matrix.count());
    side = std::max(side, side_of(matrix));
  }
  for (Operand& x : x_) x = emitter.tensor("x", dtype, {most}, Role::State);
  gram_ = emitter.tensor("gram", dtype, {side * side}, Role::State);
  polynomial_ = emitter.tensor("polynomial", dtype, {side * side}, Role::State);
  partials_ = emitter.tensor("partials", DType::F32, {ceil_div(most, kUnit)}, Role::Metrics);
  sum_ = emitter.tensor("sum", DType::F32, {1}, Role::Metrics);
}

// The products' factors are chosen so that every sum has a factor of 1 on its addend: `x` is X over `scale`, `gram` is
// b G, and `polynomial` is b G + c G G.
void Orthogonalizer::orthogonalize(const Operand& matrix, double factor) {
  const Shape& shape = matrix.shape;
  const int64_t side = side_of(shape), units = ceil_div(shape.count(), kUnit);
  const bool wide = shape.rows() <= shape.cols();
  const Operand gram = matrix_in(gram_, {side, side}), polynomial = matrix_in(polynomial_, {side, side}),
                partials = elements(partials_, 0, units);
  Operand x = matrix_in(x_[0], shape), next = matrix_in(x_[1], shape);
  emitter_.op("partials", NormPartials{}, {read(flat(matrix)), write(partials)});
  emitter_.op("sum", TreeSum{units}, {read(reshaped(partials, {1, units})), write(sum_)});
  emitter_.op("normalize", Normalize{}, {read(flat(matrix)), read(sum_), write(flat(x))});
  double scale = 1;
  for (int turn = 0; turn < kTurns; turn++, scale *= kA, std::swap(x, next)) {
    emitter_.op("gram", Gemm{!wide, wide, static_cast<float>(kB * scale * scale)}, {read(x), read(x), write(gram)});
    emitter_.op("polynomial", Gemm{.alpha = static_cast<float>(kC / (kB * kB)), .addend = true},
                {read(gram), read(gram), read(gram), write(polynomial)});
    emitter_.op("turn", Gemm{.alpha = static_cast<float>(1 / kA), .addend = true},
                {read(wide ? polynomial : x), read(wide ? x : polynomial), read(x), write(next)});
  }
  emitter_.op("scale", Rescale{static_cast<float>(factor * scale)}, {read(x), write(matrix)});
}

double orthogonalize_flops(const Shape& matrix) {
  const auto side = static_cast<double>(side_of(matrix)),
             length = static_cast<double>(std::max(matrix.rows(), matrix.cols()));
  return kTurns * 2 * side * side * (2 * length + side);
}

}  // namespace snug
