#include "program/swiglu_gemm.h"

#include "program/adapter.h"
#include "program/emitter.h"

namespace snug {

template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluGemm& op, std::span<const View> operands) {
  expect_operands(op, operands.size());
  const size_t factors = factor_count(op);
  const View& gate_up = operands[factors];
  std::vector<View> linear(operands.begin(), operands.begin() + static_cast<ptrdiff_t>(factors) + 1);
  std::vector<OpCall<View>> calls;
  if (op.parts.count() > 0)
    calls.push_back({AdaptedGemm{.transpose_b = true, .parts = op.parts}, std::move(linear)});
  else
    calls.push_back({Gemm{.transpose_b = true}, std::move(linear)});
  if (op.result) calls.push_back({SwiGlu{op.activation}, {read(gate_up), operands[factors + 1]}});
  return calls;
}

template <class View>
std::vector<OpCall<View>> ops_of(const SwiGluGemmBackward& op, std::span<const View> operands) {
  expect_operands(op, operands.size());
  const size_t factors = factor_count(op);
  const View &gate_up = operands[factors], &dgate_up = operands[factors + 1], &dh = operands[factors + 2];
  std::vector<View> linear(operands.begin(), operands.begin() + static_cast<ptrdiff_t>(factors));
  linear.push_back(dh);
  std::vector<OpCall<View>> calls;
  if (op.adapted)
    calls.push_back({AdaptedGemm{}, std::move(linear)});
  else
    calls.push_back({Gemm{}, std::move(linear)});
  calls.push_back({SwiGluBackward{op.restore, op.activation}, {op.restore ? update(dh) : read(dh), gate_up, dgate_up}});
  return calls;
}

#define SNUG_INSTANTIATE(View)                                                         \
  template std::vector<OpCall<View>> ops_of(const SwiGluGemm&, std::span<const View>); \
  template std::vector<OpCall<View>> ops_of(const SwiGluGemmBackward&, std::span<const View>);
SNUG_INSTANTIATE(Operand)
SNUG_INSTANTIATE(TensorView)
#undef SNUG_INSTANTIATE

}  // namespace snug
