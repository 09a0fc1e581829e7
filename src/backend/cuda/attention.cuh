// What the ways to compute attention share.
#pragma once

#include <functional>

#include "backend/cuda/device.cuh"

namespace snug::cuda {

struct Heads {
  explicit Heads(const HeadShape& shape)
      : heads(static_cast<int>(shape.heads)),
        kv_heads(static_cast<int>(shape.kv_heads)),
        dim(static_cast<int>(shape.dim)) {}
  __device__ int query(int head) const { return head * dim; }
  __device__ int key(int kv_head) const { return (heads + kv_head) * dim; }
  __device__ int value(int kv_head) const { return (heads + kv_heads + kv_head) * dim; }
  __device__ int group() const { return heads / kv_heads; }
  int64_t width() const { return (heads + 2 * kv_heads) * dim; }
  int64_t out_width() const { return heads * dim; }
  int heads, kv_heads, dim;
};

// Tokens [begin, end) of the document of a token; empty outside documents.
struct Document {
  int64_t begin = 0, end = 0;
};

__device__ inline Document document_of(int64_t token, const int32_t* starts, int documents) {
  if (token < starts[0] || token >= starts[documents]) return {};
  int low = 0, high = documents;  // the last start that is not beyond the token is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (starts[middle] <= token ? low : high) = middle;
  }
  return {starts[low], starts[low + 1]};
}
// The first token that a token sees; `tokens` for one outside documents, which sees none.
__device__ inline int first_seen_by(int token, int tokens, const int32_t* starts, int documents) {
  const Document document = document_of(token, starts, documents);
  return document.end > document.begin ? static_cast<int>(document.begin) : tokens;
}

template <class T>
struct AttentionRows {
  Rows<T> qkv;
  const int32_t* starts;
  Rows<T> out;
  Rows<float> lse;
  int64_t tokens;
  Heads heads;
  float scale;
};

template <class T>
struct AttentionGradientRows {
  Rows<T> dout, qkv, out;
  Rows<float> lse;
  const int32_t* starts;
  Rows<T> dqkv;
  float* delta;  // [heads][tokens]: the sum of dout out
  int64_t tokens;
  Heads heads;
  float scale;
};

// On the tensor cores, for rows that can be read 16 bytes at a time: what enqueues it for a number of documents; none
// where it is not made for heads of this size.
using AttentionLaunch = std::function<void(int documents)>;
AttentionLaunch tiled_attention(const AttentionRows<BFloat16>& op, cudaStream_t stream);
AttentionLaunch tiled_attention_gradient(const AttentionGradientRows<BFloat16>& op, cudaStream_t stream);
// The same by Hopper's warpgroups; none on other devices. `counters`: of kTileCounterBytes.
AttentionLaunch warpgroup_attention(const AttentionRows<BFloat16>& op, std::byte* counters, cudaStream_t stream);
AttentionLaunch warpgroup_attention_gradient(const AttentionGradientRows<BFloat16>& op, std::byte* counters,
                                             cudaStream_t stream);

}  // namespace snug::cuda
