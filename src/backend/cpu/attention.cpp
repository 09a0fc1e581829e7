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
  ForwardScratch(std::byte* start, const AttentionSize& size, const HeadColumns& columns) {
    ScratchWalk walk(start);
    tiles = DocumentTiles(walk, size, false);
    keys = walk.take<T>(columns.kv_heads * tiles.packed_rows() * columns.padded);
    values = walk.take<T>(columns.kv_heads * tiles.packed_rows() * columns.padded_values);
    bytes = walk.bytes();
  }

  DocumentTiles tiles;
  T* keys;    // by key head and tile: A [tokens][padded dim]
  T* values;  // by key head and tile: A [padded dim of values][tokens]
  uint64_t bytes;
};

// Computes attention: each tile of queries goes over its document's tiles of keys, with a running softmax. With queries
// as columns, S = K Q^T, P = exp(scale S - maximum), O^T = factor O^T + V^T P (Dao et al., arXiv:2205.14135).
template <class T>
class TiledAttention {
 public:
  TiledAttention(const Attention& attention, const AttentionOperands& of, std::byte* scratch)
      : columns_(attention),
        visibility_(attention),
        scale_(attention.scale),
        cap_(attention.cap),
        q_(of.q),
        k_(of.k),
        v_(of.v),
        documents_(of.documents.as<int32_t>()),
        key_documents_(of.key_documents.as<int32_t>()),
        sinks_(attention.sinks ? of.sinks.as<float>() : nullptr),
        out_(of.out),
        lse_(of.lse),
        tokens_(of.q.rows()),
        scratch_(scratch, {tokens_, of.k.rows(), of.documents.count() - 1, attention.cross}, columns_) {}

  void run(int64_t documents) {
    const auto count = static_cast<size_t>(documents + 1);
    scratch_.tiles.cut({documents_, count}, {key_documents_, count});
    const std::span<const DocumentTile> keys = scratch_.tiles.keys();
    share(std::ssize(keys) * columns_.kv_heads,
          [&](int64_t i) { pack(keys[static_cast<size_t>(i / columns_.kv_heads)], i % columns_.kv_heads); });
    // Late tiles attend to most keys: they come first, so that no thread starts a long one at the end.
    const int64_t tiles = std::ssize(scratch_.tiles.queries());
    share(tiles * columns_.heads, [&](int64_t i) { attend(tiles - 1 - i / columns_.heads, i % columns_.heads); });
    share_rows(tokens_, columns_.heads * columns_.value_dim, [&](int64_t row) {
      if (row >= documents_[0] && row < documents_[documents]) return;
      for (int64_t head = 0; head < columns_.heads; head++) clear(row, head);
    });
  }

 private:
  int64_t packed_row(const DocumentTile& tile, int64_t kv_head) const {
    return kv_head * scratch_.tiles.packed_rows() + tile.packed;
  }
  T* keys_at(const DocumentTile& tile, int64_t kv_head) const {
    return scratch_.keys + packed_row(tile, kv_head) * columns_.padded;
  }
  T* values_at(const DocumentTile& tile, int64_t kv_head) const {
    return scratch_.values + packed_row(tile, kv_head) * columns_.padded_values;
  }

  void pack(const DocumentTile& tile, int64_t kv_head) {
    pack_a(head_rows(k_, tile, columns_.key(kv_head), columns_.dim), keys_at(tile, kv_head));
    pack_a_transposed(head_rows(v_, tile, columns_.value(kv_head), columns_.value_dim), values_at(tile, kv_head));
  }

  void attend(int64_t index, int64_t head) {
    const DocumentTile& tile = scratch_.tiles.queries()[static_cast<size_t>(index)];
    const int64_t queries = tile.padded_rows(), padded = columns_.padded, padded_values = columns_.padded_values;
    const int64_t start = tile.index() * kTile, kv_head = columns_.kv_head(head);
    const auto [key_tiles, document_keys, first, end] = scratch_.tiles.keys_of(index, visibility_);
    if (first >= end) {
      for (int64_t row = tile.begin; row < tile.begin + tile.rows(); row++) clear(row, head);
      return;
    }
    StackArray<T, kTile * kMaxDim> q;
    StackArray<T, kTile * kTile> weights;
    StackArray<float, kTile * kTile> products;
    StackArray<float, kTile * kMaxDim> sums;
    RunningSoftmax softmax;
    const float scale = cap_ > 0 ? 1.0f : scale_;  // capped scores are scaled already

    const TileUnit unit;
    pack_b_transposed(head_rows(q_, tile, columns_.query(head), columns_.dim), q.data());
    for (int64_t j = first; j < end; j++) {
      const DocumentTile& key_tile = key_tiles[j];
      const int64_t keys = key_tile.padded_rows();
      tile_product(keys_at(key_tile, kv_head), padded, q.data(), queries, products.data(), kTile, keys, queries, padded,
                   false);
      if (cap_ > 0) cap_scores(products.data(), nullptr, keys, queries, scale_, cap_);
      VisibleKeys room;
      softmax.add(products.data(), keys, queries, visibility_.of_tiles(start, j * kTile, document_keys, room), scale);
      for (int64_t u = 0; u < keys; u += 2)
        round_row_pair(products.data() + u * kTile, products.data() + (u + 1) * kTile, queries,
                       weights.data() + u * queries);
      if (j > first) scale_columns(sums.data(), padded_values, queries, softmax.factor);
      tile_product(values_at(key_tile, kv_head), keys, weights.data(), queries, sums.data(), queries, padded_values,
                   queries, keys, j > first);
    }
    std::fill_n(softmax.factor, queries, 1.0f);
    if (sinks_) softmax.add_sink(sinks_[head], scale);
    for (int64_t i = 0; i < queries; i++) softmax.factor[i] /= softmax.sum[i];
    scale_columns(sums.data(), padded_values, queries, softmax.factor);
    round_columns(sums.data(), queries, tile.rows(), columns_.value_dim, out_[tile.begin] + columns_.result(head),
                  out_.stride);
    for (int64_t i = 0; i < tile.rows(); i++)
      lse_[head][tile.begin + i] = scale * softmax.maximum[i] + std::log(softmax.sum[i]);
  }

  void clear(int64_t row, int64_t head) {
    std::fill_n(out_[row] + columns_.result(head), columns_.value_dim, T(0.0f));
    lse_[head][row] = 0;
  }

  HeadColumns columns_;
  Visibility visibility_;
  float scale_, cap_;
  Rows<T> q_, k_, v_;
  const int32_t *documents_, *key_documents_;
  const float* sinks_;
  Rows<T> out_;
  Rows<float> lse_;
  int64_t tokens_;
  ForwardScratch<T> scratch_;
};

}  // namespace

uint64_t attention_scratch_bytes(const Attention& attention, std::span<const Operand> operands) {
  check(operands.size() >= 6, "attention: {} operands, expected 6", operands.size());
  const AttentionSize size{operands[0].shape.rows(), operands[1].shape.rows(), operands[3].shape.count() - 1,
                           attention.cross};
  return dispatch_activation(operands[0].dtype,
                             [&]<class T>() { return ForwardScratch<T>(nullptr, size, HeadColumns(attention)).bytes; });
}

Launch bind_attention(const Attention& attention, Operands operands) {
  const AttentionOperands of = attention_operands(attention, operands);
  return dispatch_activation(of.q.dtype, [&]<class T>() -> Launch {
    const AttentionSize size{of.q.rows(), of.k.rows(), of.documents.count() - 1, attention.cross};
    std::byte* const scratch = operands.scratch(ForwardScratch<T>(nullptr, size, HeadColumns(attention)).bytes);
    operands.done();
    const auto bound = std::make_shared<TiledAttention<T>>(attention, of, scratch);
    return [bound, attention, bounds = of.documents](const RuntimeScalars& runtime) {
      bound->run(documents_of(attention, runtime, bounds));
    };
  });
}

}  // namespace snug::cpu
