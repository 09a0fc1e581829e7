// Holds the operands and the mask that all kernels of attention share.
#pragma once

#include <functional>

#include "backend/cuda/device.cuh"

namespace snug::cuda {

struct Heads {
  explicit Heads(const HeadShape& shape)
      : heads(static_cast<int>(shape.heads)),
        kv_heads(static_cast<int>(shape.kv_heads)),
        dim(static_cast<int>(shape.dim)) {}
  // Return where a head's columns begin: among those of queries and results, and among those of keys and of values.
  __device__ int query(int head) const { return head * dim; }
  __device__ int key(int kv_head) const { return kv_head * dim; }
  __device__ int group() const { return heads / kv_heads; }
  int64_t query_width() const { return heads * dim; }
  int64_t key_width() const { return kv_heads * dim; }
  int heads, kv_heads, dim;
};

// Holds tokens [begin, end) of the document of a token; empty outside documents.
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

// Masks scores: a query attends to the keys of its document up to itself, to the last `window` of them at most.
struct AttentionMask {
  const int32_t* starts;  // of the documents, and the end of the last
  int documents, window;

  __device__ Document document(int64_t token) const { return document_of(token, starts, documents); }
  // Returns the first key to which a query attends; `tokens` for a query outside documents, which attends to none.
  __device__ int first_key(int token, int tokens) const {
    const Document visible = document(token);
    return visible.end > visible.begin ? max(static_cast<int>(visible.begin), token - window + 1) : tokens;
  }
  // Returns the end of the queries that attend to a key; 0 for a key outside documents.
  __device__ int last_query_end(int token) const { return min(static_cast<int>(document(token).end), token + window); }
};

template <class T>
struct AttentionRows {
  __device__ AttentionMask mask(int documents) const { return {starts, documents, window}; }
  Rows<T> q, k, v;
  const int32_t* starts;
  Rows<T> out;
  Rows<float> lse;
  int64_t tokens;
  Heads heads;
  float scale;
  int window;
  float cap;  // of scores; 0: none
};

template <class T>
struct AttentionGradientRows {
  __device__ AttentionMask mask(int documents) const { return {starts, documents, window}; }
  Rows<T> dout, q, k, v, out;
  Rows<float> lse;
  const int32_t* starts;
  Rows<T> dq, dk, dv;
  float* delta;  // [heads][tokens]: the sum of dout out
  int64_t tokens;
  Heads heads;
  float scale;
  int window;
  float cap;
};

// Returns an op's window as kernels take it.
inline int window_of(int64_t window) { return window > 0 ? static_cast<int>(window) : 1 << 30; }

// Enqueues attention on the tensor cores, where attention_kernel() says so, for a number of documents.
using AttentionLaunch = std::function<void(int documents)>;
AttentionLaunch tiled_attention(const AttentionRows<BFloat16>& op, cudaStream_t stream);
AttentionLaunch tiled_attention_gradient(const AttentionGradientRows<BFloat16>& op, cudaStream_t stream);
// Return launches by Hopper's warpgroups. `counters` has kTileCounterBytes.
AttentionLaunch warpgroup_attention(const AttentionRows<BFloat16>& op, std::byte* counters, cudaStream_t stream);
AttentionLaunch warpgroup_attention_gradient(const AttentionGradientRows<BFloat16>& op, std::byte* counters,
                                             cudaStream_t stream);

}  // namespace snug::cuda
