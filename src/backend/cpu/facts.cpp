#include "backend/cpu/facts.h"

#include "backend/cpu/kernels.h"
#include "backend/cpu/products.h"

namespace snug {
namespace {

// By kind; every kind that is not here needs none.
struct ScratchBytes {
  std::span<const Operand> operands;

  uint64_t operator()(const Gemm& op) const { return cpu::gemm_scratch_bytes(op, operands); }
  uint64_t operator()(const Attention& op) const { return cpu::attention_scratch_bytes(op, operands); }
  uint64_t operator()(const AttentionBackward& op) const { return cpu::attention_backward_scratch_bytes(op, operands); }
  uint64_t operator()(const CacheAppend& op) const { return cpu::cache_append_scratch_bytes(op, operands); }
  uint64_t operator()(const CachedAttention& op) const { return cpu::cached_attention_scratch_bytes(op, operands); }
  uint64_t operator()(const RmsNormBackward& op) const {
    check(!operands.empty(), "rms_norm_backward: no operands found, expected 'dy' first");
    return cpu::rms_norm_backward_scratch_bytes(op, operands[0].shape.rows(), operands[0].shape.cols());
  }
  template <class Other>
  uint64_t operator()(const Other&) const {
    return 0;
  }
};

}  // namespace

uint64_t CpuFacts::scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const {
  return std::visit(ScratchBytes{operands}, attrs);
}

}  // namespace snug
