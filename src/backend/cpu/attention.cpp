#include <cmath>
#include <memory>

#include "backend/cpu/attention_tiles.h"
#include "backend/cpu/products.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

// Holds keys and values packed once, for all tiles of queries that read them.
template <class T>
struct ForwardScratch {
  ForwardScratch(std::byte* start, int64_t tokens, int64_t documents, const HeadColumns& columns)
      : bounds(tokens, documents) {
    ScratchWalk walk(start);
    tiles = walk.take<DocumentTile>(bounds.tiles);
    keys = walk.take<T>(columns.kv_heads * bounds.packed_rows * columns.padded);
    values = walk.take<T>(columns.kv_heads * bounds.packed_rows * columns.padded);
    bytes = walk.bytes();
  }

  TileBounds bounds;
  DocumentTile* tiles;
  T* keys;    // by key head and tile: A [tokens][padded dim]
  T* values;  // by key head and tile: A [padded dim][tokens]
  uint64_t bytes;
};

// Computes attention: each tile of queries goes over its document's tiles of keys up to its own, with a running
// softmax. With queries as columns, S = K Q^T, P = exp(scale S - maximum), O^T = factor O^T + V^T P (Dao et al.,
// arXiv:2205.14135).
template <class T>
class TiledAttention {
 public:
  TiledAttention(const Attention& attention, std::span<const TensorView> views)
      : columns_(attention.shape),
        scale_(attention.scale),
        cap_(attention.cap),
        window_(attention.window),
        q_(views[0]),
        k_(views[1]),
        v_(views[2]),
        documents_(views[3].as<int32_t>()),
        out_(views[4]),
        lse_(views[5]),
        tokens_(views[0].rows()),
        scratch_(nullptr, tokens_, views[3].count() - 1, columns_) {
    scratch_ =
        ForwardScratch<T>(scratch_of("attention", views[6], scratch_.bytes), tokens_, views[3].count() - 1, columns_);
  }

  void run(int64_t documents) {
    const int64_t tiles = cut_documents({documents_, static_cast<size_t>(documents + 1)}, scratch_.tiles);
    share(tiles * columns_.kv_heads,
          [&](int64_t i) { pack(scratch_.tiles[i / columns_.kv_heads], i % columns_.kv_heads); });
    // Late tiles attend to most keys: they come first, so that no thread starts a long one at the end.
    share(tiles * columns_.heads, [&](int64_t i) { attend(tiles - 1 - i / columns_.heads, i % columns_.heads); });
    share_rows(tokens_, columns_.heads * columns_.dim, [&](int64_t row) {
      if (row < documents_[0] || row >= documents_[documents]) clear(row);
    });
  }

 private:
  int64_t packed_offset(const DocumentTile& tile, int64_t kv_head) const {
    return (kv_head * scratch_.bounds.packed_rows + tile.packed) * columns_.padded;
  }

  HeadRows<T> head_rows(const Rows<T>& matrix, const DocumentTile& tile, int64_t column) const {
    return {matrix[tile.begin] + column, matrix.stride, tile.rows(), columns_.dim};
  }

  void pack(const DocumentTile& tile, int64_t kv_head) {
    pack_a(head_rows(k_, tile, columns_.key(kv_head)), scratch_.keys + packed_offset(tile, kv_head));
    pack_a_transposed(head_rows(v_, tile, columns_.key(kv_head)), scratch_.values + packed_offset(tile, kv_head));
  }

  void attend(int64_t index, int64_t head) {
    const DocumentTile& tile = scratch_.tiles[index];
    const int64_t queries = tile.padded_rows(), padded = columns_.padded, kv_head = columns_.kv_head(head);
    const int64_t start = tile.index() * kTile;
    const int64_t first = index - tile.index() + first_visible(start, window_) / kTile;
    StackArray<T, kTile * kMaxDim> q;
    StackArray<T, kTile * kTile> weights;
    StackArray<float, kTile * kTile> products;
    StackArray<float, kTile * kMaxDim> sums;
    RunningSoftmax softmax;
    const float scale = cap_ > 0 ? 1.0f : scale_;  // capped scores are scaled already

    const TileUnit unit;
    pack_b_transposed(head_rows(q_, tile, columns_.query(head)), q.data());
    for (int64_t j = first; j <= index; j++) {
      const DocumentTile& key_tile = scratch_.tiles[j];
      const int64_t keys = key_tile.padded_rows();
      tile_product(scratch_.keys + packed_offset(key_tile, kv_head), padded, q.data(), queries, products.data(), kTile,
                   keys, queries, padded, false);
      if (cap_ > 0) cap_scores(products.data(), nullptr, keys, queries, scale_, cap_);
      VisibleKeys room;
      softmax.add(products.data(), keys, queries, visible_keys(start, key_tile.index() * kTile, window_, room), scale);
      for (int64_t u = 0; u < keys; u += 2)
        round_row_pair(products.data() + u * kTile, products.data() + (u + 1) * kTile, queries,
                       weights.data() + u * queries);
      if (j > first) scale_columns(sums.data(), padded, queries, softmax.factor);
      tile_product(scratch_.values + packed_offset(key_tile, kv_head), keys, weights.data(), queries, sums.data(),
                   queries, padded, queries, keys, j > first);
    }
    for (int64_t i = 0; i < queries; i++) softmax.factor[i] = 1 / softmax.sum[i];
    scale_columns(sums.data(), padded, queries, softmax.factor);
    round_columns(sums.data(), queries, tile.rows(), columns_.dim, out_[tile.begin] + columns_.query(head),
                  out_.stride);
    for (int64_t i = 0; i < tile.rows(); i++)
      lse_[head][tile.begin + i] = scale * softmax.maximum[i] + std::log(softmax.sum[i]);
  }

  void clear(int64_t row) {
    std::fill_n(out_[row], columns_.heads * columns_.dim, T(0.0f));
    for (int64_t head = 0; head < columns_.heads; head++) lse_[head][row] = 0;
  }

  HeadColumns columns_;
  float scale_, cap_;
  int64_t window_;
  Rows<T> q_, k_, v_;
  const int32_t* documents_;
  Rows<T> out_;
  Rows<float> lse_;
  int64_t tokens_;
  ForwardScratch<T> scratch_;
};

}  // namespace

uint64_t attention_scratch_bytes(const Attention& attention, std::span<const Operand> operands) {
  check(operands.size() >= 6, "attention: {} operands, expected 6", operands.size());
  const int64_t tokens = operands[0].shape.rows(), documents = operands[3].shape.count() - 1;
  return dispatch_activation(operands[0].dtype, [&]<class T>() {
    return ForwardScratch<T>(nullptr, tokens, documents, HeadColumns(attention.shape)).bytes;
  });
}

Launch bind_attention(const Attention& attention, std::span<const TensorView> views) {
  check(views.size() == 7, "attention: {} operands, expected 7", views.size());
  const HeadShape& shape = attention.shape;
  const int64_t tokens = views[0].rows();
  const DType dtype = views[0].dtype;
  expect_matrix("attention", "q", views[0], dtype, tokens, shape.heads * shape.dim);
  expect_matrix("attention", "k", views[1], dtype, tokens, shape.kv_heads * shape.dim);
  expect_matrix("attention", "v", views[2], dtype, tokens, shape.kv_heads * shape.dim);
  expect_matrix("attention", "out", views[4], dtype, tokens, shape.heads * shape.dim);
  expect_matrix("attention", "lse", views[5], DType::F32, shape.heads, tokens);
  return dispatch_activation(dtype, [&]<class T>() -> Launch {
    const auto bound = std::make_shared<TiledAttention<T>>(attention, views);
    return [bound](const RuntimeScalars& runtime) { bound->run(runtime.documents); };
  });
}

}  // namespace snug::cpu
