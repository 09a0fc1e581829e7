#include "backend/cpu/facts.h"

#include <bit>

#include "backend/cpu/kernels.h"
#include "backend/cpu/products.h"
#include "base/parallel.h"
#include "program/adapter.h"
#include "program/swiglu_gemm.h"

namespace snug {
namespace {

// Alignment of operands, which may matter to a product, is compared up to this many bytes.
constexpr uint64_t kElementOffset = 64;

// Returns scratch by kind; every kind that is not here needs none.
struct ScratchBytes {
  std::span<const Operand> operands;

  uint64_t operator()(const Attention& op) const { return cpu::attention_scratch_bytes(op, operands); }
  uint64_t operator()(const AttentionBackward& op) const { return cpu::attention_backward_scratch_bytes(op, operands); }
  uint64_t operator()(const CacheAppend& op) const { return cpu::cache_append_scratch_bytes(op, operands); }
  uint64_t operator()(const CachedAttention& op) const { return cpu::cached_attention_scratch_bytes(op, operands); }
  uint64_t operator()(const RmsNormBackward& op) const { return norm(op, cpu::rms_norm_backward_scratch_bytes); }
  uint64_t operator()(const LayerNormBackward& op) const { return norm(op, cpu::layer_norm_backward_scratch_bytes); }
  template <class Other>
  uint64_t operator()(const Other&) const {
    return 0;
  }

 private:
  // A row for each head.
  template <class Backward, class Bytes>
  uint64_t norm(const Backward& op, const Bytes& bytes) const {
    check(operands.size() > 2, "{}: {} operands, expected 'dy', 'x' and 'gain' first", kind(op), operands.size());
    const int64_t n = operands[2].shape.count();
    return bytes(op, operands[0].shape.count() / std::max<int64_t>(1, n), n);
  }
};

}  // namespace

uint64_t CpuFacts::scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const {
  if (const auto* gemm = std::get_if<Gemm>(&attrs)) {
    std::vector<int64_t> key{
        gemm->transpose_a, gemm->transpose_b, gemm->addend, gemm->bias, std::bit_cast<int32_t>(gemm->alpha), threads()};
    for (const Operand& operand : operands)
      key.insert(key.end(), {static_cast<int64_t>(operand.dtype), operand.shape.rows(), operand.shape.cols(),
                             operand.row_stride, static_cast<int64_t>(operand.offset % kElementOffset)});
    if (gemm->addend) key.push_back(operands[2].buffer == operands.back().buffer);  // in place or not
    const auto [known, missing] = products_.try_emplace(std::move(key));
    if (missing) known->second = cpu::gemm_scratch_bytes(*gemm, operands);
    return known->second;
  }
  const auto max_over_ops = [&](const auto& op) {
    uint64_t most = 0;
    for (const OpCall<Operand>& call : ops_of(op, operands))
      most = std::max(most, scratch_bytes(call.attrs, call.operands));
    return most;
  };
  if (const auto* adapted = std::get_if<AdaptedGemm>(&attrs)) return max_over_ops(*adapted);
  if (const auto* adapter = std::get_if<AdapterBackward>(&attrs)) return max_over_ops(*adapter);
  if (const auto* gated = std::get_if<SwiGluGemm>(&attrs)) return max_over_ops(*gated);
  if (const auto* gated = std::get_if<SwiGluGemmBackward>(&attrs)) return max_over_ops(*gated);
  if (std::holds_alternative<Fp8Gemm>(attrs))
    return cpu::fp8_gemm_scratch_bytes(operands, [this](const Gemm& inner, std::span<const Operand> factors) {
      return scratch_bytes(inner, factors);
    });
  return std::visit(ScratchBytes{operands}, attrs);
}

}  // namespace snug
