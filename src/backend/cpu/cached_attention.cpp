#include <memory>

#include "backend/cpu/attention_tiles.h"
#include "backend/cpu/products.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

// The rows of a product are the new tokens of all query heads that share a key head, head after head: row r is token
// r % n of head r / n of the group. So a tile of keys is packed once for all of them.
template <class T>
class TiledCachedAttention {
 public:
  TiledCachedAttention(const CachedAttention& attention, std::span<const TensorView> views)
      : columns_(attention.shape),
        scale_(attention.scale),
        tokens_(views[0].rows()),
        qkv_(views[0]),
        cache_(views[1]),
        out_(views[2]) {}

  void run(int64_t position) {
    const int64_t tiles = (columns_.group * tokens_ + kTile - 1) / kTile;
    share(tiles * columns_.kv_heads,
          [&](int64_t i) { attend(i % columns_.kv_heads, i / columns_.kv_heads * kTile, position); });
  }

 private:
  void attend(int64_t kv_head, int64_t begin, int64_t position) {
    const int64_t count = std::min(kTile, columns_.group * tokens_ - begin), rows = round_up_to_step(count);
    const int64_t padded = columns_.padded;
    StackArray<T, kTile * kMaxDim> queries, keys, values;
    StackArray<T, kTile * kTile> weights;
    StackArray<float, kTile * kTile> products;
    StackArray<float, kTile * kMaxDim> sums;
    RunningSoftmax softmax[kTile];
    for (RunningSoftmax& row : softmax) row.start();

    const TileUnit unit;
    for (int64_t r = 0; r < rows; r++) load_query(kv_head, begin + r, r < count, queries.data() + r * padded);
    const int64_t end = position + tokens_;
    for (int64_t key = 0; key < end; key += kTile) {
      const int64_t seen = std::min(kTile, end - key), width = round_up_to_step(seen);
      const T* row = cache_[key] + kv_head * columns_.dim;
      pack_b_turned<T>({row, cache_.stride, seen, columns_.dim}, keys.data());
      pack_b<T>({row + columns_.kv_heads * columns_.dim, cache_.stride, seen, columns_.dim}, values.data());
      tile_product(queries.data(), padded, keys.data(), width, products.data(), kTile, rows, width, padded, false);
      for (int64_t r = 0; r < rows; r++) {
        const int64_t visible = position + (begin + r) % tokens_ + 1 - key;
        float* weight = products.data() + r * kTile;
        const float factor = softmax[r].add(weight, width, std::min(visible, seen), scale_);
        round_row(weight, width, weights.data() + r * kTile);
        float* sum = sums.data() + r * padded;
        if (key > 0 && factor != 1)
          for (int64_t d = 0; d < padded; d++) sum[d] *= factor;
      }
      tile_product(weights.data(), kTile, values.data(), padded, sums.data(), padded, rows, padded, width, key > 0);
    }
    for (int64_t r = 0; r < count; r++) {
      float* sum = sums.data() + r * padded;
      const float factor = 1 / softmax[r].sum;
      for (int64_t d = 0; d < columns_.dim; d++) sum[d] *= factor;
      round_row(sum, columns_.dim, out_[(begin + r) % tokens_] + query_column(kv_head, begin + r));
    }
  }

  int64_t query_column(int64_t kv_head, int64_t row) const {
    return columns_.query(kv_head * columns_.group + row / tokens_);
  }

  void load_query(int64_t kv_head, int64_t row, bool there, T* to) const {
    const int64_t filled = there ? columns_.dim : 0;
    if (there) std::copy_n(qkv_[row % tokens_] + query_column(kv_head, row), filled, to);
    std::fill(to + filled, to + columns_.padded, T(0.0f));
  }

  HeadColumns columns_;
  float scale_;
  int64_t tokens_;
  Rows<T> qkv_, cache_, out_;
};

}  // namespace

uint64_t cached_attention_scratch_bytes(const CachedAttention&, std::span<const Operand>) { return 0; }
uint64_t cache_append_scratch_bytes(const CacheAppend&, std::span<const Operand>) { return 0; }

Launch bind_cached_attention(const CachedAttention& attention, std::span<const TensorView> views) {
  constexpr std::string_view kOp = "cached_attention";
  check(views.size() == 3, "{}: {} operands, expected 3", kOp, views.size());
  const HeadShape& shape = attention.shape;
  const DType dtype = views[0].dtype;
  expect_matrix(kOp, "qkv", views[0], dtype, views[0].rows(), shape.width());
  expect_matrix(kOp, "cache", views[1], dtype, views[1].rows(), 2 * shape.kv_heads * shape.dim);
  expect_matrix(kOp, "out", views[2], dtype, views[0].rows(), shape.heads * shape.dim);
  const int64_t tokens = views[0].rows(), capacity = views[1].rows();
  return dispatch_activation(dtype, [&]<class T>() -> Launch {
    const auto bound = std::make_shared<TiledCachedAttention<T>>(attention, views);
    return [bound, tokens, capacity](const PassFacts& facts) {
      check(facts.position + tokens <= capacity, "cached_attention: {} tokens after {} in a cache of {}", tokens,
            facts.position, capacity);
      bound->run(facts.position);
    };
  });
}

Launch bind_cache_append(const CacheAppend& append, std::span<const TensorView> views) {
  constexpr std::string_view kOp = "cache_append";
  check(views.size() == 2, "{}: {} operands, expected 2", kOp, views.size());
  const HeadShape shape = append.shape;
  const DType dtype = views[0].dtype;
  expect_matrix(kOp, "qkv", views[0], dtype, views[0].rows(), shape.width());
  expect_matrix(kOp, "cache", views[1], dtype, views[1].rows(), 2 * shape.kv_heads * shape.dim);
  return dispatch_activation(dtype, [&]<class T>() -> Launch {
    const Rows<T> qkv(views[0]), cache(views[1]);
    const int64_t tokens = views[0].rows(), capacity = views[1].rows();
    return [=](const PassFacts& facts) {
      check(facts.position + tokens <= capacity, "cache_append: {} tokens after {} in a cache of {}", tokens,
            facts.position, capacity);
      for (int64_t i = 0; i < tokens; i++)
        std::copy_n(qkv[i] + shape.heads * shape.dim, 2 * shape.kv_heads * shape.dim, cache[facts.position + i]);
    };
  });
}

}  // namespace snug::cpu
