// Computes attention_backward.cu's gradients by warpgroups.
#include "backend/cuda/attention_warpgroup_gradients.cuh"

namespace snug::cuda {

AttentionLaunch warpgroup_attention_gradient(const GradientRows& op, std::byte* counters, cudaStream_t stream) {
  const int heads = op.heads.heads, kv_heads = op.heads.kv_heads;
  const auto panels = [&](const Rows<BFloat16>& rows, int of, int box) {
    return panels_of(rows, op.heads.dim, of, op.tokens, box);
  };
  Backward b{op,
             panels(op.q, heads, kStep),
             panels(op.k, kv_heads, kStep),
             panels(op.v, kv_heads, kStep),
             panels(op.dout, heads, kStep),
             panels(op.q, heads, kOwn),
             panels(op.k, kv_heads, kOwn),
             panels(op.v, kv_heads, kOwn),
             panels(op.dout, heads, kOwn),
             nullptr,
             0};
  std::vector<GradientLaunch> kernels = key_gradient_launches(op.heads.dim, stream);
  kernels.push_back(query_gradient_launch(op.heads.dim, stream));
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
