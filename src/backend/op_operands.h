// Takes the operands of row-wise, element-wise and other ops, as ops.h lists them, for every backend. All of an op's
// are taken here but its scratch, which the backend takes next.
#pragma once

#include <vector>

#include "backend/operands.h"

namespace snug {

// ---- Norms. A row has `heads` parts of `cols` elements, which are normed each by itself: `rows` in all --------------

struct NormSize {
  int64_t rows = 0, cols = 0, heads = 1;
  int64_t gains = 1;  // rows of the gain: one for all heads, or one for each
};

struct RmsNormOperands {
  TensorView x, gain, y;
  float* rstd;
  NormSize size;
};
RmsNormOperands rms_norm_operands(Operands& operands);

struct RmsNormBackwardOperands {
  TensorView dy, x, gain, dx, dgain;  // the last is empty unless asked for
  const float* rstd;
  NormSize size;
};
RmsNormBackwardOperands rms_norm_backward_operands(const RmsNormBackward& norm, Operands& operands);

struct LayerNormOperands {
  TensorView x, gain, bias, y;  // `bias` is empty unless asked for
  float* moments;
  NormSize size;
};
LayerNormOperands layer_norm_operands(const LayerNorm& norm, Operands& operands);

struct LayerNormBackwardOperands {
  TensorView dy, x, gain, bias, dx, dgain, dbias;  // bias and the last two are empty unless asked for
  const float* moments;
  NormSize size;
};
LayerNormBackwardOperands layer_norm_backward_operands(const LayerNormBackward& norm, Operands& operands);

// ---- Weight-decomposed adapters -------------------------------------------------------------------------------------

struct AdaptedNormsOperands {
  TensorView wa, aa, b;
  const float *norms, *initial;
  TensorView change, factors;
};
AdaptedNormsOperands adapted_norms_operands(Operands& operands);

struct ScaleColumnsOperands {
  TensorView z, factors, c, bias, y;  // c and bias are empty unless asked for
};
ScaleColumnsOperands scale_columns_operands(const ScaleColumns& scale, Operands& operands);

struct ScaleColumnsBackwardOperands {
  TensorView dy, z, factors, dz, dm;
};
ScaleColumnsBackwardOperands scale_columns_backward_operands(const ScaleColumnsBackward& scale, Operands& operands);

struct SetRowNormsOperands {
  TensorView x;
  const float* magnitudes;
};
SetRowNormsOperands set_row_norms_operands(Operands& operands);

// ---- Element by element ---------------------------------------------------------------------------------------------

struct ActivateBackwardOperands {
  TensorView dh, x, dx;
};
ActivateBackwardOperands activate_backward_operands(Operands& operands);

struct SwiGluOperands {
  TensorView gate_up, h;  // h has half as many columns
};
SwiGluOperands swiglu_operands(Operands& operands);

struct SwiGluBackwardOperands {
  TensorView dh, gate_up, dgate_up;
};
SwiGluBackwardOperands swiglu_backward_operands(Operands& operands);

// Takes the sum of Accumulate: as many rows as x, or so many times as many.
TensorView sum_operand(Operands& operands, const TensorView& x);

struct RescaleOperands {
  TensorView x, c, y;  // c is x unless there is an addend
};
RescaleOperands rescale_operands(const Rescale& rescale, Operands& operands);

// Holds x and y, of one shape, and how an element is kept: if the upper 24 bits of its random word, at least `least`,
// say so, times `scale`.
struct DropoutOperands {
  TensorView x, y;
  uint32_t least;
  float scale;
};
DropoutOperands dropout_operands(const Dropout& dropout, Operands& operands);

// ---- Rows by index --------------------------------------------------------------------------------------------------

struct EmbeddingNoiseOperands {
  TensorView x;
  const int32_t* documents;  // starts, and the end of the last
  int64_t most_documents;
};
EmbeddingNoiseOperands embedding_noise_operands(Operands& operands);
// Returns how many documents a run has. Throws InternalError if the operand holds fewer.
int64_t documents_of(const RuntimeScalars& runtime, const EmbeddingNoiseOperands& of);

struct EmbeddingBackwardOperands {
  TensorView dx;
  const int32_t *order, *starts, *ids;  // of tokens, and of the segments of equal ids
  TensorView dtable;
};
EmbeddingBackwardOperands embedding_backward_operands(Operands& operands);
// Returns how many segments a run has. Throws InternalError if they are more than its tokens.
int64_t segments_of(const EmbeddingBackward& embedding, const RuntimeScalars& runtime, int64_t tokens);

// Holds two squares of rows, of `small` x `small` and `large` x `large`, with the rows that stay before them.
struct ResizeRowsOperands {
  TensorView small, large;
};
ResizeRowsOperands resize_rows_operands(const ResizeRows& resize, Operands& operands);
ResizeRowsOperands resize_rows_backward_operands(const ResizeRowsBackward& resize, Operands& operands);

struct ScatterRowsOperands {
  TensorView y;
  const int32_t* rows;
  TensorView x;
};
ScatterRowsOperands scatter_rows_operands(Operands& operands);

// ---- Losses, sums and scales ----------------------------------------------------------------------------------------

struct CrossEntropyOperands {
  TensorView logits;
  const int32_t* targets;
  const float* weights;
  float* loss;
};
CrossEntropyOperands cross_entropy_operands(Operands& operands);

struct TopTokensOperands {
  TensorView logits, ids, log_probs;
  int64_t tokens;  // k
};
TopTokensOperands top_tokens_operands(const TopTokens& attrs, Operands& operands);

struct DistillationOperands {
  TensorView logits;
  const int32_t* targets;
  const float* weights;
  TensorView ids, log_probs;
  int64_t tokens;  // k
  float *losses, *divergences, *agreements;
};
DistillationOperands distillation_operands(const Distillation& attrs, Operands& operands);

struct LossSumOperands {
  TensorView losses;
  float* sum;
};
LossSumOperands loss_sum_operands(Operands& operands);
// Returns how many of the losses a run has. Throws InternalError if there are not as many.
int64_t loss_rows_of(const RuntimeScalars& runtime, int64_t losses);

struct SumRanksOperands {
  TensorView parts, sum;
};
SumRanksOperands sum_ranks_operands(Operands& operands);

// Holds one gradient or several, of one dtype, with the number of the first unit of each among the units of all.
struct NormPartialsOperands {
  std::vector<TensorView> gradients;
  std::vector<int64_t> first;
  int64_t units;
  float* partial;
};
NormPartialsOperands norm_partials_operands(Operands& operands);

// Holds `count` values, of which every `block` are summed.
struct TreeSumOperands {
  TensorView x;
  int64_t block, blocks;
  float* sums;
};
TreeSumOperands tree_sum_operands(const TreeSum& sum, Operands& operands);

struct QuantizeScalesOperands {
  TensorView scales;
  const float* offset;
  uint8_t* codes;
  float* block_scales;
};
QuantizeScalesOperands quantize_scales_operands(Operands& operands, int64_t block);

}  // namespace snug
