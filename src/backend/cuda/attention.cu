// Attention for every dtype and head: a warp a token and head, key after key. What tests and generation run on;
// bf16 goes by tiles instead (attention_tiles.cuh) where heads are of a size they are made for.
#include "backend/cuda/attention.cuh"
#include "backend/cuda/facts.h"

namespace snug::cuda {
namespace {

constexpr int kMaxDim = 256, kParts = kMaxDim / 32;

// A head's row over a warp's lanes: lane l has elements l, l + 32, ...
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

// Softmax over keys one after the other (Milakov and Gimelshein, arXiv:1805.02867). Gives the log of the sum of
// exponentials.
template <class T>
__device__ float attend(const T* query, const T* keys, const T* values, int64_t stride, int64_t count, int dim,
                        float scale, T* out) {
  const HeadRow q = load_head(query, dim);
  HeadRow sums;
  float maximum = -INFINITY, total = 0;
  for (int64_t j = 0; j < count; j++) {
    const float score = scale * dot(q, load_head(keys + j * stride, dim));
    const float higher = fmaxf(maximum, score), weight = exact_exp(score - higher);
    const float factor = exact_exp(maximum - higher);
    maximum = higher;
    total = fmaf(total, factor, weight);
    const HeadRow v = load_head(values + j * stride, dim);
#pragma unroll
    for (int i = 0; i < kParts; i++) sums.x[i] = fmaf(sums.x[i], factor, weight * v.x[i]);
  }
  save_head(out, sums, 1.0f / total, dim);
  return maximum + logf(total);
}

constexpr int kWarps = 4;

// The place of this warp among rows x columns, column by column of one row.
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
__global__ void attention_kernel(AttentionRows<T> op, int documents) {
  const auto [token, head] = place(op.heads.heads);
  if (token >= op.tokens) return;
  const int64_t begin = op.sight(documents).first_seen_by(static_cast<int>(token), static_cast<int>(op.tokens));
  const int kv_head = head / op.heads.group(), column = op.heads.query(head);
  float log_sum = 0;
  if (begin < op.tokens)
    log_sum = attend(op.qkv.at(token, column), op.qkv.at(begin, op.heads.key(kv_head)),
                     op.qkv.at(begin, op.heads.value(kv_head)), op.qkv.stride, token + 1 - begin, op.heads.dim,
                     op.scale, op.out.at(token, column));
  else
    save_head(op.out.at(token, column), HeadRow{}, 1.0f, op.heads.dim);
  if (threadIdx.x % 32 == 0) *op.lse.at(head, token) = log_sum;
}

// The gradients of the queries, and delta = sum of dout out for the other kernel.
template <class T>
__global__ void query_gradient_kernel(AttentionGradientRows<T> op, int documents) {
  const auto [token, head] = place(op.heads.heads);
  if (token >= op.tokens) return;
  const int64_t begin = op.sight(documents).first_seen_by(static_cast<int>(token), static_cast<int>(op.tokens));
  const int dim = op.heads.dim, kv_head = head / op.heads.group(), column = op.heads.query(head);
  HeadRow sums;
  if (begin < op.tokens) {
    const HeadRow q = load_head(op.qkv.at(token, column), dim), dout = load_head(op.dout.at(token, column), dim);
    const float delta = dot(dout, load_head(op.out.at(token, column), dim)), lse = *op.lse.at(head, token);
    if (threadIdx.x % 32 == 0) op.delta[head * op.tokens + token] = delta;
    for (int64_t j = begin; j <= token; j++) {
      const HeadRow k = load_head(op.qkv.at(j, op.heads.key(kv_head)), dim);
      const float weight = exact_exp(op.scale * dot(q, k) - lse);
      const float dweight = dot(dout, load_head(op.qkv.at(j, op.heads.value(kv_head)), dim));
      add(sums, weight * (dweight - delta), k);
    }
  }
  save_head(op.dqkv.at(token, column), sums, op.scale, dim);
}

// The gradients of keys and values: a warp a token and key head, over its query heads and the tokens that see it.
template <class T>
__global__ void key_gradient_kernel(AttentionGradientRows<T> op, int documents) {
  const auto [token, kv_head] = place(op.heads.kv_heads);
  if (token >= op.tokens) return;
  const int end = op.sight(documents).end_of_seers(static_cast<int>(token));
  const int dim = op.heads.dim;
  const HeadRow k = load_head(op.qkv.at(token, op.heads.key(kv_head)), dim);
  const HeadRow v = load_head(op.qkv.at(token, op.heads.value(kv_head)), dim);
  HeadRow dk, dv;
  for (int head = kv_head * op.heads.group(); head < (kv_head + 1) * op.heads.group(); head++) {
    const int column = op.heads.query(head);
    for (int64_t t = token; t < end; t++) {
      const HeadRow q = load_head(op.qkv.at(t, column), dim), dout = load_head(op.dout.at(t, column), dim);
      const float weight = exact_exp(op.scale * dot(q, k) - *op.lse.at(head, t));
      const float delta = op.delta[head * op.tokens + t];
      add(dk, weight * (dot(dout, v) - delta), q);
      add(dv, weight, dout);
    }
  }
  save_head(op.dqkv.at(token, op.heads.key(kv_head)), dk, op.scale, dim);
  save_head(op.dqkv.at(token, op.heads.value(kv_head)), dv, 1.0f, dim);
}

template <class T>
__global__ void cached_attention_kernel(Rows<T> qkv, int64_t tokens, Rows<T> cache, int64_t position, Heads heads,
                                        float scale, int window, Rows<T> out) {
  const auto [token, head] = place(heads.heads);
  if (token >= tokens) return;
  const int column = head / heads.group() * heads.dim;
  const int64_t end = position + token + 1, begin = max(int64_t{0}, end - window);
  attend(qkv.at(token, heads.query(head)), cache.at(begin, column),
         cache.at(begin, column + heads.kv_heads * heads.dim), cache.stride, end - begin, heads.dim, scale,
         out.at(token, heads.query(head)));
}

const TensorView& take_qkv(Operands& operands, const HeadShape& shape, DTypes dtypes, int64_t tokens = -1) {
  const TensorView& qkv = operands.take("qkv", dtypes);
  operands.expect(qkv.cols() == shape.width() && (tokens < 0 || qkv.rows() == tokens),
                  "'qkv' is {}, expected {} columns", to_string(qkv.shape), shape.width());
  operands.expect(0 < shape.dim && shape.dim <= kMaxDim, "heads of {} elements, at most {} are supported", shape.dim,
                  kMaxDim);
  return qkv;
}

const TensorView& take_documents(Operands& operands, int64_t tokens) {
  const TensorView& documents = operands.dense("documents", {DType::I32});
  const int64_t most = 2 * tokens + 65;  // documents, and the padding between them
  operands.expect(2 <= documents.count() && documents.count() <= most, "'documents' is {}, expected at most {} bounds",
                  to_string(documents.shape), most);
  return documents;
}

int documents_of(const PassFacts& facts, const TensorView& starts) {
  check(0 < facts.documents && facts.documents < starts.count(), "attention: {} documents, at most {} were planned",
        facts.documents, starts.count() - 1);
  return static_cast<int>(facts.documents);
}

}  // namespace

Launch bind_attention(const Attention& attention, Operands operands, cudaStream_t stream) {
  const Heads heads(attention.shape);
  const TensorView qkv = take_qkv(operands, attention.shape, kActivation);
  const int64_t tokens = qkv.rows();
  const TensorView documents = take_documents(operands, tokens);
  const TensorView out = operands.matrix("out", {qkv.dtype}, tokens, attention.shape.heads * attention.shape.dim);
  const TensorView lse = operands.matrix("lse", {DType::F32}, attention.shape.heads, tokens);
  std::byte* const counters = operands.scratch(kTileCounterBytes);
  operands.done();
  return dispatch_activation(qkv.dtype, [&]<class T>() -> Launch {
    const AttentionRows<T> op{
        Rows<T>(qkv),    documents.as<int32_t>(),    Rows<T>(out), Rows<float>(lse), tokens, heads,
        attention.scale, window_of(attention.window)};
    AttentionLaunch tiled;
    if constexpr (std::is_same_v<T, BFloat16>)
      if (wide({qkv, out})) {
        tiled = warpgroup_attention(op, counters, stream);
        if (!tiled) tiled = tiled_attention(op, stream);
      }
    return [=](const PassFacts& facts) {
      const int count = documents_of(facts, documents);
      if (tiled) return tiled(count);
      attention_kernel<<<grid(tokens, heads.heads), 32 * kWarps, 0, stream>>>(op, count);
      check_launch("attention");
    };
  });
}

Launch bind_attention_backward(const AttentionBackward& attention, Operands operands, cudaStream_t stream) {
  const Heads heads(attention.shape);
  const int64_t width = attention.shape.heads * attention.shape.dim;
  const TensorView dout = operands.take("dout", kActivation);
  const int64_t tokens = dout.rows();
  operands.expect(dout.cols() == width, "'dout' is {}, expected {} columns", to_string(dout.shape), width);
  const TensorView qkv = take_qkv(operands, attention.shape, {dout.dtype}, tokens);
  const TensorView out = operands.matrix("out", {dout.dtype}, tokens, width);
  const TensorView lse = operands.matrix("lse", {DType::F32}, attention.shape.heads, tokens);
  const TensorView documents = take_documents(operands, tokens);
  const TensorView dqkv = operands.matrix("dqkv", {dout.dtype}, tokens, attention.shape.width());
  std::byte* const counters = operands.scratch(attention_backward_scratch_bytes(attention, tokens));
  auto* const delta = reinterpret_cast<float*>(counters + kTileCounterBytes);
  operands.done();
  return dispatch_activation(dout.dtype, [&]<class T>() -> Launch {
    const AttentionGradientRows<T> op{
        Rows<T>(dout), Rows<T>(qkv), Rows<T>(out), Rows<float>(lse), documents.as<int32_t>(),    Rows<T>(dqkv),
        delta,         tokens,       heads,        attention.scale,  window_of(attention.window)};
    AttentionLaunch tiled;
    if constexpr (std::is_same_v<T, BFloat16>)
      if (wide({dout, qkv, out, dqkv})) {
        tiled = warpgroup_attention_gradient(op, counters, stream);
        if (!tiled) tiled = tiled_attention_gradient(op, stream);
      }
    return [=](const PassFacts& facts) {
      const int count = documents_of(facts, documents);
      if (tiled) return tiled(count);
      query_gradient_kernel<<<grid(tokens, heads.heads), 32 * kWarps, 0, stream>>>(op, count);
      key_gradient_kernel<<<grid(tokens, heads.kv_heads), 32 * kWarps, 0, stream>>>(op, count);
      check_launch("attention_backward");
    };
  });
}

Launch bind_cache_append(const CacheAppend& append, Operands operands, cudaStream_t stream) {
  const HeadShape shape = append.shape;
  const TensorView qkv = take_qkv(operands, shape, kActivation);
  const TensorView cache = operands.take("cache", {qkv.dtype});
  const int64_t kept = 2 * shape.kv_heads * shape.dim;
  operands.expect(cache.cols() == kept, "'cache' is {}, expected {} columns", to_string(cache.shape), kept);
  operands.done();
  return [=](const PassFacts& facts) {
    check(facts.position + qkv.rows() <= cache.rows(), "cache_append: {} tokens after {} in a cache of {}", qkv.rows(),
          facts.position, cache.rows());
    const size_t size = element_bytes(qkv.dtype);
    const auto bytes = [&](int64_t elements) { return static_cast<size_t>(elements) * size; };
    check_cuda(cudaMemcpy2DAsync(cache.data + bytes(facts.position * cache.row_stride), bytes(cache.row_stride),
                                 qkv.data + bytes(shape.heads * shape.dim), bytes(qkv.row_stride), bytes(kept),
                                 static_cast<size_t>(qkv.rows()), cudaMemcpyDeviceToDevice, stream),
               "cache_append");
  };
}

Launch bind_cached_attention(const CachedAttention& attention, Operands operands, cudaStream_t stream) {
  const HeadShape shape = attention.shape;
  const TensorView qkv = take_qkv(operands, shape, kActivation);
  const TensorView cache = operands.take("cache", {qkv.dtype});
  const int64_t kept = 2 * shape.kv_heads * shape.dim;
  operands.expect(cache.cols() == kept, "'cache' is {}, expected {} columns", to_string(cache.shape), kept);
  const TensorView out = operands.matrix("out", {qkv.dtype}, qkv.rows(), shape.heads * shape.dim);
  operands.done();
  return dispatch_activation(qkv.dtype, [&]<class T>() -> Launch {
    return [=, scale = attention.scale, window = window_of(attention.window)](const PassFacts& facts) {
      check(facts.position + qkv.rows() <= cache.rows(), "cached_attention: {} tokens after {} in a cache of {}",
            qkv.rows(), facts.position, cache.rows());
      cached_attention_kernel<<<grid(qkv.rows(), shape.heads), 32 * kWarps, 0, stream>>>(
          Rows<T>(qkv), qkv.rows(), Rows<T>(cache), facts.position, Heads(shape), scale, window, Rows<T>(out));
      check_launch("cached_attention");
    };
  });
}

}  // namespace snug::cuda
