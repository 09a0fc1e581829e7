#include "backend/update_operands.h"

namespace snug {

namespace {

float* number(Operands& operands, std::string_view what) { return operands.vector(what, {DType::F32}, 1).as<float>(); }

}  // namespace

const StepScalars* take_step_scalars(Operands& operands) {
  return step_scalars(operands.vector("scalars", {DType::F32}, kStepScalars));
}

ScaledOperands scaled_operands(Operands& operands, bool rows, bool columns) {
  ScaledOperands of;
  of.g = operands.dense("g", kActivation);
  if (rows) of.row_scales = operands.vector("row_scales", {DType::F32}, of.g.rows()).as<float>();
  if (!columns) return of;
  of.of_columns = operands.vector("column_scales", {DType::F32}, of.g.cols());
  of.column_scales = of.of_columns.as<float>();
  return of;
}

FactoredMeansOperands factored_means_operands(Operands& operands) {
  FactoredMeansOperands of{};
  of.g = operands.dense("g", kActivation);
  of.rows = operands.vector("rows", {DType::F32}, of.g.rows());
  of.columns = operands.vector("columns", {DType::F32}, of.g.cols());
  of.scalars = take_step_scalars(operands);
  operands.done();
  return of;
}

FactoredScalesOperands factored_scales_operands(Operands& operands) {
  FactoredScalesOperands of{};
  of.rows = operands.dense("rows", {DType::F32});
  of.columns = operands.dense("columns", {DType::F32});
  of.mean = number(operands, "mean");
  of.row_scales = operands.vector("row_scales", {DType::F32}, of.rows.count()).as<float>();
  of.column_scales = operands.vector("column_scales", {DType::F32}, of.columns.count()).as<float>();
  operands.done();
  return of;
}

ProjectedMomentsOperands projected_moments_operands(Operands& operands) {
  ProjectedMomentsOperands of{};
  of.low = operands.dense("low", {DType::F32});
  of.m = operands.vector("m", {DType::F32}, of.low.count()).as<float>();
  of.v = operands.vector("v", {DType::F32}, of.low.count()).as<float>();
  of.squares = operands.vector("squares", {DType::F32}, 2 * of.low.rows()).as<float>();
  of.scalars = take_step_scalars(operands);
  operands.done();
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

GrowthLimitOperands growth_limit_operands(Operands& operands) {
  GrowthLimitOperands of{};
  of.square = number(operands, "square");
  of.last = number(operands, "last");
  of.factor = number(operands, "factor");
  of.scalars = take_step_scalars(operands);
  operands.done();
  return of;
}

UpdatedWeight updated_weight(Operands& operands, bool split, int64_t count) {
  UpdatedWeight taken;
  taken.split = split;
  taken.weight = operands.vector("w", {split ? DType::BF16 : DType::F32}, count);
  if (split) taken.lo = operands.vector("lo", {DType::I16}, count);
  return taken;
}

}  // namespace snug
