#include "backend/cuda/attention_softmax.cuh"

namespace snug::cuda {
namespace {

template <int D>
inline constexpr int kForwardBytes = 4 * kRowsPerStepOf<D>* kPitch<D>* static_cast<int>(sizeof(BFloat16));

template <int D>
__global__ void __launch_bounds__(kTileThreads, 1)
    attention_forward_kernel(const __grid_constant__ AttentionRows<BFloat16> op, int documents) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  constexpr int kRows = kRowsPerStepOf<D>;
  static_assert(4 * kRows >= kTileRows, "queries lie where keys and values come");
  auto* const keys = reinterpret_cast<BFloat16*>(shared_bytes);  // two tiles each, one after the other
  BFloat16* const values = keys + 2 * kRows * kPitch<D>;
  const int dim = op.heads.dim;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / op.heads.group();
  // Late tiles attend to most keys, so they come first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTileRows, tokens = static_cast<int>(op.tokens);

  fetch_tile<D>(keys, op.q.at(first, op.heads.query(head)), op.q.stride, kTileRows, tokens - first, dim);
  commit_fetches();
  int row[2], begin[2];
  thread_rows(first, tokens, op.mask(documents), row, begin);
  int least = min(begin[0], begin[1]);
  int largest = max(begin[0], begin[1]);
  block_min_max(least, largest);
  wait_fetches<0>();
  __syncthreads();
  Fragment queries[D / 16];
#pragma unroll
  for (int k = 0; k < D / 16; k++) load_left<D>(queries[k], keys, k);
  __syncthreads();

  const int steps = steps_over<kRows>(first, least, tokens);
  const auto fetch = [&](int step) {
    const int at = least + step * kRows, offset = step % 2 * kRows * kPitch<D>;
    fetch_tile<D>(keys + offset, op.k.at(at, op.heads.key(kv_head)), op.k.stride, kRows, tokens - at, dim);
    fetch_tile<D>(values + offset, op.v.at(at, op.heads.key(kv_head)), op.v.stride, kRows, tokens - at, dim);
    commit_fetches();
  };
  RowSoftmax softmax;
  Sum out[D / 8] = {};
  if (steps > 0) fetch(0);
  for (int step = 0; step < steps; step++) {
    await_step(step, steps, fetch);
    const int at = least + step * kRows, offset = step % 2 * kRows * kPitch<D>;
    Sum s[kRows / 8] = {};
    multiply_transposed<D>(s, left_in_registers(queries), keys + offset);
    if (at + kRows > first || at < largest) apply_mask(s, at, row, begin);
    float factor[2];
    softmax.add(s, op.scale * kLog2E, factor);
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) out[n][i] *= factor[i / 2];
    multiply_add<D>(out, s, values + offset);
    __syncthreads();
  }
  save_attention<D>(op, head, first, row, softmax, out);
}

}  // namespace

AttentionLaunch tiled_attention(const AttentionRows<BFloat16>& op, cudaStream_t stream) {
  return dispatch_dim<kTileDims>(op.heads.dim, [&]<int D>() -> AttentionLaunch {
    allow_shared(attention_forward_kernel<D>, kForwardBytes<D>);
    return [=, grid = dim3(blocks_of(op.tokens, kTileRows), static_cast<unsigned>(op.heads.heads))](int documents) {
      attention_forward_kernel<D><<<grid, kTileThreads, kForwardBytes<D>, stream>>>(op, documents);
      check_launch("attention");
    };
  });
}

}  // namespace snug::cuda
