#include "backend/op_operands.h"

#include <algorithm>
#include <cmath>

#include "base/rounding.h"

namespace snug {
namespace {

// Takes the gain of a norm of x's rows, or of each of their heads: as many elements as a part of a row has, or a row
// of these for each part.
const TensorView& norm_gain(Operands& operands, const TensorView& x) {
  const TensorView& gain = operands.dense("gain", kActivation);
  operands.expect(gain.count() > 0 && x.cols() % gain.count() == 0, "'gain' is {}, expected a divisor of {} elements",
                  to_string(gain.shape), x.cols());
  operands.expect(gain.rows() == 1 || gain.count() == x.cols(), "'gain' is {}, expected a row for each of {} heads",
                  to_string(gain.shape), x.cols() / gain.cols());
  return gain;
}

NormSize norm_size(const TensorView& x, const TensorView& gain) {
  const int64_t heads = x.cols() / gain.cols();
  return {x.rows() * heads, gain.cols(), heads, gain.rows()};
}

// RMSNorm's heads share their gain.
void expect_one_gain(const NormSize& size, const Operands& operands) {
  operands.expect(size.gains == 1, "found a gain for each of {} heads, expected one", size.gains);
}

TensorView same_size(Operands& operands, std::string_view name, const TensorView& x) {
  return operands.matrix(name, {x.dtype}, x.rows(), x.cols());
}

void expect_restorable(bool restore, const NormSize& size, const Operands& operands) {
  operands.expect(size.heads == 1 || !restore, "found restore by {} heads, expected none", size.heads);
}

}  // namespace

RmsNormOperands rms_norm_operands(Operands& operands) {
  RmsNormOperands of{};
  of.x = operands.take("x", kActivation);
  of.gain = norm_gain(operands, of.x);
  of.y = same_size(operands, "y", of.x);
  of.size = norm_size(of.x, of.gain);
  expect_one_gain(of.size, operands);
  of.rstd = operands.vector("rstd", {DType::F32}, of.size.rows).as<float>();
  return of;
}

RmsNormBackwardOperands rms_norm_backward_operands(const RmsNormBackward& norm, Operands& operands) {
  RmsNormBackwardOperands of{};
  of.dy = operands.take("dy", kActivation);
  of.x = same_size(operands, "x", of.dy);
  of.gain = norm_gain(operands, of.dy);
  of.size = norm_size(of.dy, of.gain);
  expect_one_gain(of.size, operands);
  expect_restorable(norm.restore, of.size, operands);
  of.rstd = operands.vector("rstd", {DType::F32}, of.size.rows).as<float>();
  of.dx = same_size(operands, "dx", of.dy);
  if (norm.gain_gradient) of.dgain = operands.vector("dgain", kActivation, of.size.cols);
  return of;
}

LayerNormOperands layer_norm_operands(const LayerNorm& norm, Operands& operands) {
  LayerNormOperands of{};
  of.x = operands.take("x", kActivation);
  of.gain = norm_gain(operands, of.x);
  of.size = norm_size(of.x, of.gain);
  if (norm.bias) of.bias = operands.vector("bias", {of.gain.dtype}, of.gain.count());
  of.y = same_size(operands, "y", of.x);
  of.moments = operands.vector("moments", {DType::F32}, 2 * of.size.rows).as<float>();
  return of;
}

LayerNormBackwardOperands layer_norm_backward_operands(const LayerNormBackward& norm, Operands& operands) {
  LayerNormBackwardOperands of{};
  of.dy = operands.take("dy", kActivation);
  of.x = same_size(operands, "x", of.dy);
  of.gain = norm_gain(operands, of.dy);
  of.size = norm_size(of.dy, of.gain);
  expect_restorable(norm.restore, of.size, operands);
  if (norm.bias) of.bias = operands.vector("bias", {of.gain.dtype}, of.gain.count());
  of.moments = operands.vector("moments", {DType::F32}, 2 * of.size.rows).as<float>();
  of.dx = same_size(operands, "dx", of.dy);
  if (norm.gain_gradient) of.dgain = operands.vector("dgain", kActivation, of.gain.count());
  if (norm.bias_gradient) of.dbias = operands.vector("dbias", kActivation, of.gain.count());
  return of;
}

AdaptedNormsOperands adapted_norms_operands(Operands& operands) {
  AdaptedNormsOperands of{};
  of.wa = operands.take("wa", {DType::F32});
  const int64_t n = of.wa.rows(), rank = of.wa.cols();
  of.aa = operands.matrix("aa", {DType::F32}, rank, rank);
  of.b = operands.matrix("b", kActivation, n, rank);
  of.norms = operands.vector("norms", {DType::F32}, n).as<float>();
  of.initial = operands.vector("initial", {DType::F32}, n).as<float>();
  of.change = operands.vector("change", kActivation, n);
  of.factors = operands.matrix("factors", {DType::F32}, 2, n);
  operands.done();
  return of;
}

namespace {

TensorView factors_of(Operands& operands, const AdaptedParts& parts, int64_t cols) {
  int64_t done = 0;
  for (size_t i = 0; i < parts.begin.size(); i++) {
    if (parts.end[i] <= parts.begin[i]) continue;
    operands.expect(done <= parts.begin[i] && parts.end[i] <= cols, "a part has columns {} to {}, expected {} to {}",
                    parts.begin[i], parts.end[i], done, cols);
    done = parts.end[i];
  }
  return operands.matrix("factors", {DType::F32}, 2, parts.columns());
}

}  // namespace

ScaleColumnsOperands scale_columns_operands(const ScaleColumns& scale, Operands& operands) {
  ScaleColumnsOperands of{};
  of.z = operands.take("z", kActivation);
  of.factors = factors_of(operands, scale.parts, of.z.cols());
  if (scale.addend) of.c = same_size(operands, "c", of.z);
  if (scale.bias) of.bias = operands.vector("bias", {of.z.dtype}, of.z.cols());
  of.y = same_size(operands, "y", of.z);
  operands.done();
  return of;
}

ScaleColumnsBackwardOperands scale_columns_backward_operands(const ScaleColumnsBackward& scale, Operands& operands) {
  ScaleColumnsBackwardOperands of{};
  of.dy = operands.take("dy", kActivation);
  of.z = same_size(operands, "z", of.dy);
  of.factors = factors_of(operands, scale.parts, of.dy.cols());
  of.dz = same_size(operands, "dz", of.dy);
  of.dm = operands.vector("dm", kActivation, scale.parts.columns());
  operands.done();
  return of;
}

SetRowNormsOperands set_row_norms_operands(Operands& operands) {
  SetRowNormsOperands of{};
  of.x = operands.take("x", {DType::F32});
  of.magnitudes = operands.vector("magnitudes", {DType::F32}, of.x.rows()).as<float>();
  operands.done();
  return of;
}

ActivateBackwardOperands activate_backward_operands(Operands& operands) {
  ActivateBackwardOperands of;
  of.dh = operands.take("dh", kActivation);
  of.x = same_size(operands, "x", of.dh);
  of.dx = same_size(operands, "dx", of.dh);
  operands.done();
  return of;
}

SwiGluOperands swiglu_operands(Operands& operands) {
  SwiGluOperands of;
  of.gate_up = operands.take("gate_up", kActivation);
  operands.expect(of.gate_up.cols() % 2 == 0, "'gate_up' has {} columns, expected an even number", of.gate_up.cols());
  of.h = operands.matrix("h", {of.gate_up.dtype}, of.gate_up.rows(), of.gate_up.cols() / 2);
  operands.done();
  return of;
}

SwiGluBackwardOperands swiglu_backward_operands(Operands& operands) {
  SwiGluBackwardOperands of;
  of.dh = operands.take("dh", kActivation);
  of.gate_up = operands.matrix("gate_up", {of.dh.dtype}, of.dh.rows(), 2 * of.dh.cols());
  of.dgate_up = same_size(operands, "dgate_up", of.gate_up);
  operands.done();
  return of;
}

TensorView sum_operand(Operands& operands, const TensorView& x) {
  const TensorView sum = operands.take("sum", kFloat);
  operands.expect(sum.cols() == x.cols() && (sum.rows() == x.rows() || (x.rows() > 0 && sum.rows() % x.rows() == 0)),
                  "'sum' is {}, expected as many rows as {} has, or a multiple", to_string(sum.shape),
                  to_string(x.shape));
  return sum;
}

RescaleOperands rescale_operands(const Rescale& rescale, Operands& operands) {
  RescaleOperands of;
  of.x = operands.take("x", kActivation);
  of.c = rescale.addend ? same_size(operands, "c", of.x) : of.x;
  of.y = same_size(operands, "y", of.x);
  operands.done();
  return of;
}

DropoutOperands dropout_operands(const Dropout& dropout, Operands& operands) {
  DropoutOperands of{};
  of.x = operands.take("x", kActivation);
  of.y = same_size(operands, "y", of.x);
  operands.expect(0 <= dropout.p && dropout.p < 1, "p is {}, expected at least 0 and less than 1", dropout.p);
  operands.done();
  // Compares as Random::uniform() >= p, in whole numbers.
  of.least = static_cast<uint32_t>(std::ceil(dropout.p * 0x1p24));
  of.scale = static_cast<float>(1 / (1 - dropout.p));
  return of;
}

EmbeddingNoiseOperands embedding_noise_operands(Operands& operands) {
  EmbeddingNoiseOperands of{};
  of.x = operands.take("x", kActivation);
  const TensorView& documents = operands.dense("documents", kIndex);
  of.documents = documents.as<int32_t>();
  of.most_documents = documents.count() - 1;
  operands.done();
  return of;
}

int64_t documents_of(const RuntimeScalars& runtime, const EmbeddingNoiseOperands& of) {
  check(0 <= runtime.documents && runtime.documents <= of.most_documents, "embedding_noise: {} documents of {}",
        runtime.documents, of.most_documents);
  return runtime.documents;
}

EmbeddingBackwardOperands embedding_backward_operands(Operands& operands) {
  EmbeddingBackwardOperands of{};
  of.dx = operands.take("dx", kActivation);
  const int64_t tokens = of.dx.rows(), cols = of.dx.cols();
  of.order = operands.vector("token_order", kIndex, tokens).as<int32_t>();
  of.starts = operands.vector("segment_starts", kIndex, tokens + 1).as<int32_t>();
  of.ids = operands.vector("segment_ids", kIndex, tokens).as<int32_t>();
  of.dtable = operands.take("dtable", kActivation);
  operands.expect(of.dtable.cols() == cols, "'dtable' is {}, expected {} columns", to_string(of.dtable.shape), cols);
  operands.done();
  return of;
}

int64_t segments_of(const EmbeddingBackward& embedding, const RuntimeScalars& runtime, int64_t tokens) {
  const int64_t segments = embedding.patches ? runtime.patch_segments : runtime.segments;
  check(0 <= segments && segments <= tokens, "embedding_backward: {} segments of {} rows", segments, tokens);
  return segments;
}

namespace {

void expect_squares(const ResizeRows& resize, const Operands& operands, const ResizeRowsOperands& of) {
  operands.expect(resize.from > 0 && resize.to >= resize.from && resize.kept >= 0,
                  "a square of {0} x {0} rows made one of {1} x {1}, expected one as large at least", resize.from,
                  resize.to);
  operands.expect(of.small.rows() == resize.kept + resize.from * resize.from &&
                      of.large.rows() == resize.kept + resize.to * resize.to && of.small.cols() == of.large.cols(),
                  "{} and {}, expected squares of {} x {} and {} x {} rows behind {}", to_string(of.small.shape),
                  to_string(of.large.shape), resize.from, resize.from, resize.to, resize.to, resize.kept);
}

}  // namespace

ResizeRowsOperands resize_rows_operands(const ResizeRows& resize, Operands& operands) {
  ResizeRowsOperands of{};
  of.small = operands.take("x", kActivation);
  of.large = operands.take("y", kActivation);
  expect_squares(resize, operands, of);
  operands.done();
  return of;
}

ResizeRowsOperands resize_rows_backward_operands(const ResizeRowsBackward& resize, Operands& operands) {
  ResizeRowsOperands of{};
  of.large = operands.take("dy", kActivation);
  of.small = operands.take("dx", kActivation);
  expect_squares(resize, operands, of);
  operands.done();
  return of;
}

ScatterRowsOperands scatter_rows_operands(Operands& operands) {
  ScatterRowsOperands of{};
  of.y = operands.take("y", kActivation);
  of.rows = operands.vector("rows", kIndex, of.y.rows()).as<int32_t>();
  of.x = operands.take("x", {of.y.dtype});
  operands.expect(of.x.cols() == of.y.cols(), "'x' is {}, expected {} columns", to_string(of.x.shape), of.y.cols());
  operands.done();
  return of;
}

CrossEntropyOperands cross_entropy_operands(Operands& operands) {
  CrossEntropyOperands of{};
  of.logits = operands.take("logits", kActivation);
  of.targets = operands.vector("targets", {DType::I32}, of.logits.rows()).as<int32_t>();
  of.weights = operands.vector("weights", {DType::F32}, of.logits.rows()).as<float>();
  of.loss = operands.vector("loss", {DType::F32}, of.logits.rows()).as<float>();
  operands.done();
  return of;
}

namespace {

// Takes a teacher's tokens and their log-probabilities, of rows of logits; returns how many tokens.
int64_t take_teacher(Operands& operands, const TensorView& logits, float temperature, TensorView& ids,
                     TensorView& log_probs) {
  ids = operands.take("ids", {DType::I32});
  const int64_t k = ids.cols();
  operands.expect(ids.rows() == logits.rows() && 1 <= k && k <= std::min(logits.cols(), kMostTeacherTokens),
                  "'ids' is {}, expected {} rows of 1 to {} tokens", to_string(ids.shape), logits.rows(),
                  std::min(logits.cols(), kMostTeacherTokens));
  log_probs = operands.matrix("log_probs", {DType::F32}, logits.rows(), k + 1);
  operands.expect(temperature > 0, "temperature {}, expected more than 0", temperature);
  return k;
}

}  // namespace

TopTokensOperands top_tokens_operands(const TopTokens& attrs, Operands& operands) {
  TopTokensOperands of{};
  of.logits = operands.take("logits", {DType::F32});
  of.tokens = take_teacher(operands, of.logits, attrs.temperature, of.ids, of.log_probs);
  operands.done();
  return of;
}

DistillationOperands distillation_operands(const Distillation& attrs, Operands& operands) {
  DistillationOperands of{};
  of.logits = operands.take("logits", {DType::F32});
  const int64_t rows = of.logits.rows();
  of.targets = operands.vector("targets", {DType::I32}, rows).as<int32_t>();
  of.weights = operands.vector("weights", {DType::F32}, rows).as<float>();
  of.tokens = take_teacher(operands, of.logits, attrs.temperature, of.ids, of.log_probs);
  of.losses = operands.vector("losses", {DType::F32}, rows).as<float>();
  of.divergences = operands.vector("divergences", {DType::F32}, rows).as<float>();
  of.agreements = operands.vector("agreements", {DType::F32}, rows).as<float>();
  operands.done();
  return of;
}

LossSumOperands loss_sum_operands(Operands& operands) {
  LossSumOperands of{};
  of.losses = operands.dense("loss", {DType::F32});
  of.sum = operands.vector("sum", {DType::F32}, 1).as<float>();
  operands.done();
  return of;
}

int64_t loss_rows_of(const RuntimeScalars& runtime, int64_t losses) {
  check(0 <= runtime.loss_rows && runtime.loss_rows <= losses, "loss_sum: {} loss rows of {}", runtime.loss_rows,
        losses);
  return runtime.loss_rows;
}

SumRanksOperands sum_ranks_operands(Operands& operands) {
  SumRanksOperands of;
  of.parts = operands.take("parts", kActivation);
  of.sum = operands.vector("sum", kActivation, of.parts.cols());
  operands.expect(of.parts.rows() > 0, "'parts' is {}, expected a row or more", to_string(of.parts.shape));
  operands.done();
  return of;
}

NormPartialsOperands norm_partials_operands(Operands& operands) {
  NormPartialsOperands of{};
  while (operands.left() > 1) {
    of.gradients.push_back(operands.dense("g", kActivation));
    of.first.push_back(of.units);
    of.units += ceil_div(of.gradients.back().count(), kUnit);
  }
  const std::vector<TensorView>& all = of.gradients;
  operands.expect(!all.empty() && all.size() <= NormPartials::kMost, "found {} gradients, expected 1 to {}", all.size(),
                  NormPartials::kMost);
  operands.expect(std::ranges::all_of(all, [&](const TensorView& g) { return g.dtype == all[0].dtype; }),
                  "found gradients of two dtypes, expected one");
  of.partial = operands.vector("partial", {DType::F32}, of.units).as<float>();
  operands.done();
  return of;
}

TreeSumOperands tree_sum_operands(const TreeSum& sum, Operands& operands) {
  TreeSumOperands of{};
  of.x = operands.take("x", {DType::F32});
  of.block = sum.block == 0 ? std::max<int64_t>(sum.count, 1) : sum.block;
  operands.expect(0 <= sum.count && sum.count <= of.x.count() && of.block > 0,
                  "'x' is {}, expected {} values or more by blocks of {}", to_string(of.x.shape), sum.count, sum.block);
  of.blocks = sum.block == 0 ? 1 : ceil_div(sum.count, of.block);
  of.sums = operands.vector("sums", {DType::F32}, of.blocks).as<float>();
  operands.done();
  return of;
}

QuantizeScalesOperands quantize_scales_operands(Operands& operands, int64_t block) {
  QuantizeScalesOperands of{};
  of.scales = operands.dense("scales", {DType::F32});
  of.offset = operands.vector("offset", {DType::F32}, 1).as<float>();
  of.codes = operands.vector("codes", {DType::U8}, of.scales.count()).as<uint8_t>();
  of.block_scales = operands.vector("block scales", {DType::F32}, ceil_div(of.scales.count(), block)).as<float>();
  operands.done();
  return of;
}

}  // namespace snug
