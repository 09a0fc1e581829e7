// attention_forward.cu by warpgroups: the products with a step's values run while the next step's weights are computed
// (Shah et al., arXiv:2407.08608).
#include "backend/cuda/attention_softmax.cuh"
#include "backend/cuda/attention_warpgroup.cuh"

namespace snug::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ const bool has_warpgroups = true;
#else
__device__ const bool has_warpgroups = false;
#endif

constexpr int kKeys = 128, kStages = 3;  // keys a step
template <int D>
inline constexpr int kStageBytes = 2 * kKeys* kBytesPerRow<D>;
template <int D>
inline constexpr int kForwardBytes = kTileAlignment + kOwn* kBytesPerRow<D> + kStages* kStageBytes<D>;

template <int D>
__global__ void __launch_bounds__(kTileThreads, 1)
    attention_forward_kernel(const __grid_constant__ AttentionRows<BFloat16> op, int documents) {
  const uint32_t queries = tiles_start(), stages = queries + kOwn * kBytesPerRow<D>;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / op.heads.group();
  // Late tiles see most keys: they come first.
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * kOwn, tokens = static_cast<int>(op.tokens);

  fetch_panels<D, kOwn>(queries, op.qkv.at(first, op.heads.query(head)), op.qkv.stride, tokens - first);
  int row[2], begin[2];  // of rows outside documents: beyond all keys
#pragma unroll
  for (int half = 0; half < 2; half++) {
    row[half] = first + own_row(half);
    const Document document = document_of(row[half], op.starts, documents);
    begin[half] = document.end > document.begin ? static_cast<int>(document.begin) : tokens;
  }
  int least = min(begin[0], begin[1]);
  int largest = max(begin[0], begin[1]);
  extremes(least, largest);

  const int end = min(first + kOwn, tokens), steps = max(0, end - least + kKeys - 1) / kKeys;
  const auto keys_of = [&](int step) { return stages + static_cast<uint32_t>(step % kStages * kStageBytes<D>); };
  const auto values_of = [&](int step) { return keys_of(step) + kKeys * kBytesPerRow<D>; };
  const auto fetch = [&](int step) {
    const int at = least + step * kKeys;
    fetch_panels<D, kKeys>(keys_of(step), op.qkv.at(at, op.heads.key(kv_head)), op.qkv.stride, tokens - at);
    fetch_panels<D, kKeys>(values_of(step), op.qkv.at(at, op.heads.value(kv_head)), op.qkv.stride, tokens - at);
    commit_fetches();
  };
  RowSoftmax softmax;
  Sum out[D / 8] = {};
  Fragment weights[kKeys / 16];
  if (steps > 0) fetch(0);
  for (int step = 0; step < steps; step++) {
    await_tiles();
    const int at = least + step * kKeys;
    Sum s[kKeys / 8];
    begin_products();
    start_turned<D>(s, queries, keys_of(step));
    commit_products();
    if (step > 0) start_add<D>(out, weights, values_of(step - 1));
    commit_products();
    if (step + 1 < steps) fetch(step + 1);
    wait_products<1>();
    settle(s);
    if (at + kKeys > first || at < largest) hide_unseen(s, at, row, begin);
    float factor[2];
    softmax.add(s, op.scale * kLog2E, factor);
    wait_products<0>();
    settle(out);
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) out[n][i] *= factor[i / 2];
    round_to_left(weights, s);
  }
  if (steps > 0) {
    start_add<D>(out, weights, values_of(steps - 1));
    commit_products();
    wait_products<0>();
    settle(out);
  }
  wait_fetches<0>();

  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float total = softmax.total(half);
    inverse[half] = total > 0 ? 1.0f / total : 0.0f;
    if (threadIdx.x % 4 == 0 && row[half] < tokens)
      *op.lse.at(head, row[half]) = total > 0 ? fmaf(op.scale, softmax.maximum[half], logf(total)) : 0.0f;
  }
  save_sums<D>(op.out.at(first, op.heads.query(head)), op.out.stride, tokens - first, out, inverse);
}

template <int D>
void launch(const AttentionRows<BFloat16>& op, int documents, cudaStream_t stream) {
  const dim3 grid(blocks_of(op.tokens, kOwn), static_cast<unsigned>(op.heads.heads));
  attention_forward_kernel<D><<<grid, kTileThreads, kForwardBytes<D>, stream>>>(op, documents);
  check_launch("attention");
}

template <int D>
AttentionKernel prepare() {
  allow_shared(attention_forward_kernel<D>, kForwardBytes<D>, "attention");
  return launch<D>;
}

}  // namespace

bool warpgroups() {
  bool has = false;
  check_cuda(cudaMemcpyFromSymbol(&has, has_warpgroups, sizeof(has)), "attention");
  return has;
}

AttentionKernel warpgroup_attention(int64_t dim) {
  if (!warpgroups()) return nullptr;
  return dim == 128 ? prepare<128>() : dim == 64 ? prepare<64>() : nullptr;
}

}  // namespace snug::cuda
