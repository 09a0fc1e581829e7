// Takes the operands that optimizers' ops share: of the weights that they change.
#pragma once

#include "backend/operands.h"
#include "tensor/step_scalars.h"
#include "tensor/view.h"

namespace snug {

struct UpdatedWeight {
  TensorView weight;  // "w": fp32, or bf16 where it is split
  TensorView lo;      // "lo": then the bits that complete it
  bool split = false;
};

// Holds a gradient and the scales of its rows and columns: null where they are not there.
struct ScaledOperands {
  TensorView g, column_scales;
  const float* row_scales = nullptr;
};
ScaledOperands scaled_operands(Operands& operands, bool rows, bool columns);

// Takes all operands of ChannelScales.
struct ChannelScalesOperands {
  TensorView squares, scales;
};
ChannelScalesOperands channel_scales_operands(Operands& operands);

const StepScalars* take_step_scalars(Operands& operands);

// Takes `count` weights, as numbers of 32 bits in one operand or, split, in two (backend/master.h).
UpdatedWeight updated_weight(Operands& operands, bool split, int64_t count);

// Returns what `use` returns for them as a backend's kernels read and write them: Plain{w} or Split{w, lo}.
template <class Plain, class Split, class Use>
auto with_weight(const UpdatedWeight& of, const Use& use) {
  if (of.split) return use(Split{of.weight.as<BFloat16>(), of.lo.as<int16_t>()});
  return use(Plain{of.weight.as<float>()});
}

}  // namespace snug
