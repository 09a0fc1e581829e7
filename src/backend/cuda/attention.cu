// Computes attention for every dtype and head, with a warp for each token and head, key after key. Tests and generation
// run on it; attention_kernel() (facts.h) says which heads go by tiles instead.
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

// Computes the softmax over keys one after the other (Milakov and Gimelshein, arXiv:1805.02867). Returns the log of the
// sum of exponentials.
template <class T>
__device__ float attend(const T* query, const T* keys, int64_t key_stride, const T* values, int64_t value_stride,
                        int64_t count, int dim, float scale, float cap, T* out) {
  const HeadRow q = load_head(query, dim);
  HeadRow sums;
  float maximum = -INFINITY, total = 0;
  for (int64_t j = 0; j < count; j++) {
    const float score = capped(scale * dot(q, load_head(keys + j * key_stride, dim)), cap);
    const float higher = fmaxf(maximum, score), weight = exact_exp(score - higher);
    const float factor = exact_exp(maximum - higher);
    maximum = higher;
    total = fmaf(total, factor, weight);
    const HeadRow v = load_head(values + j * value_stride, dim);
#pragma unroll
    for (int i = 0; i < kParts; i++) sums.x[i] = fmaf(sums.x[i], factor, weight * v.x[i]);
  }
  save_head(out, sums, 1.0f / total, dim);
  return maximum + logf(total);
}

constexpr int kWarps = 4;

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
  const int64_t begin = op.mask(documents).first_key(static_cast<int>(token), static_cast<int>(op.tokens));
  const int kv_head = head / op.heads.group(), column = op.heads.query(head);
  float log_sum = 0;
  if (begin < op.tokens)
    log_sum = attend(op.q.at(token, column), op.k.at(begin, op.heads.key(kv_head)), op.k.stride,
                     op.v.at(begin, op.heads.key(kv_head)), op.v.stride, token + 1 - begin, op.heads.dim, op.scale,
                     op.cap, op.out.at(token, column));
  else
    save_head(op.out.at(token, column), HeadRow{}, 1.0f, op.heads.dim);
  if (threadIdx.x % 32 == 0) *op.lse.at(head, token) = log_sum;
}

// Computes the gradients of the queries, and delta = sum of dout out for the other kernel.
template <class T>
__global__ void query_gradient_kernel(AttentionGradientRows<T> op, int documents) {
  const auto [token, head] = place(op.heads.heads);
  if (token >= op.tokens) return;
  const int64_t begin = op.mask(documents).first_key(static_cast<int>(token), static_cast<int>(op.tokens));
  const int dim = op.heads.dim, kv_head = head / op.heads.group(), column = op.heads.query(head);
  HeadRow sums;
  if (begin < op.tokens) {
    const HeadRow q = load_head(op.q.at(token, column), dim), dout = load_head(op.dout.at(token, column), dim);
    const float delta = dot(dout, load_head(op.out.at(token, column), dim)), lse = *op.lse.at(head, token);
    if (threadIdx.x % 32 == 0) op.delta[head * op.tokens + token] = delta;
    for (int64_t j = begin; j <= token; j++) {
      const HeadRow k = load_head(op.k.at(j, op.heads.key(kv_head)), dim);
      const float score = capped(op.scale * dot(q, k), op.cap);
      const float weight = exact_exp(score - lse) * cap_slope(score, op.cap);
      const float dweight = dot(dout, load_head(op.v.at(j, op.heads.key(kv_head)), dim));
      add(sums, weight * (dweight - delta), k);
    }
  }
  save_head(op.dq.at(token, column), sums, op.scale, dim);
}

// Computes the gradients of keys and values: a warp takes a token and key head, over its query heads and the tokens
// that attend to it.
template <class T>
__global__ void key_gradient_kernel(AttentionGradientRows<T> op, int documents) {
  const auto [token, kv_head] = place(op.heads.kv_heads);
  if (token >= op.tokens) return;
  const int end = op.mask(documents).last_query_end(static_cast<int>(token));
  const int dim = op.heads.dim;
  const HeadRow k = load_head(op.k.at(token, op.heads.key(kv_head)), dim);
  const HeadRow v = load_head(op.v.at(token, op.heads.key(kv_head)), dim);
  HeadRow dk, dv;
  for (int head = kv_head * op.heads.group(); head < (kv_head + 1) * op.heads.group(); head++) {
    const int column = op.heads.query(head);
    for (int64_t t = token; t < end; t++) {
      const HeadRow q = load_head(op.q.at(t, column), dim), dout = load_head(op.dout.at(t, column), dim);
      const float score = capped(op.scale * dot(q, k), op.cap);
      const float weight = exact_exp(score - *op.lse.at(head, t));
      const float delta = op.delta[head * op.tokens + t];
      add(dk, weight * cap_slope(score, op.cap) * (dot(dout, v) - delta), q);
      add(dv, weight, dout);
    }
  }
  save_head(op.dk.at(token, op.heads.key(kv_head)), dk, op.scale, dim);
  save_head(op.dv.at(token, op.heads.key(kv_head)), dv, 1.0f, dim);
}

template <class T>
__global__ void cached_attention_kernel(Rows<T> q, int64_t tokens, Rows<T> cache, int64_t position, Heads heads,
                                        float scale, float cap, int window, Rows<T> out) {
  const auto [token, head] = place(heads.heads);
  if (token >= tokens) return;
  const int column = heads.key(head / heads.group());
  const int64_t end = position + token + 1, begin = max(int64_t{0}, end - window);
  attend(q.at(token, heads.query(head)), cache.at(begin, column), cache.stride,
         cache.at(begin, column + heads.kv_heads * heads.dim), cache.stride, end - begin, heads.dim, scale, cap,
         out.at(token, heads.query(head)));
}

// Takes the first operand, which has `columns` columns.
const TensorView& take_rows(Operands& operands, std::string_view name, int64_t columns) {
  const TensorView& rows = operands.take(name, kActivation);
  operands.expect(rows.cols() == columns, "'{}' is {}, expected {} columns", name, to_string(rows.shape), columns);
  return rows;
}

void expect_dim(const Operands& operands, const HeadShape& shape) {
  operands.expect(0 < shape.dim && shape.dim <= kMaxDim, "heads of {} elements, at most {} are supported", shape.dim,
                  kMaxDim);
}

const TensorView& take_documents(Operands& operands, int64_t tokens) {
  const TensorView& documents = operands.dense("documents", {DType::I32});
  const int64_t most = 2 * tokens + 65;  // documents, and the padding between them
  operands.expect(2 <= documents.count() && documents.count() <= most, "'documents' is {}, expected at most {} bounds",
                  to_string(documents.shape), most);
  return documents;
}

// Takes keys and values of earlier tokens, side by side.
const TensorView& take_cache(Operands& operands, DType dtype, const HeadShape& shape) {
  const TensorView& cache = operands.take("cache", {dtype});
  const int64_t width = 2 * shape.kv_heads * shape.dim;
  operands.expect(cache.cols() == width, "'cache' is {}, expected {} columns", to_string(cache.shape), width);
  return cache;
}

// Returns the kernel for heads of `dim` elements on this device.
AttentionKernel kernel_of(DType dtype, int64_t dim, std::initializer_list<TensorView> views) {
  const AttentionKernel kernel = attention_kernel(dtype, dim, warpgroups() ? 90 : 80);
  return wide(views, dim % kWide == 0 ? kWide : kWide / 2) ? kernel : AttentionKernel::ByToken;
}

int documents_of(const RuntimeScalars& runtime, const TensorView& starts) {
  check(0 < runtime.documents && runtime.documents < starts.count(), "attention: {} documents, at most {} were planned",
        runtime.documents, starts.count() - 1);
  return static_cast<int>(runtime.documents);
}

}  // namespace

Launch bind_attention(const Attention& attention, Operands operands, cudaStream_t stream) {
  const Heads heads(attention.shape);
  expect_dim(operands, attention.shape);
  const TensorView q = take_rows(operands, "q", heads.query_width());
  const int64_t tokens = q.rows();
  const TensorView k = operands.matrix("k", {q.dtype}, tokens, heads.key_width());
  const TensorView v = operands.matrix("v", {q.dtype}, tokens, heads.key_width());
  const TensorView documents = take_documents(operands, tokens);
  const TensorView out = operands.matrix("out", {q.dtype}, tokens, heads.query_width());
  const TensorView lse = operands.matrix("lse", {DType::F32}, attention.shape.heads, tokens);
  std::byte* const counters = operands.scratch(kTileCounterBytes);
  operands.done();
  return dispatch_activation(q.dtype, [&]<class T>() -> Launch {
    const AttentionRows<T> op{
        Rows<T>(q), Rows<T>(k), Rows<T>(v),      documents.as<int32_t>(),     Rows<T>(out), Rows<float>(lse),
        tokens,     heads,      attention.scale, window_of(attention.window), attention.cap};
    AttentionLaunch tiled;
    if constexpr (std::is_same_v<T, BFloat16>) {
      const AttentionKernel kernel = kernel_of(q.dtype, heads.dim, {q, k, v, out});
      if (kernel == AttentionKernel::ByWarpgroups) tiled = warpgroup_attention(op, counters, stream);
      if (kernel == AttentionKernel::ByTiles) tiled = tiled_attention(op, stream);
    }
    return [=](const RuntimeScalars& runtime) {
      const int count = documents_of(runtime, documents);
      if (tiled) return tiled(count);
      token_attention_kernel<<<grid(tokens, heads.heads), 32 * kWarps, 0, stream>>>(op, count);
      check_launch("attention");
    };
  });
}

Launch bind_attention_backward(const AttentionBackward& attention, Operands operands, cudaStream_t stream) {
  const Heads heads(attention.shape);
  const int64_t width = heads.query_width(), kv_width = heads.key_width();
  expect_dim(operands, attention.shape);
  const TensorView dout = take_rows(operands, "dout", width);
  const int64_t tokens = dout.rows();
  const auto matrix = [&](std::string_view name, int64_t columns) {
    return operands.matrix(name, {dout.dtype}, tokens, columns);
  };
  const TensorView q = matrix("q", width), k = matrix("k", kv_width), v = matrix("v", kv_width);
  const TensorView out = matrix("out", width);
  const TensorView lse = operands.matrix("lse", {DType::F32}, attention.shape.heads, tokens);
  const TensorView documents = take_documents(operands, tokens);
  const TensorView dq = matrix("dq", width), dk = matrix("dk", kv_width), dv = matrix("dv", kv_width);
  std::byte* const counters = operands.scratch(attention_backward_scratch_bytes(attention, tokens));
  auto* const delta = reinterpret_cast<float*>(counters + kTileCounterBytes);
  operands.done();
  return dispatch_activation(dout.dtype, [&]<class T>() -> Launch {
    const AttentionGradientRows<T> op{Rows<T>(dout),
                                      Rows<T>(q),
                                      Rows<T>(k),
                                      Rows<T>(v),
                                      Rows<T>(out),
                                      Rows<float>(lse),
                                      documents.as<int32_t>(),
                                      Rows<T>(dq),
                                      Rows<T>(dk),
                                      Rows<T>(dv),
                                      delta,
                                      tokens,
                                      heads,
                                      attention.scale,
                                      window_of(attention.window),
                                      attention.cap};
    AttentionLaunch tiled;
    if constexpr (std::is_same_v<T, BFloat16>) {
      const AttentionKernel kernel = kernel_of(q.dtype, heads.dim, {dout, q, k, v, out, dq, dk, dv});
      if (kernel == AttentionKernel::ByWarpgroups) tiled = warpgroup_attention_gradient(op, counters, stream);
      if (kernel == AttentionKernel::ByTiles) tiled = tiled_attention_gradient(op, stream);
    }
    return [=](const RuntimeScalars& runtime) {
      const int count = documents_of(runtime, documents);
      if (tiled) return tiled(count);
      query_gradient_kernel<<<grid(tokens, heads.heads), 32 * kWarps, 0, stream>>>(op, count);
      key_gradient_kernel<<<grid(tokens, heads.kv_heads), 32 * kWarps, 0, stream>>>(op, count);
      check_launch("attention_backward");
    };
  });
}

Launch bind_cache_append(const CacheAppend& append, Operands operands, cudaStream_t stream) {
  const HeadShape shape = append.shape;
  const int64_t width = shape.kv_heads * shape.dim;
  expect_dim(operands, shape);
  const TensorView k = take_rows(operands, "k", width), v = operands.matrix("v", {k.dtype}, k.rows(), width);
  const TensorView cache = take_cache(operands, k.dtype, shape);
  operands.done();
  return [=](const RuntimeScalars& runtime) {
    check(runtime.position + k.rows() <= cache.rows(), "cache_append: {} tokens after {} in a cache of {}", k.rows(),
          runtime.position, cache.rows());
    const size_t size = element_bytes(k.dtype);
    const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements) * size; };
    for (int64_t half = 0; half < 2; half++) {
      const TensorView& from = half == 0 ? k : v;
      check_cuda(cudaMemcpy2DAsync(cache.data + bytes(runtime.position * cache.row_stride + half * width),
                                   bytes(cache.row_stride), from.data, bytes(from.row_stride), bytes(width),
                                   static_cast<size_t>(from.rows()), cudaMemcpyDeviceToDevice, stream),
                 "cache_append");
    }
  };
}

Launch bind_cached_attention(const CachedAttention& attention, Operands operands, cudaStream_t stream) {
  const HeadShape shape = attention.shape;
  const int64_t width = shape.heads * shape.dim;
  expect_dim(operands, shape);
  const TensorView q = take_rows(operands, "q", width), cache = take_cache(operands, q.dtype, shape);
  const TensorView out = operands.matrix("out", {q.dtype}, q.rows(), width);
  operands.done();
  return dispatch_activation(q.dtype, [&]<class T>() -> Launch {
    return [=, scale = attention.scale, cap = attention.cap,
            window = window_of(attention.window)](const RuntimeScalars& runtime) {
      check(runtime.position + q.rows() <= cache.rows(), "cached_attention: {} tokens after {} in a cache of {}",
            q.rows(), runtime.position, cache.rows());
      cached_attention_kernel<<<grid(q.rows(), shape.heads), 32 * kWarps, 0, stream>>>(
          Rows<T>(q), q.rows(), Rows<T>(cache), runtime.position, Heads(shape), scale, cap, window, Rows<T>(out));
      check_launch("cached_attention");
    };
  });
}

}  // namespace snug::cuda
