#include <memory>

#include "backend/cpu/attention_tiles.h"
#include "backend/cpu/math.h"
#include "backend/cpu/products.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

// Keys and values packed for the products that read them, and the sums for their gradients, one for each query head.
template <class T>
struct BackwardScratch {
  BackwardScratch(std::byte* start, int64_t tokens, int64_t documents, const HeadColumns& columns)
      : bounds(tokens, documents) {
    ScratchWalk walk(start);
    const int64_t packed = columns.kv_heads * bounds.packed_rows * columns.padded;
    const int64_t sums = columns.heads * tokens * columns.padded;
    tiles = walk.take<DocumentTile>(bounds.tiles);
    document_tiles = walk.take<int32_t>(documents + 1);
    keys_turned = walk.take<T>(packed);
    values_turned = walk.take<T>(packed);
    keys = walk.take<T>(packed);
    dkeys = walk.take<float>(sums);
    dvalues = walk.take<float>(sums);
    bytes = walk.bytes();
  }

  TileBounds bounds;
  DocumentTile* tiles;
  int32_t* document_tiles;         // the first tile of each document, and the end of the last
  T *keys_turned, *values_turned;  // by key head and tile: B [padded dim][tokens]
  T* keys;                         // by key head and tile: B [tokens][padded dim]
  float *dkeys, *dvalues;          // by head and tile: [padded dim][tokens of the tile]
  uint64_t bytes;
};

// Each head of each document goes over its tiles of queries, and for each over the tiles of keys up to it: with
// S = Q K^T, P = exp(scale S - lse), dP = dO V^T and dS = P (dP - delta), delta = rowsum(dO O):
// dV += P^T dO, dK += scale dS^T Q, dQ = scale dS K (Dao et al., arXiv:2205.14135). dK and dV are kept turned, so that
// the tile of P or dS is the second factor everywhere it is summed over queries. Then the heads that share a key head
// are added in order.
template <class T>
class TiledAttentionBackward {
 public:
  TiledAttentionBackward(const AttentionBackward& attention, std::span<const TensorView> views)
      : columns_(attention.shape),
        scale_(attention.scale),
        dout_(views[0]),
        qkv_(views[1]),
        out_(views[2]),
        lse_(views[3]),
        documents_(views[4].as<int32_t>()),
        dqkv_(views[5]),
        tokens_(views[1].rows()),
        scratch_(nullptr, tokens_, views[4].count() - 1, columns_) {
    scratch_ = BackwardScratch<T>(scratch_of("attention_backward", views[6], scratch_.bytes), tokens_,
                                  views[4].count() - 1, columns_);
  }

  void run(int64_t documents) {
    const int64_t tiles = cut_documents({documents_, static_cast<size_t>(documents + 1)}, scratch_.tiles);
    int64_t tile = 0;
    for (int64_t d = 0; d < documents; d++) {
      scratch_.document_tiles[d] = static_cast<int32_t>(tile);
      tile += (documents_[d + 1] - documents_[d] + kTile - 1) / kTile;
    }
    scratch_.document_tiles[documents] = static_cast<int32_t>(tiles);

    share(tiles * columns_.kv_heads,
          [&](int64_t i) { pack(scratch_.tiles[i / columns_.kv_heads], i % columns_.kv_heads); });
    share(documents * columns_.heads, [&](int64_t i) { differentiate(i / columns_.heads, i % columns_.heads); });
    share(tiles * columns_.kv_heads,
          [&](int64_t i) { join_heads(scratch_.tiles[i / columns_.kv_heads], i % columns_.kv_heads); });
    share_rows(tokens_, (columns_.heads + 2 * columns_.kv_heads) * columns_.dim, [&](int64_t row) {
      if (row < documents_[0] || row >= documents_[documents])
        std::fill_n(dqkv_[row], (columns_.heads + 2 * columns_.kv_heads) * columns_.dim, T(0.0f));
    });
  }

 private:
  // One head's tile of queries, ready for all its products.
  struct Queries {
    StackArray<T, kTile * kMaxDim> q, q_turned, dout, dout_turned;
    StackArray<float, kTile * kMaxDim> dq;
    float lse[kTile], delta[kTile];
  };
  struct TilePair {
    StackArray<float, kTile * kTile> p, ds;        // fp32, by rows
    StackArray<T, kTile * kTile> p_b, ds_b, ds_a;  // rounded, as tile_product() wants them
    StackArray<float, kTile * kMaxDim> dk, dv;     // of a document's last tile, if that is not full
  };

  int64_t packed_offset(const DocumentTile& tile, int64_t kv_head) const {
    return (kv_head * scratch_.bounds.packed_rows + tile.packed) * columns_.padded;
  }
  int64_t sum_offset(const DocumentTile& tile, int64_t head) const {
    return (head * tokens_ + tile.begin) * columns_.padded;
  }

  static HeadRows<T> head_rows(const Rows<T>& matrix, const DocumentTile& tile, int64_t column, int64_t dim) {
    return {matrix[tile.begin] + column, matrix.stride, tile.rows(), dim};
  }

  void pack(const DocumentTile& tile, int64_t kv_head) {
    const auto keys = head_rows(qkv_, tile, columns_.key(kv_head), columns_.dim);
    const int64_t offset = packed_offset(tile, kv_head);
    pack_b_turned(keys, scratch_.keys_turned + offset);
    pack_b(keys, scratch_.keys + offset);
    pack_b_turned(head_rows(qkv_, tile, columns_.value(kv_head), columns_.dim), scratch_.values_turned + offset);
  }

  void load(const DocumentTile& tile, int64_t head, Queries& queries) const {
    const auto q = head_rows(qkv_, tile, columns_.query(head), columns_.dim);
    const auto dout = head_rows(dout_, tile, columns_.query(head), columns_.dim);
    pack_a(q, queries.q.data());
    pack_a_turned(q, queries.q_turned.data());
    pack_a(dout, queries.dout.data());
    pack_a_turned(dout, queries.dout_turned.data());
    for (int64_t r = 0; r < kTile; r++) {
      const bool there = r < tile.rows();
      const T* o = out_[tile.begin + (there ? r : 0)] + columns_.query(head);
      const T* d = dout.data + (there ? r : 0) * dout.stride;
      queries.lse[r] = there ? lse_[head][tile.begin + r] : 0;
      queries.delta[r] = there ? sum(columns_.dim, [&](int64_t i) { return to_float(o[i]) * to_float(d[i]); }) : 0;
    }
  }

  void differentiate(int64_t document, int64_t head) {
    const TileUnit unit;
    Queries queries;
    TilePair pair;
    const int64_t first = scratch_.document_tiles[document], end = scratch_.document_tiles[document + 1];
    for (int64_t i = first; i < end; i++) {
      const DocumentTile& tile = scratch_.tiles[i];
      load(tile, head, queries);
      for (int64_t j = first; j <= i; j++) differentiate_pair(tile, scratch_.tiles[j], head, queries, pair);
      for (int64_t r = 0; r < tile.rows(); r++) {
        float* dq = queries.dq.data() + r * columns_.padded;
        for (int64_t d = 0; d < columns_.dim; d++) dq[d] *= scale_;
        round_row(dq, columns_.dim, dqkv_[tile.begin + r] + columns_.query(head));
      }
    }
  }

  void differentiate_pair(const DocumentTile& tile, const DocumentTile& seen, int64_t head, Queries& queries,
                          TilePair& pair) {
    const int64_t rows = tile.padded_rows(), keys = seen.padded_rows(), padded = columns_.padded;
    const int64_t offset = packed_offset(seen, columns_.kv_head(head));
    const bool diagonal = seen.begin == tile.begin, first = seen.begin == seen.document_begin;
    tile_product(queries.q.data(), padded, scratch_.keys_turned + offset, keys, pair.p.data(), kTile, rows, keys,
                 padded, false);
    tile_product(queries.dout.data(), padded, scratch_.values_turned + offset, keys, pair.ds.data(), kTile, rows, keys,
                 padded, false);
    weigh(rows, keys, diagonal, queries, pair);
    tile_product(pair.ds_a.data(), kTile, scratch_.keys + offset, padded, queries.dq.data(), padded, rows, padded, keys,
                 !first);

    // The diagonal is the first to reach a tile of keys; a tile that is not full is reached by nothing else, and is
    // computed beside the sums because its zeros would run into the next document's.
    const bool full = seen.rows() == kTile;
    float* dk = scratch_.dkeys + sum_offset(seen, head);
    float* dv = scratch_.dvalues + sum_offset(seen, head);
    float* to_dk = full ? dk : pair.dk.data();
    float* to_dv = full ? dv : pair.dv.data();
    tile_product(queries.q_turned.data(), rows, pair.ds_b.data(), keys, to_dk, keys, padded, keys, rows, !diagonal);
    tile_product(queries.dout_turned.data(), rows, pair.p_b.data(), keys, to_dv, keys, padded, keys, rows, !diagonal);
    if (full) return;
    for (int64_t d = 0; d < padded; d++) {
      std::copy_n(to_dk + d * keys, seen.rows(), dk + d * seen.rows());
      std::copy_n(to_dv + d * keys, seen.rows(), dv + d * seen.rows());
    }
  }

  // Products to weights, their gradients to those of the products before scaling; rounded for the products to come.
  void weigh(int64_t rows, int64_t keys, bool diagonal, const Queries& queries, TilePair& pair) const {
    for (int64_t r = 0; r < rows; r++) {
      float* p = pair.p.data() + r * kTile;
      float* ds = pair.ds.data() + r * kTile;
      const float lse = queries.lse[r], delta = queries.delta[r];
      for (int64_t i = 0; i < keys; i++) {
        p[i] = exp(scale_ * p[i] - lse);
        ds[i] = p[i] * (ds[i] - delta);
      }
      if (diagonal) {
        std::fill(p + std::min(r + 1, keys), p + keys, 0.0f);
        std::fill(ds + std::min(r + 1, keys), ds + keys, 0.0f);
      }
      round_row(ds, keys, pair.ds_a.data() + r * kTile);
      if (r % 2 == 0) continue;
      round_row_pair(p - kTile, p, keys, pair.p_b.data() + (r - 1) * keys);
      round_row_pair(ds - kTile, ds, keys, pair.ds_b.data() + (r - 1) * keys);
    }
  }

  void join_heads(const DocumentTile& tile, int64_t kv_head) {
    join(scratch_.dkeys, tile, kv_head, scale_, columns_.key(kv_head));
    join(scratch_.dvalues, tile, kv_head, 1, columns_.value(kv_head));
  }

  void join(float* sums, const DocumentTile& tile, int64_t kv_head, float factor, int64_t column) {
    const int64_t rows = tile.rows(), head = kv_head * columns_.group;
    float* total = sums + sum_offset(tile, head);
    for (int64_t g = 1; g < columns_.group; g++) {
      const float* more = sums + sum_offset(tile, head + g);
      for (int64_t i = 0; i < columns_.dim * rows; i++) total[i] += more[i];
    }
    for (int64_t r = 0; r < rows; r++) {
      T* to = dqkv_[tile.begin + r] + column;
      for (int64_t d = 0; d < columns_.dim; d++) to[d] = T(factor * total[d * rows + r]);
    }
  }

  HeadColumns columns_;
  float scale_;
  Rows<T> dout_, qkv_, out_;
  Rows<float> lse_;
  const int32_t* documents_;
  Rows<T> dqkv_;
  int64_t tokens_;
  BackwardScratch<T> scratch_;
};

}  // namespace

uint64_t attention_backward_scratch_bytes(const AttentionBackward& attention, std::span<const Operand> operands) {
  check(operands.size() >= 6, "attention_backward: {} operands, expected 6", operands.size());
  const int64_t tokens = operands[1].shape.rows(), documents = operands[4].shape.count() - 1;
  return dispatch_activation(operands[1].dtype, [&]<class T>() {
    return BackwardScratch<T>(nullptr, tokens, documents, HeadColumns(attention.shape)).bytes;
  });
}

Launch bind_attention_backward(const AttentionBackward& attention, std::span<const TensorView> views) {
  constexpr std::string_view kOp = "attention_backward";
  check(views.size() == 7, "{}: {} operands, expected 7", kOp, views.size());
  const HeadShape& shape = attention.shape;
  const int64_t tokens = views[1].rows();
  const DType dtype = views[1].dtype;
  expect_matrix(kOp, "dout", views[0], dtype, tokens, shape.heads * shape.dim);
  expect_matrix(kOp, "qkv", views[1], dtype, tokens, shape.width());
  expect_matrix(kOp, "out", views[2], dtype, tokens, shape.heads * shape.dim);
  expect_matrix(kOp, "lse", views[3], DType::F32, shape.heads, tokens);
  expect_matrix(kOp, "dqkv", views[5], dtype, tokens, shape.width());
  return dispatch_activation(dtype, [&]<class T>() -> Launch {
    const auto bound = std::make_shared<TiledAttentionBackward<T>>(attention, views);
    return [bound](const PassFacts& facts) { bound->run(facts.documents); };
  });
}

}  // namespace snug::cpu
