#include "backend/cuda/facts.h"

namespace snug {
namespace {

// By kind; every kind that is not here needs none.
struct ScratchBytes {
  std::span<const Operand> operands;

  const Shape& first(std::string_view kind) const {
    check(!operands.empty(), "{}: no operands found", kind);
    return operands[0].shape;
  }
  uint64_t operator()(const Gemm&) const { return cuda::kGemmScratchBytes; }
  uint64_t operator()(const Fp8Gemm&) const { return cuda::kGemmScratchBytes; }
  uint64_t operator()(const RmsNormBackward& op) const {
    const Shape& dy = first("rms_norm_backward");
    return cuda::rms_norm_backward_scratch_bytes(op, operands[0].dtype, dy.rows(), dy.cols());
  }
  uint64_t operator()(const Attention&) const { return cuda::kTileCounterBytes; }
  uint64_t operator()(const AttentionBackward& op) const {
    return cuda::attention_backward_scratch_bytes(op, first("attention_backward").rows());
  }
  template <class Other>
  uint64_t operator()(const Other&) const {
    return 0;
  }
};

}  // namespace

namespace cuda {

uint64_t rms_norm_backward_scratch_bytes(const RmsNormBackward& norm, DType dtype, int64_t rows, int64_t cols) {
  const int64_t block_rows = norm_block_rows(rows, cols, dtype), blocks = (rows + block_rows - 1) / block_rows;
  return norm.gain_gradient ? static_cast<uint64_t>(blocks * cols) * sizeof(float) : 0;
}

uint64_t attention_backward_scratch_bytes(const AttentionBackward& attention, int64_t tokens) {
  return kTileCounterBytes + static_cast<uint64_t>(tokens * attention.shape.heads) * sizeof(float);
}

}  // namespace cuda

uint64_t CudaFacts::scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const {
  return std::visit(ScratchBytes{operands}, attrs);
}

}  // namespace snug
