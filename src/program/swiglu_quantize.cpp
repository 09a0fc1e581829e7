#include "program/swiglu_quantize.h"

#include "program/emitter.h"

namespace snug {
namespace {

// Returns the Quantize of x, whose codes, scales and perhaps column scales stand from `codes` on.
template <class View>
OpCall<View> quantize(const View& x, const View* factors, bool column_scales, std::span<const View> codes) {
  std::vector<View> operands{read(x)};
  if (factors) operands.push_back(*factors);
  for (size_t i = 0; i < 2u + column_scales; i++) operands.push_back(codes[i]);
  return {Quantize{BaseFormat::Fp8, factors != nullptr, false, column_scales}, std::move(operands)};
}

}  // namespace

template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluQuantize& op, std::span<const View> operands) {
  expect_operands(op, operands.size());
  const View &gate_up = operands[0], &h = operands[1];
  return {{SwiGlu{op.activation}, {gate_up, h}},
          quantize(h, static_cast<const View*>(nullptr), op.column_scales, operands.subspan(before_codes(op)))};
}

template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluBackwardQuantize& op, std::span<const View> operands) {
  expect_operands(op, operands.size());
  const View &dh = operands[0], &gate_up = operands[1], &factors = operands[2], &dgate_up = operands[3];
  return {{SwiGluBackward{op.restore, op.activation}, {dh, gate_up, dgate_up}},
          quantize(dgate_up, &factors, op.column_scales, operands.subspan(before_codes(op)))};
}

#define SNUG_INSTANTIATE(View)                                                             \
  template std::vector<OpCall<View>> ops_of(const SwiGluQuantize&, std::span<const View>); \
  template std::vector<OpCall<View>> ops_of(const SwiGluBackwardQuantize&, std::span<const View>);
SNUG_INSTANTIATE(Operand)
SNUG_INSTANTIATE(TensorView)
#undef SNUG_INSTANTIATE

}  // namespace snug
