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
  uint64_t operator()(const AdaptedGemm&) const { return cuda::kGemmScratchBytes; }
  uint64_t operator()(const SwiGluGemm&) const { return cuda::kGemmScratchBytes; }
  uint64_t operator()(const SwiGluGemmBackward&) const { return cuda::kGemmScratchBytes; }
  uint64_t operator()(const AdapterBackward& op) const {
    const Shape& dy = first("adapter_backward");
    check(operands.size() > 1, "adapter_backward: one operand found");
    return std::max(cuda::kGemmScratchBytes,
                    cuda::adapter_backward_scratch_bytes(op, dy.rows(), operands[1].shape.cols()));
  }
  uint64_t operator()(const RmsNormBackward& op) const {
    const int64_t count = first("rms_norm_backward").count();
    check(operands.size() > 2, "rms_norm_backward: {} operands, expected 'dy', 'x' and 'gain' first", operands.size());
    const int64_t n = std::max<int64_t>(1, operands[2].shape.count());
    return cuda::rms_norm_backward_scratch_bytes(op, operands[0].dtype, count / n, n);
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

int64_t adapter_column_blocks(const AdaptedParts& parts) {
  int64_t blocks = 0;
  for (size_t p = 0; p < parts.end.size(); p++)
    blocks += (parts.end[p] - parts.begin[p] + kAdapterCols - 1) / kAdapterCols;
  return blocks;
}

int64_t adapter_ranges(int64_t rows, int64_t column_blocks) {
  constexpr int64_t kAtOnce = 132;
  const int64_t most = std::max<int64_t>(1, (rows + kAdapterRows - 1) / kAdapterRows);
  int64_t best = 1;
  double best_fill = 0;
  for (int64_t rounds = 1; rounds <= 4 && best_fill < 0.95; rounds++) {
    const int64_t ranges = std::clamp<int64_t>(rounds * kAtOnce / std::max<int64_t>(column_blocks, 1), 1, most);
    const int64_t blocks = ranges * column_blocks, slots = (blocks + kAtOnce - 1) / kAtOnce * kAtOnce;
    const double fill = static_cast<double>(blocks) / static_cast<double>(std::max<int64_t>(slots, 1));
    if (fill > best_fill) {
      best = ranges;
      best_fill = fill;
    }
  }
  return best;
}

uint64_t adapter_backward_scratch_bytes(const AdapterBackward& backward, int64_t rows, int64_t rank) {
  if (!adapter_kernel_takes(rank)) return 0;
  const int64_t blocks = adapter_column_blocks(backward.parts), ranges = adapter_ranges(rows, blocks);
  return static_cast<uint64_t>((blocks * rows + ranges * backward.parts.columns()) * rank) * sizeof(float);
}

}  // namespace cuda

uint64_t CudaFacts::scratch_bytes(const Attrs& attrs, std::span<const Operand> operands) const {
  return std::visit(ScratchBytes{operands}, attrs);
}

}  // namespace snug
