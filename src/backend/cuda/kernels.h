// Declares the CUDA backend's kernels: for each op kind, a function that makes it ready to run. Operands are in
// program/ops.h's order. A launch enqueues on the stream to which it was bound, allocates nothing and waits for
// nothing. Sums are taken in an order that shapes alone decide. An index read from an operand that leaves its table
// gives NaN, never a stray access.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/backend.h"
#include "backend/op_operands.h"

namespace snug::cuda {

// Returns whether this build has code for the warpgroups of the current device.
bool warpgroups();

// Binds a product in fp8 where cuBLASLt has none with a scale for each row.
Launch bind_fp8_product(const Fp8Gemm& gemm, std::span<const TensorView> views, cudaStream_t stream);

Launch bind_cast(Operands operands, cudaStream_t stream);
Launch bind_transpose(Operands operands, cudaStream_t stream);
Launch bind_fit_columns(Operands operands, cudaStream_t stream);
Launch bind_copy(Operands operands, cudaStream_t stream);
Launch bind_fill(Operands operands, cudaStream_t stream);
Launch bind_split_master(Operands operands, cudaStream_t stream);
Launch bind_join_master(Operands operands, cudaStream_t stream);

Launch bind_random_fill(const RandomFill& fill, Operands operands, cudaStream_t stream);
Launch bind_dropout(const Dropout& dropout, Operands operands, cudaStream_t stream);

Launch bind_rms_norm(const RmsNorm& norm, Operands operands, cudaStream_t stream);
Launch bind_rms_norm_backward(const RmsNormBackward& norm, Operands operands, cudaStream_t stream);
Launch bind_layer_norm(const LayerNorm& norm, Operands operands, cudaStream_t stream);
Launch bind_layer_norm_backward(const LayerNormBackward& norm, Operands operands, cudaStream_t stream);
Launch bind_row_norms(Operands operands, cudaStream_t stream);
Launch bind_adapted_norms(const AdaptedNorms& norms, Operands operands, cudaStream_t stream);
Launch bind_scale_columns(const ScaleColumns& scale, Operands operands, cudaStream_t stream);
Launch bind_scale_columns_backward(const ScaleColumnsBackward& scale, Operands operands, cudaStream_t stream);
Launch bind_set_row_norms(Operands operands, cudaStream_t stream);
Launch bind_activate(const Activate& attrs, Operands operands, cudaStream_t stream);
Launch bind_activate_backward(const ActivateBackward& attrs, Operands operands, cudaStream_t stream);
Launch bind_swiglu(const SwiGlu& swiglu, Operands operands, cudaStream_t stream);
Launch bind_swiglu_backward(const SwiGluBackward& swiglu, Operands operands, cudaStream_t stream);
Launch bind_accumulate(Operands operands, cudaStream_t stream);
Launch bind_rescale(const Rescale& rescale, Operands operands, cudaStream_t stream);

Launch bind_rope_table(const RopeTable& table, Operands operands, cudaStream_t stream);
Launch bind_rope(const Rope& rope, Operands operands, cudaStream_t stream);

Launch bind_embedding(Operands operands, cudaStream_t stream);
Launch bind_embedding_noise(const EmbeddingNoise& noise, Operands operands, cudaStream_t stream);
Launch bind_embedding_backward(const EmbeddingBackward& embedding, Operands operands, cudaStream_t stream);
Launch bind_resize_rows(const ResizeRows& attrs, Operands operands, cudaStream_t stream);
Launch bind_resize_rows_backward(const ResizeRowsBackward& attrs, Operands operands, cudaStream_t stream);
Launch bind_gather_rows(Operands operands, cudaStream_t stream);
Launch bind_scatter_rows(const ScatterRows& scatter, Operands operands, cudaStream_t stream);

Launch bind_cross_entropy(const CrossEntropy& loss, Operands operands, cudaStream_t stream);
Launch bind_top_tokens(const TopTokens& attrs, Operands operands, cudaStream_t stream);
Launch bind_distillation(const Distillation& attrs, Operands operands, cudaStream_t stream);
Launch bind_soft_cap(const SoftCap& attrs, Operands operands, cudaStream_t stream);
Launch bind_loss_sum(const LossSum& sum, Operands operands, cudaStream_t stream);

Launch bind_quantize(const Quantize& quantize, Operands operands, cudaStream_t stream);
Launch bind_quantize_scales(Operands operands, cudaStream_t stream);
Launch bind_dequantize(const Dequantize& dequantize, Operands operands, cudaStream_t stream);

Launch bind_column_sum(Operands operands, cudaStream_t stream);
Launch bind_sum_ranks(const SumRanks& sum, Operands operands, cudaStream_t stream);
Launch bind_norm_partials(Operands operands, cudaStream_t stream);
Launch bind_tree_sum(const TreeSum& sum, Operands operands, cudaStream_t stream);
Launch bind_clip_factor(const ClipFactor& clip, Operands operands, cudaStream_t stream);
Launch bind_adamw(const AdamW& adamw, Operands operands, cudaStream_t stream);
Launch bind_lion(const Lion& lion, Operands operands, cudaStream_t stream);
Launch bind_momentum(const Momentum& momentum, Operands operands, cudaStream_t stream);
Launch bind_normalize(Operands operands, cudaStream_t stream);
Launch bind_descend(const Descend& descend, Operands operands, cudaStream_t stream);
Launch bind_factored_means(const FactoredMeans& means, Operands operands, cudaStream_t stream);
Launch bind_factored_scales(Operands operands, cudaStream_t stream);
Launch bind_square_limit(const SquareLimit& limit, Operands operands, cudaStream_t stream);
Launch bind_scaled_squares(const ScaledSquares& squares, Operands operands, cudaStream_t stream);
Launch bind_scale_matrix(const ScaleMatrix& scale, Operands operands, cudaStream_t stream);
Launch bind_projected_moments(const ProjectedMoments& moments, Operands operands, cudaStream_t stream);
Launch bind_channel_scales(Operands operands, cudaStream_t stream);
Launch bind_growth_limit(const GrowthLimit& limit, Operands operands, cudaStream_t stream);
Launch bind_schedule_free_adamw(const ScheduleFreeAdamW& adamw, Operands operands, cudaStream_t stream);
Launch bind_schedule_free_average(const ScheduleFreeAverage& average, Operands operands, cudaStream_t stream);

Launch bind_attention(const Attention& attention, Operands operands, cudaStream_t stream);
Launch bind_attention_backward(const AttentionBackward& attention, Operands operands, cudaStream_t stream);
Launch bind_cache_append(const CacheAppend& append, Operands operands, cudaStream_t stream);
Launch bind_cached_attention(const CachedAttention& attention, Operands operands, cudaStream_t stream);

}  // namespace snug::cuda
