// Holds the operands and the mask that all kernels of attention share.
#pragma once

#include <functional>

#include "backend/cuda/device.cuh"

namespace snug::cuda {

struct Heads {
  explicit Heads(const HeadShape& shape) : Heads(shape, shape.dim) {}
  explicit Heads(const Attention& attention) : Heads(attention.shape, attention.dim_of_values()) {}
  // Return where a head's columns begin: among those of queries, keys, values, and results.
  __device__ int query(int head) const { return head * dim; }
  __device__ int key(int kv_head) const { return kv_head * dim; }
  __device__ int value(int kv_head) const { return kv_head * value_dim; }
  __device__ int result(int head) const { return head * value_dim; }
  __device__ int group() const { return heads / kv_heads; }
  int widest() const { return std::max(dim, value_dim); }
  int heads, kv_heads, dim, value_dim;

 private:
  Heads(const HeadShape& shape, int64_t value_dim)
      : heads(static_cast<int>(shape.heads)),
        kv_heads(static_cast<int>(shape.kv_heads)),
        dim(static_cast<int>(shape.dim)),
        value_dim(static_cast<int>(value_dim)) {}
};

// Holds tokens [begin, end).
struct Span {
  int begin, end;
};

// Says which keys a query sees, and which queries see a key. Both are one range of a document, whose bounds do not fall
// from token to token; outside documents the range is empty, as it begins at the end of all tokens and ends at 0.
struct AttentionMask {
  const int32_t *starts, *key_starts;  // of the documents, and the end of the last
  int documents, tokens, keys;
  int window, chunk;  // kUnbounded: none
  bool bidirectional;

  // Returns the document of a token; -1 outside documents.
  __device__ static int document_of(int token, const int32_t* starts, int documents) {
    if (token < starts[0] || token >= starts[documents]) return -1;
    int low = 0, high = documents;  // the last start that is not beyond the token is in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (starts[middle] <= token ? low : high) = middle;
    }
    return low;
  }
  // Returns the keys that a query sees.
  __device__ Span seen(int query) const {
    const int d = document_of(query, starts, documents);
    if (d < 0) return {keys, 0};
    if (bidirectional) return {key_starts[d], key_starts[d + 1]};
    const int begin = starts[d];
    return {max(max(begin, query - window + 1), query - (query - begin) % chunk), query + 1};
  }
  // Returns the queries that see a key.
  __device__ Span seers(int key) const {
    const int d = document_of(key, key_starts, documents);
    if (d < 0) return {tokens, 0};
    if (bidirectional) return {starts[d], starts[d + 1]};
    const int begin = starts[d];
    return {key, min(min(starts[d + 1], key + window), key - (key - begin) % chunk + chunk)};
  }
  // Returns what a query sees, or what sees a key.
  template <bool of_queries>
  __device__ Span of(int row) const {
    return of_queries ? seen(row) : seers(row);
  }

  static constexpr int kUnbounded = 1 << 30;
};

template <class T>
struct AttentionRows {
  __device__ AttentionMask mask(int documents) const {
    return {starts, key_starts, documents,    static_cast<int>(tokens), static_cast<int>(keys),
            window, chunk,      bidirectional};
  }
  Rows<T> q, k, v;
  const int32_t *starts, *key_starts;
  const float* sinks;  // of the heads, or null
  Rows<T> out;
  Rows<float> lse;
  int64_t tokens, keys;
  Heads heads;
  float scale;
  int window, chunk;
  bool bidirectional;
  float cap;  // of scores; 0: none
};

template <class T>
struct AttentionGradientRows {
  __device__ AttentionMask mask(int documents) const {
    return {starts, key_starts, documents,    static_cast<int>(tokens), static_cast<int>(keys),
            window, chunk,      bidirectional};
  }
  Rows<T> dout, q, k, v, out;
  Rows<float> lse;
  const int32_t *starts, *key_starts;
  const float* sinks;
  Rows<T> dq, dk, dv;
  float* dsinks;
  float* delta;  // [heads][tokens]: the sum of dout out
  int64_t tokens, keys;
  Heads heads;
  float scale;
  int window, chunk;
  bool bidirectional;
  float cap;
};

// Returns an op's window, or its chunk, as kernels take it.
inline int bound_of(int64_t tokens) { return tokens > 0 ? static_cast<int>(tokens) : AttentionMask::kUnbounded; }

// Enqueues attention on the tensor cores, where attention_kernel() says so, for a number of documents.
using AttentionLaunch = std::function<void(int documents)>;
AttentionLaunch tiled_attention(const AttentionRows<BFloat16>& op, cudaStream_t stream);
AttentionLaunch tiled_attention_gradient(const AttentionGradientRows<BFloat16>& op, cudaStream_t stream);
// Return launches by Hopper's warpgroups. `counters` has kTileCounterBytes.
AttentionLaunch warpgroup_attention(const AttentionRows<BFloat16>& op, std::byte* counters, cudaStream_t stream);
AttentionLaunch warpgroup_attention_gradient(const AttentionGradientRows<BFloat16>& op, std::byte* counters,
                                             cudaStream_t stream);

}  // namespace snug::cuda
