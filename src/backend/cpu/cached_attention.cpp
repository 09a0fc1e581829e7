#include <memory>

#include "backend/cpu/attention_tiles.h"
#include "backend/cpu/products.h"
#include "backend/cpu/runs.h"
#include "base/rounding.h"

namespace snug::cpu {
namespace {

// Computes cached attention. The columns of a product are the new tokens of all query heads that share a key head, head
// after head: column r is token r % n of head r / n of the group. So a tile of keys is packed once for all of them.
template <class T>
class TiledCachedAttention {
 public:
  TiledCachedAttention(const CachedAttention& attention, const CachedAttentionOperands& of)
      : columns_(attention.shape),
        scale_(attention.scale),
        cap_(attention.cap),
        window_(attention.window),
        tokens_(of.q.rows()),
        q_(of.q),
        cache_(of.cache),
        out_(of.out) {}

  void run(int64_t position) {
    const int64_t tiles = ceil_div(columns_.group * tokens_, kTile);
    share(tiles * columns_.kv_heads,
          [&](int64_t i) { attend(i % columns_.kv_heads, i / columns_.kv_heads * kTile, position); });
  }

 private:
  void attend(int64_t kv_head, int64_t begin, int64_t position) {
    const int64_t count = std::min(kTile, columns_.group * tokens_ - begin), queries = round_up_to_step(count);
    const int64_t padded = columns_.padded, end = position + tokens_;
    StackArray<T, kTile * kMaxDim> q, keys, values;
    StackArray<T, kTile * kTile> weights;
    StackArray<float, kTile * kTile> products;
    StackArray<float, kTile * kMaxDim> sums;
    VisibleKeys visible;
    RunningSoftmax softmax;

    const TileUnit unit;
    load_queries(kv_head, begin, count, q.data());
    const int64_t first = Visibility(window_).begin(position) / kTile * kTile;
    for (int64_t key = first; key < end; key += kTile) {
      const int64_t key_count = std::min(kTile, end - key), width = round_up_to_step(key_count);
      const T* row = cache_[key] + kv_head * columns_.dim;
      pack_a<T>({row, cache_.stride, key_count, columns_.dim}, keys.data());
      pack_a_transposed<T>({row + columns_.kv_heads * columns_.dim, cache_.stride, key_count, columns_.dim},
                           values.data());
      tile_product(keys.data(), padded, q.data(), queries, products.data(), kTile, width, queries, padded, false);
      for (int64_t r = 0; r < queries; r++) {
        const int64_t token = position + (begin + r) % tokens_;
        visible.begin[r] = static_cast<int32_t>(std::max<int64_t>(0, Visibility(window_).begin(token) - key));
        visible.end[r] = static_cast<int32_t>(std::min(key_count, token + 1 - key));
      }
      if (cap_ > 0) cap_scores(products.data(), nullptr, width, queries, scale_, cap_);
      softmax.add(products.data(), width, queries, &visible, cap_ > 0 ? 1.0f : scale_);
      for (int64_t u = 0; u < width; u += 2)
        round_row_pair(products.data() + u * kTile, products.data() + (u + 1) * kTile, queries,
                       weights.data() + u * queries);
      if (key > first) scale_columns(sums.data(), padded, queries, softmax.factor);
      tile_product(values.data(), width, weights.data(), queries, sums.data(), queries, padded, queries, width,
                   key > first);
    }
    for (int64_t i = 0; i < queries; i++) softmax.factor[i] = 1 / softmax.sum[i];
    scale_columns(sums.data(), padded, queries, softmax.factor);
    for (int64_t r = 0; r < count; r++) {
      // Writes one column at a time, as neighbours may be of different heads.
      T* out = out_[(begin + r) % tokens_] + query_column(kv_head, begin + r);
      for (int64_t d = 0; d < columns_.dim; d++) out[d] = T(sums.data()[d * queries + r]);
    }
  }

  int64_t query_column(int64_t kv_head, int64_t row) const {
    return columns_.query(kv_head * columns_.group + row / tokens_);
  }

  void load_queries(int64_t kv_head, int64_t begin, int64_t count, T* to) const {
    StackArray<T, kTile * kMaxDim> rows;
    for (int64_t r = 0; r < count; r++)
      std::copy_n(q_[(begin + r) % tokens_] + query_column(kv_head, begin + r), columns_.dim,
                  rows.data() + r * columns_.dim);
    pack_b_transposed<T>({rows.data(), columns_.dim, count, columns_.dim}, to);
  }

  HeadColumns columns_;
  float scale_, cap_;
  int64_t window_;
  int64_t tokens_;
  Rows<T> q_, cache_, out_;
};

}  // namespace

uint64_t cached_attention_scratch_bytes(const CachedAttention&, std::span<const Operand>) { return 0; }
uint64_t cache_append_scratch_bytes(const CacheAppend&, std::span<const Operand>) { return 0; }

Launch bind_cached_attention(const CachedAttention& attention, Operands operands) {
  const CachedAttentionOperands of = cached_attention_operands(attention, operands);
  const int64_t tokens = of.q.rows(), capacity = of.cache.rows();
  return dispatch_activation(of.q.dtype, [&]<class T>() -> Launch {
    const auto bound = std::make_shared<TiledCachedAttention<T>>(attention, of);
    return [bound, tokens, capacity](const RuntimeScalars& runtime) {
      check(runtime.position + tokens <= capacity, "cached_attention: {} tokens after {} in a cache of {}", tokens,
            runtime.position, capacity);
      bound->run(runtime.position);
    };
  });
}

Launch bind_cache_append(const CacheAppend& append, Operands operands) {
  const CacheAppendOperands of = cache_append_operands(append, operands);
  const int64_t tokens = of.k.rows(), capacity = of.cache.rows(), width = of.k.cols();
  return dispatch_activation(of.k.dtype, [&]<class T>() -> Launch {
    const Rows<T> k(of.k), v(of.v), cache(of.cache);
    return [=](const RuntimeScalars& runtime) {
      check(runtime.position + tokens <= capacity, "cache_append: {} tokens after {} in a cache of {}", tokens,
            runtime.position, capacity);
      for (int64_t i = 0; i < tokens; i++) {
        std::copy_n(k[i], width, cache[runtime.position + i]);
        std::copy_n(v[i], width, cache[runtime.position + i] + width);
      }
    };
  });
}

}  // namespace snug::cpu
