// Declares the CPU's own kernels: for each op kind, a function that makes it ready to run. Operands are in
// program/ops.h's order; sums run over blocks that depend on shapes alone, so the number of threads changes no bit. A
// launch allocates nothing; it throws InternalError if an index read from an operand leaves its table.
#pragma once

#include "backend/backend.h"
#include "backend/op_operands.h"

namespace snug::cpu {

Launch bind_rms_norm(const RmsNorm& norm, Operands operands);
Launch bind_rms_norm_backward(const RmsNormBackward& norm, Operands operands);
uint64_t rms_norm_backward_scratch_bytes(const RmsNormBackward& norm, int64_t rows, int64_t cols);

Launch bind_layer_norm(const LayerNorm& norm, Operands operands);
Launch bind_layer_norm_backward(const LayerNormBackward& norm, Operands operands);
uint64_t layer_norm_backward_scratch_bytes(const LayerNormBackward& norm, int64_t rows, int64_t cols);

Launch bind_row_norms(Operands operands);
Launch bind_adapted_norms(const AdaptedNorms& norms, Operands operands);
Launch bind_scale_columns(const ScaleColumns& scale, Operands operands);
Launch bind_scale_columns_backward(const ScaleColumnsBackward& scale, Operands operands);
Launch bind_set_row_norms(Operands operands);
Launch bind_activate(const Activate& attrs, Operands operands);
Launch bind_activate_backward(const ActivateBackward& attrs, Operands operands);
Launch bind_swiglu(const SwiGlu& swiglu, Operands operands);
Launch bind_swiglu_backward(const SwiGluBackward& swiglu, Operands operands);
Launch bind_accumulate(Operands operands);
Launch bind_rescale(const Rescale& rescale, Operands operands);

Launch bind_cast(Operands operands);
Launch bind_transpose(Operands operands);
Launch bind_fit_columns(Operands operands);
Launch bind_copy(Operands operands);
Launch bind_fill(Operands operands);
Launch bind_split_master(Operands operands);
Launch bind_join_master(Operands operands);

Launch bind_random_fill(const RandomFill& fill, Operands operands);
Launch bind_dropout(const Dropout& dropout, Operands operands);

Launch bind_rope_table(const RopeTable& table, Operands operands);
Launch bind_rope(const Rope& rope, Operands operands);

Launch bind_embedding(Operands operands);
Launch bind_embedding_noise(const EmbeddingNoise& noise, Operands operands);
Launch bind_embedding_backward(const EmbeddingBackward& embedding, Operands operands);
Launch bind_resize_rows(const ResizeRows& attrs, Operands operands);
Launch bind_resize_rows_backward(const ResizeRowsBackward& attrs, Operands operands);
Launch bind_gather_rows(Operands operands);
Launch bind_scatter_rows(const ScatterRows& scatter, Operands operands);

Launch bind_cross_entropy(const CrossEntropy& loss, Operands operands);
Launch bind_top_tokens(const TopTokens& attrs, Operands operands);
Launch bind_distillation(const Distillation& attrs, Operands operands);
Launch bind_soft_cap(const SoftCap& attrs, Operands operands);
Launch bind_loss_sum(const LossSum& sum, Operands operands);

Launch bind_quantize(const Quantize& quantize, Operands operands);
Launch bind_quantize_scales(Operands operands);
Launch bind_dequantize(const Dequantize& dequantize, Operands operands);

Launch bind_column_sum(Operands operands);
Launch bind_sum_ranks(const SumRanks& sum, Operands operands);
Launch bind_norm_partials(Operands operands);
Launch bind_tree_sum(const TreeSum& sum, Operands operands);
Launch bind_clip_factor(const ClipFactor& clip, Operands operands);

Launch bind_adamw(const AdamW& adamw, Operands operands);
Launch bind_lion(const Lion& lion, Operands operands);
Launch bind_momentum(const Momentum& momentum, Operands operands);
Launch bind_normalize(Operands operands);
Launch bind_descend(const Descend& descend, Operands operands);
Launch bind_factored_means(const FactoredMeans& means, Operands operands);
Launch bind_factored_scales(Operands operands);
Launch bind_square_limit(const SquareLimit& limit, Operands operands);
Launch bind_scaled_squares(const ScaledSquares& squares, Operands operands);
Launch bind_scale_matrix(const ScaleMatrix& scale, Operands operands);
Launch bind_projected_moments(const ProjectedMoments& moments, Operands operands);
Launch bind_channel_scales(Operands operands);
Launch bind_growth_limit(const GrowthLimit& limit, Operands operands);
Launch bind_schedule_free_adamw(const ScheduleFreeAdamW& adamw, Operands operands);
Launch bind_schedule_free_average(const ScheduleFreeAverage& average, Operands operands);

}  // namespace snug::cpu
