// Computes attention_backward.cu's gradients by warpgroups.
#include "backend/cuda/attention_warpgroup_gradients.cuh"

namespace snug::cuda {

AttentionLaunch warpgroup_attention_gradient(const GradientRows& op, std::byte* counters, cudaStream_t stream) {
  const int heads = op.heads.heads, kv_heads = op.heads.kv_heads;
  const int dim = op.heads.dim, value_dim = op.heads.value_dim;
  const int query_rows = query_gradient_rows(op.heads.widest(), op.cap);
  const int columns = smem_tile_columns(op.heads.widest(), op.cap);
  const auto queries = [&](const Rows<BFloat16>& rows, int size, int box_rows) {
    return head_tensor_map(rows, size, columns, heads, op.tokens, box_rows);
  };
  const auto keys = [&](const Rows<BFloat16>& rows, int size, int box_rows) {
    return head_tensor_map(rows, size, columns, kv_heads, op.keys, box_rows);
  };
  Backward b{op,
             queries(op.q, dim, kRowsPerStep),
             keys(op.k, dim, kRowsPerStep),
             keys(op.v, value_dim, kRowsPerStep),
             queries(op.dout, value_dim, kRowsPerStep),
             queries(op.q, dim, query_rows),
             keys(op.k, dim, kTileRows),
             keys(op.v, value_dim, kTileRows),
             queries(op.dout, value_dim, query_rows),
             nullptr,
             0};
  std::vector<GradientLaunch> kernels = key_gradient_launches(op.heads.widest(), op.cap, stream);
  kernels.push_back(query_gradient_launch(op.heads.widest(), op.cap, stream));
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
