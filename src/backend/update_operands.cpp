#include "backend/update_operands.h"

namespace snug {

ScaledOperands scaled_operands(Operands& operands, bool rows, bool columns) {
  ScaledOperands of;
  of.g = operands.dense("g", kActivation);
  if (rows) of.row_scales = operands.vector("row_scales", {DType::F32}, of.g.rows()).as<float>();
  if (columns) of.column_scales = operands.vector("column_scales", {DType::F32}, of.g.cols());
  return of;
}

ChannelScalesOperands channel_scales_operands(Operands& operands) {
  ChannelScalesOperands of{operands.dense("squares", {DType::F32}), operands.dense("scales", {DType::F32})};
  operands.expect(of.squares.rows() == 2 && (of.squares.cols() == 1 || of.squares.cols() == of.scales.count()),
                  "found squares of {} for {} scales, expected 2 rows of one or of as many",
                  to_string(of.squares.shape), of.scales.count());
  operands.done();
  return of;
}

const StepScalars* take_step_scalars(Operands& operands) {
  return step_scalars(operands.vector("scalars", {DType::F32}, kStepScalars));
}

UpdatedWeight updated_weight(Operands& operands, bool split, int64_t count) {
  UpdatedWeight taken;
  taken.split = split;
  taken.weight = operands.vector("w", {split ? DType::BF16 : DType::F32}, count);
  if (split) taken.lo = operands.vector("lo", {DType::I16}, count);
  return taken;
}

}  // namespace snug
