#include "backend/cpu/backend.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/products.h"
#include "backend/shortage.h"
#include "base/memory.h"
#include "program/adapter.h"
#include "program/swiglu_gemm.h"
#include "program/swiglu_quantize.h"

namespace snug {
namespace {

// Binds an op by its kind.
struct Bind {
  const Op& op;
  std::span<const TensorView> views;
  cpu::MatmulCalls& products;
  Operands operands{op, views};

  Launch operator()(const Gemm& a) const { return cpu::bind_gemm(a, views, products); }
  Launch operator()(const Fp8Gemm& a) const { return cpu::bind_fp8_gemm(a, views, products); }
  Launch operator()(const AdaptedGemm& a) const { return one_by_one(a); }
  Launch operator()(const AdapterBackward& a) const { return one_by_one(a); }
  Launch operator()(const Attention& a) const { return cpu::bind_attention(a, operands); }
  Launch operator()(const AttentionBackward& a) const { return cpu::bind_attention_backward(a, operands); }
  Launch operator()(const CacheAppend& a) const { return cpu::bind_cache_append(a, operands); }
  Launch operator()(const CachedAttention& a) const { return cpu::bind_cached_attention(a, operands); }
  Launch operator()(const RowNorms&) const { return cpu::bind_row_norms(operands); }
  Launch operator()(const AdaptedNorms& a) const { return cpu::bind_adapted_norms(a, operands); }
  Launch operator()(const ScaleColumns& a) const { return cpu::bind_scale_columns(a, operands); }
  Launch operator()(const ScaleColumnsBackward& a) const { return cpu::bind_scale_columns_backward(a, operands); }
  Launch operator()(const SetRowNorms&) const { return cpu::bind_set_row_norms(operands); }
  Launch operator()(const ColumnSum&) const { return cpu::bind_column_sum(operands); }
  Launch operator()(const RopeTable& a) const { return cpu::bind_rope_table(a, operands); }
  Launch operator()(const Rope& a) const { return cpu::bind_rope(a, operands); }
  Launch operator()(const RmsNorm& a) const { return cpu::bind_rms_norm(a, operands); }
  Launch operator()(const RmsNormBackward& a) const { return cpu::bind_rms_norm_backward(a, operands); }
  Launch operator()(const LayerNorm& a) const { return cpu::bind_layer_norm(a, operands); }
  Launch operator()(const LayerNormBackward& a) const { return cpu::bind_layer_norm_backward(a, operands); }
  Launch operator()(const Activate& a) const { return cpu::bind_activate(a, operands); }
  Launch operator()(const ActivateBackward& a) const { return cpu::bind_activate_backward(a, operands); }
  Launch operator()(const SwiGlu& a) const { return cpu::bind_swiglu(a, operands); }
  Launch operator()(const SwiGluBackward& a) const { return cpu::bind_swiglu_backward(a, operands); }
  Launch operator()(const SwiGluGemm& a) const { return one_by_one(a); }
  Launch operator()(const SwiGluGemmBackward& a) const { return one_by_one(a); }
  Launch operator()(const SwiGluQuantize& a) const { return one_by_one(a); }
  Launch operator()(const SwiGluBackwardQuantize& a) const { return one_by_one(a); }
  Launch operator()(const Accumulate&) const { return cpu::bind_accumulate(operands); }
  Launch operator()(const Rescale& a) const { return cpu::bind_rescale(a, operands); }
  Launch operator()(const Cast&) const { return cpu::bind_cast(operands); }
  Launch operator()(const Transpose&) const { return cpu::bind_transpose(operands); }
  Launch operator()(const Copy&) const { return cpu::bind_copy(operands); }
  Launch operator()(const Fill&) const { return cpu::bind_fill(operands); }
  Launch operator()(const FitColumns&) const { return cpu::bind_fit_columns(operands); }
  Launch operator()(const SplitMaster&) const { return cpu::bind_split_master(operands); }
  Launch operator()(const JoinMaster&) const { return cpu::bind_join_master(operands); }
  Launch operator()(const RandomFill& a) const { return cpu::bind_random_fill(a, operands); }
  Launch operator()(const Dropout& a) const { return cpu::bind_dropout(a, operands); }
  Launch operator()(const Quantize& a) const { return cpu::bind_quantize(a, operands); }
  Launch operator()(const QuantizeScales&) const { return cpu::bind_quantize_scales(operands); }
  Launch operator()(const Dequantize& a) const { return cpu::bind_dequantize(a, operands); }
  Launch operator()(const AllGather&) const { return refuse(); }
  Launch operator()(const Exchange&) const { return refuse(); }
  Launch operator()(const SumRanks& a) const { return cpu::bind_sum_ranks(a, operands); }
  Launch operator()(const TreeSum& a) const { return cpu::bind_tree_sum(a, operands); }
  Launch operator()(const Embedding&) const { return cpu::bind_embedding(operands); }
  Launch operator()(const EmbeddingNoise& a) const { return cpu::bind_embedding_noise(a, operands); }
  Launch operator()(const EmbeddingBackward& a) const { return cpu::bind_embedding_backward(a, operands); }
  Launch operator()(const ResizeRows& a) const { return cpu::bind_resize_rows(a, operands); }
  Launch operator()(const ResizeRowsBackward& a) const { return cpu::bind_resize_rows_backward(a, operands); }
  Launch operator()(const GatherRows&) const { return cpu::bind_gather_rows(operands); }
  Launch operator()(const ScatterRows& a) const { return cpu::bind_scatter_rows(a, operands); }
  Launch operator()(const CrossEntropy& a) const { return cpu::bind_cross_entropy(a, operands); }
  Launch operator()(const TopTokens& a) const { return cpu::bind_top_tokens(a, operands); }
  Launch operator()(const Distillation& a) const { return cpu::bind_distillation(a, operands); }
  Launch operator()(const SoftCap& a) const { return cpu::bind_soft_cap(a, operands); }
  Launch operator()(const LossSum& a) const { return cpu::bind_loss_sum(a, operands); }
  Launch operator()(const NormPartials&) const { return cpu::bind_norm_partials(operands); }
  Launch operator()(const ClipFactor& a) const { return cpu::bind_clip_factor(a, operands); }
  Launch operator()(const AdamW& a) const { return cpu::bind_adamw(a, operands); }
  Launch operator()(const Lion& a) const { return cpu::bind_lion(a, operands); }
  Launch operator()(const Momentum& a) const { return cpu::bind_momentum(a, operands); }
  Launch operator()(const Normalize&) const { return cpu::bind_normalize(operands); }
  Launch operator()(const Descend& a) const { return cpu::bind_descend(a, operands); }
  Launch operator()(const FactoredMeans& a) const { return cpu::bind_factored_means(a, operands); }
  Launch operator()(const FactoredScales&) const { return cpu::bind_factored_scales(operands); }
  Launch operator()(const SquareLimit& a) const { return cpu::bind_square_limit(a, operands); }
  Launch operator()(const ScaledSquares& a) const { return cpu::bind_scaled_squares(a, operands); }
  Launch operator()(const ScaleMatrix& a) const { return cpu::bind_scale_matrix(a, operands); }
  Launch operator()(const ProjectedMoments& a) const { return cpu::bind_projected_moments(a, operands); }
  Launch operator()(const ChannelScales&) const { return cpu::bind_channel_scales(operands); }
  Launch operator()(const GrowthLimit& a) const { return cpu::bind_growth_limit(a, operands); }
  Launch operator()(const ScheduleFreeAdamW& a) const { return cpu::bind_schedule_free_adamw(a, operands); }
  Launch operator()(const ScheduleFreeAverage& a) const { return cpu::bind_schedule_free_average(a, operands); }
  Launch operator()(const HostTask&) const { return refuse(); }
  Launch operator()(const ReadFile&) const { return refuse(); }
  Launch operator()(const WriteFile&) const { return refuse(); }

  template <class Kind>
  Launch one_by_one(const Kind& a) const {
    return bind_ops(a, views, op.site, [this](const Op& part, std::span<const TensorView> part_views) {
      return std::visit(Bind{part, part_views, products}, part.attrs);
    });
  }
  Launch refuse() const {
    internal_error("{}: '{}' was given to the backend, it is the executor's to run", op.site, kind(op.attrs));
  }
};

}  // namespace

CpuBackend::CpuBackend() : products_(std::make_unique<cpu::MatmulCalls>()) {}

CpuBackend::~CpuBackend() {
  for (const Block& block : blocks_)
    if (block.start) munmap(block.start, block.bytes);
}

std::byte* CpuBackend::reserve(Space space, uint64_t bytes) {
  Block& block = blocks_[index(space)];
  check(space != Space::Disk, "{} bytes of the disk space were asked of the CPU backend, it has memory only", bytes);
  check(!block.start, "the {} space was reserved twice: {} bytes, then {}", name(space), block.bytes, bytes);
  if (bytes == 0) return nullptr;
  const auto refuse = [&](int error) {
    const std::string what = fmt::format("reserving {} bytes for the {} space", bytes, name(space));
    if (error == ENOMEM) refuse_shortage(what, free_memory(), fmt::format("{}_memory", name(space)));
    device_error("{}: {}", what, std::strerror(error));
  };
  void* const start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) refuse(errno);
  madvise(start, bytes, MADV_HUGEPAGE);  // advice only: small pages serve as well
  block = {start, bytes};
  // Memory is taken now, so that a machine with too little says so before the run. Old kernels lend pages at first
  // touch.
  if (madvise(start, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) refuse(errno);
  return static_cast<std::byte*>(start);
}

Launch CpuBackend::bind(const Op& op, std::span<const TensorView> views) {
  return std::visit(Bind{op, views, *products_}, op.attrs);
}

}  // namespace snug
