// Computes attention for every dtype and head, with a warp for each token and head, key after key. Tests and generation
// run on it; attention_kernel() (facts.h) says which heads go by tiles instead.
#include "backend/attention_operands.h"
#include "backend/cuda/attention.cuh"
#include "backend/cuda/facts.h"
#include "backend/cuda/warpgroup.cuh"

namespace snug::cuda {
namespace {

constexpr int kMaxDim = 256, kParts = kMaxDim / 32;

// Holds a head's row over a warp's lanes: lane l has elements l, l + 32, ...
struct HeadRow {
  float x[kParts] = {};
};

template <class T>
__device__ HeadRow load_head(const T* from, int dim) {
  HeadRow row;
#pragma unroll
  for (int i = 0; i < kParts; i++) {
    const int d = i * 32 + static_cast<int>(threadIdx.x) % 32;
    if (d < dim) row.x[i] = to_float(from[d]);
  }
  return row;
}

template <class T>
__device__ void save_head(T* to, const HeadRow& row, float factor, int dim) {
#pragma unroll
  for (int i = 0; i < kParts; i++) {
    const int d = i * 32 + static_cast<int>(threadIdx.x) % 32;
    if (d < dim) store(to[d], row.x[i] * factor);
  }
}

__device__ inline float dot(const HeadRow& a, const HeadRow& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kParts; i++) sum = fmaf(a.x[i], b.x[i], sum);
  return warp_sum(sum);
}

__device__ inline void add(HeadRow& sum, float factor, const HeadRow& row) {
#pragma unroll
  for (int i = 0; i < kParts; i++) sum.x[i] = fmaf(factor, row.x[i], sum.x[i]);
}

// Computes the softmax over keys one after the other (Milakov and Gimelshein, arXiv:1805.02867), and over a score
// without a key, `sink`, unless that is -inf. Returns the log of the sum of exponentials.
template <class T>
__device__ float attend(const T* query, const T* keys, int64_t key_stride, const T* values, int64_t value_stride,
                        int64_t count, int dim, int value_dim, float scale, float cap, float sink, T* out) {
  const HeadRow q = load_head(query, dim);
  HeadRow sums;
  float maximum = -INFINITY, total = 0;
  for (int64_t j = 0; j < count; j++) {
    const float score = capped(scale * dot(q, load_head(keys + j * key_stride, dim)), cap);
    const float higher = fmaxf(maximum, score), weight = exact_exp(score - higher);
    const float factor = exact_exp(maximum - higher);
    maximum = higher;
    total = fmaf(total, factor, weight);
    const HeadRow v = load_head(values + j * value_stride, value_dim);
#pragma unroll
    for (int i = 0; i < kParts; i++) sums.x[i] = fmaf(sums.x[i], factor, weight * v.x[i]);
  }
  const float higher = fmaxf(maximum, sink), factor = exact_exp(maximum - higher);
  total = fmaf(total, factor, exact_exp(sink - higher));
  save_head(out, sums, factor / total, value_dim);
  return higher + logf(total);
}

constexpr int kWarps = 4, kSinkThreads = 512;

// Says which element of a matrix of `columns` columns this warp computes; warps go along rows.
struct Place {
  int64_t row;
  int column;
};
__device__ inline Place place(int columns) {
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  return {warp / columns, static_cast<int>(warp % columns)};
}
unsigned grid(int64_t rows, int64_t columns) { return blocks_of(rows * columns, kWarps); }

template <class T>
__global__ void token_attention_kernel(AttentionRows<T> op, int documents) {
  const auto [token, head] = place(op.heads.heads);
  if (token >= op.tokens) return;
  const Span seen = op.mask(documents).seen(static_cast<int>(token));
  const int kv_head = head / op.heads.group();
  float log_sum = 0;
  if (seen.begin < seen.end)
    log_sum = attend(op.q.at(token, op.heads.query(head)), op.k.at(seen.begin, op.heads.key(kv_head)), op.k.stride,
                     op.v.at(seen.begin, op.heads.value(kv_head)), op.v.stride, seen.end - seen.begin, op.heads.dim,
                     op.heads.value_dim, op.scale, op.cap, op.sinks ? op.sinks[head] : -INFINITY,
                     op.out.at(token, op.heads.result(head)));
  else
    save_head(op.out.at(token, op.heads.result(head)), HeadRow{}, 1.0f, op.heads.value_dim);
  if (threadIdx.x % 32 == 0) *op.lse.at(head, token) = log_sum;
}

// Computes the gradients of the queries, and delta = sum of dout out for the other kernel.
template <class T>
__global__ void query_gradient_kernel(AttentionGradientRows<T> op, int documents) {
  const auto [token, head] = place(op.heads.heads);
  if (token >= op.tokens) return;
  const Span seen = op.mask(documents).seen(static_cast<int>(token));
  const int dim = op.heads.dim, value_dim = op.heads.value_dim, kv_head = head / op.heads.group(),
            column = op.heads.query(head), result = op.heads.result(head);
  HeadRow sums;
  float delta = 0;
  if (seen.begin < seen.end) {
    const HeadRow q = load_head(op.q.at(token, column), dim), dout = load_head(op.dout.at(token, result), value_dim);
    const float lse = *op.lse.at(head, token);
    delta = dot(dout, load_head(op.out.at(token, result), value_dim));
    for (int64_t j = seen.begin; j < seen.end; j++) {
      const HeadRow k = load_head(op.k.at(j, op.heads.key(kv_head)), dim);
      const float score = capped(op.scale * dot(q, k), op.cap);
      const float weight = exact_exp(score - lse) * cap_slope(score, op.cap);
      const float dweight = dot(dout, load_head(op.v.at(j, op.heads.value(kv_head)), value_dim));
      add(sums, weight * (dweight - delta), k);
    }
  }
  if (threadIdx.x % 32 == 0) op.delta[head * op.tokens + token] = delta;
  save_head(op.dq.at(token, column), sums, op.scale, dim);
}

// Computes the gradients of keys and values: a warp takes a token and key head, over its query heads and the tokens
// that attend to it.
template <class T>
__global__ void key_gradient_kernel(AttentionGradientRows<T> op, int documents) {
  const auto [token, kv_head] = place(op.heads.kv_heads);
  if (token >= op.keys) return;
  const Span seers = op.mask(documents).seers(static_cast<int>(token));
  const int dim = op.heads.dim, value_dim = op.heads.value_dim;
  const HeadRow k = load_head(op.k.at(token, op.heads.key(kv_head)), dim);
  const HeadRow v = load_head(op.v.at(token, op.heads.value(kv_head)), value_dim);
  HeadRow dk, dv;
  for (int head = kv_head * op.heads.group(); head < (kv_head + 1) * op.heads.group(); head++) {
    for (int64_t t = seers.begin; t < seers.end; t++) {
      const HeadRow q = load_head(op.q.at(t, op.heads.query(head)), dim),
                    dout = load_head(op.dout.at(t, op.heads.result(head)), value_dim);
      const float score = capped(op.scale * dot(q, k), op.cap);
      const float weight = exact_exp(score - *op.lse.at(head, t));
      const float delta = op.delta[head * op.tokens + t];
      add(dk, weight * cap_slope(score, op.cap) * (dot(dout, v) - delta), q);
      add(dv, weight, dout);
    }
  }
  save_head(op.dk.at(token, op.heads.key(kv_head)), dk, op.scale, dim);
  save_head(op.dv.at(token, op.heads.value(kv_head)), dv, 1.0f, value_dim);
}

// Computes the gradient of a head's sink, whose weight has -delta for gradient; a block sums in one order.
__global__ void __launch_bounds__(kSinkThreads)
    sink_gradient_kernel(const float* sinks, Rows<float> lse, const float* delta, int64_t tokens, float* dsinks) {
  const int head = static_cast<int>(blockIdx.x);
  float sum = 0;
  for (int64_t t = threadIdx.x; t < tokens; t += kSinkThreads)
    sum -= exact_exp(sinks[head] - *lse.at(head, t)) * delta[head * tokens + t];
  __shared__ float sums[kSinkThreads / 32];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = warp_sum(threadIdx.x < kSinkThreads / 32 ? sums[threadIdx.x] : 0.0f);
  if (threadIdx.x == 0) dsinks[head] = sum;
}

template <class T>
__global__ void cached_attention_kernel(Rows<T> q, int64_t tokens, Rows<T> cache, int64_t position, Heads heads,
                                        float scale, float cap, int window, Rows<T> out) {
  const auto [token, head] = place(heads.heads);
  if (token >= tokens) return;
  const int column = heads.key(head / heads.group());
  const int64_t end = position + token + 1, begin = max(int64_t{0}, end - window);
  attend(q.at(token, heads.query(head)), cache.at(begin, column), cache.stride,
         cache.at(begin, column + heads.kv_heads * heads.dim), cache.stride, end - begin, heads.dim, heads.dim, scale,
         cap, -INFINITY, out.at(token, heads.query(head)));
}

void expect_dims(const Operands& operands, std::initializer_list<int64_t> dims) {
  for (const int64_t dim : dims)
    operands.expect(0 < dim && dim <= kMaxDim, "heads of {} elements, at most {} are supported", dim, kMaxDim);
}

// Returns the kernel for an op with these matrices on this device.
AttentionKernel kernel_of(const Attention& attention, std::initializer_list<TensorView> views) {
  const bool in_eights = attention.shape.dim % kWide == 0 && attention.dim_of_values() % kWide == 0;
  const AttentionKernel kernel = attention_kernel(views.begin()->dtype, attention, warpgroups() ? 90 : 80);
  return wide(views, in_eights ? kWide : kWide / 2) ? kernel : AttentionKernel::ByToken;
}

}  // namespace

Launch bind_attention(const Attention& attention, Operands operands, cudaStream_t stream) {
  const AttentionOperands of = attention_operands(attention, operands);
  expect_dims(operands, {attention.shape.dim, attention.dim_of_values()});
  std::byte* const counters = operands.scratch(kTileCounterBytes);
  operands.done();
  return dispatch_activation(of.q.dtype, [&]<class T>() -> Launch {
    const AttentionRows<T> op{Rows<T>(of.q),
                              Rows<T>(of.k),
                              Rows<T>(of.v),
                              of.documents.as<int32_t>(),
                              of.key_documents.as<int32_t>(),
                              attention.sinks ? of.sinks.as<float>() : nullptr,
                              Rows<T>(of.out),
                              Rows<float>(of.lse),
                              of.q.rows(),
                              of.k.rows(),
                              Heads(attention),
                              attention.scale,
                              bound_of(attention.window),
                              bound_of(attention.chunk),
                              attention.bidirectional,
                              attention.cap};
    AttentionLaunch tiled;
    if constexpr (std::is_same_v<T, BFloat16>) {
      const AttentionKernel kernel = kernel_of(attention, {of.q, of.k, of.v, of.out});
      if (kernel == AttentionKernel::ByWarpgroups) tiled = warpgroup_attention(op, counters, stream);
      if (kernel == AttentionKernel::ByTiles) tiled = tiled_attention(op, stream);
    }
    return [=, documents = of.documents](const RuntimeScalars& runtime) {
      const int count = static_cast<int>(documents_of(attention, runtime, documents));
      if (tiled) return tiled(count);
      token_attention_kernel<<<grid(op.tokens, op.heads.heads), 32 * kWarps, 0, stream>>>(op, count);
      check_launch("attention");
    };
  });
}

Launch bind_attention_backward(const AttentionBackward& attention, Operands operands, cudaStream_t stream) {
  const AttentionBackwardOperands of = attention_backward_operands(attention, operands);
  expect_dims(operands, {attention.shape.dim, attention.dim_of_values()});
  std::byte* const counters = operands.scratch(attention_backward_scratch_bytes(attention, of.q.rows()));
  operands.done();
  return dispatch_activation(of.q.dtype, [&]<class T>() -> Launch {
    const AttentionGradientRows<T> op{Rows<T>(of.dout),
                                      Rows<T>(of.q),
                                      Rows<T>(of.k),
                                      Rows<T>(of.v),
                                      Rows<T>(of.out),
                                      Rows<float>(of.lse),
                                      of.documents.as<int32_t>(),
                                      of.key_documents.as<int32_t>(),
                                      attention.sinks ? of.sinks.as<float>() : nullptr,
                                      Rows<T>(of.dq),
                                      Rows<T>(of.dk),
                                      Rows<T>(of.dv),
                                      attention.sinks ? of.dsinks.as<float>() : nullptr,
                                      reinterpret_cast<float*>(counters + kTileCounterBytes),
                                      of.q.rows(),
                                      of.k.rows(),
                                      Heads(attention),
                                      attention.scale,
                                      bound_of(attention.window),
                                      bound_of(attention.chunk),
                                      attention.bidirectional,
                                      attention.cap};
    AttentionLaunch tiled;
    if constexpr (std::is_same_v<T, BFloat16>) {
      const AttentionKernel kernel = kernel_of(attention, {of.dout, of.q, of.k, of.v, of.out, of.dq, of.dk, of.dv});
      if (kernel == AttentionKernel::ByWarpgroups) tiled = warpgroup_attention_gradient(op, counters, stream);
      if (kernel == AttentionKernel::ByTiles) tiled = tiled_attention_gradient(op, stream);
    }
    return [=, documents = of.documents](const RuntimeScalars& runtime) {
      const int count = static_cast<int>(documents_of(attention, runtime, documents));
      if (tiled) {
        tiled(count);
      } else {
        query_gradient_kernel<<<grid(op.tokens, op.heads.heads), 32 * kWarps, 0, stream>>>(op, count);
        key_gradient_kernel<<<grid(op.keys, op.heads.kv_heads), 32 * kWarps, 0, stream>>>(op, count);
      }
      if (op.dsinks)
        sink_gradient_kernel<<<static_cast<unsigned>(op.heads.heads), kSinkThreads, 0, stream>>>(
            op.sinks, op.lse, op.delta, op.tokens, op.dsinks);
      check_launch("attention_backward");
    };
  });
}

Launch bind_cache_append(const CacheAppend& append, Operands operands, cudaStream_t stream) {
  const CacheAppendOperands of = cache_append_operands(append, operands);
  const int64_t width = of.k.cols();
  return [=](const RuntimeScalars& runtime) {
    check(runtime.position + of.k.rows() <= of.cache.rows(), "cache_append: {} tokens after {} in a cache of {}",
          of.k.rows(), runtime.position, of.cache.rows());
    const size_t size = element_bytes(of.k.dtype);
    const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements) * size; };
    for (int64_t half = 0; half < 2; half++) {
      const TensorView& from = half == 0 ? of.k : of.v;
      check_cuda(cudaMemcpy2DAsync(of.cache.data + bytes(runtime.position * of.cache.row_stride + half * width),
                                   bytes(of.cache.row_stride), from.data, bytes(from.row_stride), bytes(width),
                                   static_cast<size_t>(from.rows()), cudaMemcpyDeviceToDevice, stream),
                 "cache_append");
    }
  };
}

Launch bind_cached_attention(const CachedAttention& attention, Operands operands, cudaStream_t stream) {
  const CachedAttentionOperands of = cached_attention_operands(attention, operands);
  expect_dims(operands, {attention.shape.dim});
  const HeadShape shape = attention.shape;
  return dispatch_activation(of.q.dtype, [&]<class T>() -> Launch {
    return [=, scale = attention.scale, cap = attention.cap,
            window = bound_of(attention.window)](const RuntimeScalars& runtime) {
      const int64_t tokens = of.q.rows();
      check(runtime.position + tokens <= of.cache.rows(), "cached_attention: {} tokens after {} in a cache of {}",
            tokens, runtime.position, of.cache.rows());
      cached_attention_kernel<<<grid(tokens, shape.heads), 32 * kWarps, 0, stream>>>(
          Rows<T>(of.q), tokens, Rows<T>(of.cache), runtime.position, Heads(shape), scale, cap, window,
          Rows<T>(of.out));
      check_launch("cached_attention");
    };
  });
}

}  // namespace snug::cuda
