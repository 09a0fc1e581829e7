// Computes attention_backward.cu's gradients by warpgroups.
#include "backend/cuda/attention_warpgroup_gradients.cuh"

namespace snug::cuda {

AttentionLaunch warpgroup_attention_gradient(const GradientRows& op, std::byte* counters, cudaStream_t stream) {
  const int heads = op.heads.heads, kv_heads = op.heads.kv_heads;
  const auto map = [&](const Rows<BFloat16>& rows, int count, int box_rows) {
    return head_tensor_map(rows, op.heads.dim, count, op.tokens, box_rows);
  };
  Backward b{op,
             map(op.q, heads, kRowsPerStep),
             map(op.k, kv_heads, kRowsPerStep),
             map(op.v, kv_heads, kRowsPerStep),
             map(op.dout, heads, kRowsPerStep),
             map(op.q, heads, kTileRows),
             map(op.k, kv_heads, kTileRows),
             map(op.v, kv_heads, kTileRows),
             map(op.dout, heads, kTileRows),
             nullptr,
             0};
  std::vector<GradientLaunch> kernels = key_gradient_launches(op.heads.dim, op.cap, stream);
  kernels.push_back(query_gradient_launch(op.heads.dim, op.cap, stream));
  return [=, next = reinterpret_cast<int*>(counters)](int documents) mutable {
    check_cuda(cudaMemsetAsync(next, 0, kernels.size() * sizeof(int), stream), "attention_backward");
    launch_delta(op, stream);
    b.documents = documents;
    for (size_t i = 0; i < kernels.size(); i++) {
      b.next = next + i;
      kernels[i](b, i > 0);
    }
  };
}

}  // namespace snug::cuda
