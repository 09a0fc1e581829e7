#include <memory>

#include "backend/cpu/attention_tiles.h"
#include "backend/cpu/products.h"
#include "backend/cpu/runs.h"
#include "base/rounding.h"

namespace snug::cpu {
namespace {

// Holds keys and values packed for the products that read them, and the sums for their gradients, one for each query
// head.
template <class T>
struct BackwardScratch {
  BackwardScratch(std::byte* start, int64_t tokens, int64_t documents, const HeadColumns& columns)
      : bounds(tokens, documents) {
    ScratchWalk walk(start);
    const int64_t packed = columns.kv_heads * bounds.packed_rows * columns.padded;
    const int64_t sums = columns.heads * tokens * columns.padded;
    tiles = walk.take<DocumentTile>(bounds.tiles);
    document_tiles = walk.take<int32_t>(documents + 1);
    keys = walk.take<T>(packed);
    keys_transposed = walk.take<T>(packed);
    values = walk.take<T>(packed);
    dkeys = walk.take<float>(sums);
    dvalues = walk.take<float>(sums);
    bytes = walk.bytes();
  }

  TileBounds bounds;
  DocumentTile* tiles;
  int32_t* document_tiles;  // the first tile of each document, and the end of the last
  T *keys, *values;         // by key head and tile: A [tokens][padded dim]
  T* keys_transposed;       // by key head and tile: A [padded dim][tokens]
  float *dkeys, *dvalues;   // by head: [T][padded dim]
  uint64_t bytes;
};

// Computes the gradients: each head of each document goes over its tiles of queries, and for each over the tiles of
// keys up to it. With queries as columns: S = K Q^T, P = exp(scale S - lse), dP = V dO^T and dS = P (dP - delta), delta
// = rowsum(dO O); then dV += P dO, dK += scale dS Q, dQ^T = scale K^T dS (Dao et al., arXiv:2205.14135). Last, the
// heads that share a key head are added in order.
template <class T>
class TiledAttentionBackward {
 public:
  TiledAttentionBackward(const AttentionBackward& attention, std::span<const TensorView> views)
      : columns_(attention.shape),
        scale_(attention.scale),
        cap_(attention.cap),
        window_(attention.window),
        dout_(views[0]),
        q_(views[1]),
        k_(views[2]),
        v_(views[3]),
        out_(views[4]),
        lse_(views[5]),
        documents_(views[6].as<int32_t>()),
        dq_(views[7]),
        dk_(views[8]),
        dv_(views[9]),
        tokens_(views[1].rows()),
        scratch_(nullptr, tokens_, views[6].count() - 1, columns_) {
    scratch_ = BackwardScratch<T>(scratch_of("attention_backward", views[10], scratch_.bytes), tokens_,
                                  views[6].count() - 1, columns_);
  }

  void run(int64_t documents) {
    const int64_t tiles = cut_documents({documents_, static_cast<size_t>(documents + 1)}, scratch_.tiles);
    int64_t tile = 0;
    for (int64_t d = 0; d < documents; d++) {
      scratch_.document_tiles[d] = static_cast<int32_t>(tile);
      tile += ceil_div(documents_[d + 1] - documents_[d], kTile);
    }
    scratch_.document_tiles[documents] = static_cast<int32_t>(tiles);

    share(tiles * columns_.kv_heads,
          [&](int64_t i) { pack(scratch_.tiles[i / columns_.kv_heads], i % columns_.kv_heads); });
    share(documents * columns_.heads, [&](int64_t i) { differentiate(i / columns_.heads, i % columns_.heads); });
    share(tiles * columns_.kv_heads,
          [&](int64_t i) { join_heads(scratch_.tiles[i / columns_.kv_heads], i % columns_.kv_heads); });
    share_rows(tokens_, (columns_.heads + 2 * columns_.kv_heads) * columns_.dim, [&](int64_t row) {
      if (row >= documents_[0] && row < documents_[documents]) return;
      std::fill_n(dq_[row], columns_.heads * columns_.dim, T(0.0f));
      for (const Rows<T>& gradient : {dk_, dv_}) std::fill_n(gradient[row], columns_.kv_heads * columns_.dim, T(0.0f));
    });
  }

 private:
  // Holds one head's tile of queries, ready for all its products.
  struct Queries {
    StackArray<T, kTile * kMaxDim> q, q_transposed, dout, dout_transposed;  // B, by rows and by columns
    StackArray<float, kTile * kMaxDim> dq;                                  // [padded dim][queries]
    alignas(64) float lse[kTile], delta[kTile];
  };
  struct TilePair {
    StackArray<float, kTile * kTile> p, ds;        // [keys][kTile]
    StackArray<float, kTile * kTile> slopes;       // of scores under a cap
    StackArray<T, kTile * kTile> p_a, ds_a, ds_b;  // rounded, as factors
    StackArray<float, kTile * kMaxDim> dk, dv;     // for a document's last tile, if it is not full
  };

  int64_t packed_offset(const DocumentTile& tile, int64_t kv_head) const {
    return (kv_head * scratch_.bounds.packed_rows + tile.packed) * columns_.padded;
  }
  int64_t sum_offset(const DocumentTile& tile, int64_t head) const {
    return (head * tokens_ + tile.begin) * columns_.padded;
  }

  HeadRows<T> head_rows(const Rows<T>& matrix, const DocumentTile& tile, int64_t column) const {
    return {matrix[tile.begin] + column, matrix.stride, tile.rows(), columns_.dim};
  }

  void pack(const DocumentTile& tile, int64_t kv_head) {
    const auto keys = head_rows(k_, tile, columns_.key(kv_head));
    const int64_t offset = packed_offset(tile, kv_head);
    pack_a(keys, scratch_.keys + offset);
    pack_a_transposed(keys, scratch_.keys_transposed + offset);
    pack_a(head_rows(v_, tile, columns_.key(kv_head)), scratch_.values + offset);
  }

  void load(const DocumentTile& tile, int64_t head, Queries& queries) const {
    const auto q = head_rows(q_, tile, columns_.query(head));
    const auto dout = head_rows(dout_, tile, columns_.query(head));
    pack_b(q, queries.q.data());
    pack_b_transposed(q, queries.q_transposed.data());
    pack_b(dout, queries.dout.data());
    pack_b_transposed(dout, queries.dout_transposed.data());
    std::fill_n(queries.lse, kTile, 0.0f);
    std::copy_n(lse_[head] + tile.begin, tile.rows(), queries.lse);
    row_products(head_rows(out_, tile, columns_.query(head)), dout, queries.delta);
  }

  void differentiate(int64_t document, int64_t head) {
    const TileUnit unit;
    Queries queries;
    TilePair pair;
    const int64_t first = scratch_.document_tiles[document], end = scratch_.document_tiles[document + 1];
    for (int64_t i = first; i < end; i++) {
      const DocumentTile& tile = scratch_.tiles[i];
      load(tile, head, queries);
      const int64_t first_key_tile = first + first_visible(tile.index() * kTile, window_) / kTile;
      for (int64_t j = first_key_tile; j <= i; j++)
        differentiate_pair(tile, scratch_.tiles[j], j == first_key_tile, head, queries, pair);
      float* dq = queries.dq.data();
      for (int64_t r = 0; r < columns_.padded * tile.padded_rows(); r++) dq[r] *= scale_;
      round_columns(dq, tile.padded_rows(), tile.rows(), columns_.dim, dq_[tile.begin] + columns_.query(head),
                    dq_.stride);
    }
  }

  void differentiate_pair(const DocumentTile& tile, const DocumentTile& key_tile, bool first, int64_t head,
                          Queries& queries, TilePair& pair) {
    const int64_t width = tile.padded_rows(), keys = key_tile.padded_rows(), padded = columns_.padded;
    const int64_t offset = packed_offset(key_tile, columns_.kv_head(head));
    const bool diagonal = key_tile.begin == tile.begin;
    VisibleKeys room;
    const VisibleKeys* const visible = visible_keys(tile.index() * kTile, key_tile.index() * kTile, window_, room);
    tile_product(scratch_.keys + offset, padded, queries.q_transposed.data(), width, pair.p.data(), kTile, keys, width,
                 padded, false);
    tile_product(scratch_.values + offset, padded, queries.dout_transposed.data(), width, pair.ds.data(), kTile, keys,
                 width, padded, false);
    if (cap_ > 0) cap_scores(pair.p.data(), pair.slopes.data(), keys, width, scale_, cap_);
    differentiate_softmax(pair.p.data(), pair.ds.data(), keys, width, visible, cap_ > 0 ? 1.0f : scale_, queries.lse,
                          queries.delta);
    for (int64_t u = 0; cap_ > 0 && u < keys; u++)
      for (int64_t q = 0; q < width; q++) pair.ds.data()[u * kTile + q] *= pair.slopes.data()[u * kTile + q];
    for (int64_t u = 0; u < keys; u += 2) {
      const float *p = pair.p.data() + u * kTile, *ds = pair.ds.data() + u * kTile;
      round_row(p, width, pair.p_a.data() + u * width);
      round_row(p + kTile, width, pair.p_a.data() + (u + 1) * width);
      round_row(ds, width, pair.ds_a.data() + u * width);
      round_row(ds + kTile, width, pair.ds_a.data() + (u + 1) * width);
      round_row_pair(ds, ds + kTile, width, pair.ds_b.data() + u * width);
    }
    tile_product(scratch_.keys_transposed + offset, keys, pair.ds_b.data(), width, queries.dq.data(), width, padded,
                 width, keys, !first);

    // The diagonal tile is the first to reach a tile of keys. A tile that is not full is reached by no other, and is
    // computed beside the sums because its zeros would run into the next document's.
    const bool full = key_tile.rows() == kTile;
    float* dk = scratch_.dkeys + sum_offset(key_tile, head);
    float* dv = scratch_.dvalues + sum_offset(key_tile, head);
    float* to_dk = full ? dk : pair.dk.data();
    float* to_dv = full ? dv : pair.dv.data();
    tile_product(pair.ds_a.data(), width, queries.q.data(), padded, to_dk, padded, keys, padded, width, !diagonal);
    tile_product(pair.p_a.data(), width, queries.dout.data(), padded, to_dv, padded, keys, padded, width, !diagonal);
    if (full) return;
    std::copy_n(to_dk, key_tile.rows() * padded, dk);
    std::copy_n(to_dv, key_tile.rows() * padded, dv);
  }

  // Adds up the gradients of a key head over its query heads.
  void join_heads(const DocumentTile& tile, int64_t kv_head) {
    const int64_t head = kv_head * columns_.group, count = tile.rows() * columns_.padded;
    float* dk = scratch_.dkeys + sum_offset(tile, head);
    float* dv = scratch_.dvalues + sum_offset(tile, head);
    for (int64_t g = 1; g < columns_.group; g++) {
      const int64_t next = sum_offset(tile, head + g) - sum_offset(tile, head);
      for (int64_t i = 0; i < count; i++) dk[i] += dk[next + i];
      for (int64_t i = 0; i < count; i++) dv[i] += dv[next + i];
    }
    for (int64_t i = 0; i < count; i++) dk[i] *= scale_;
    for (int64_t r = 0; r < tile.rows(); r++) {
      round_row(dk + r * columns_.padded, columns_.dim, dk_[tile.begin + r] + columns_.key(kv_head));
      round_row(dv + r * columns_.padded, columns_.dim, dv_[tile.begin + r] + columns_.key(kv_head));
    }
  }

  HeadColumns columns_;
  float scale_, cap_;
  int64_t window_;
  Rows<T> dout_, q_, k_, v_, out_;
  Rows<float> lse_;
  const int32_t* documents_;
  Rows<T> dq_, dk_, dv_;
  int64_t tokens_;
  BackwardScratch<T> scratch_;
};

}  // namespace

uint64_t attention_backward_scratch_bytes(const AttentionBackward& attention, std::span<const Operand> operands) {
  check(operands.size() >= 10, "attention_backward: {} operands, expected 10", operands.size());
  const int64_t tokens = operands[1].shape.rows(), documents = operands[6].shape.count() - 1;
  return dispatch_activation(operands[1].dtype, [&]<class T>() {
    return BackwardScratch<T>(nullptr, tokens, documents, HeadColumns(attention.shape)).bytes;
  });
}

Launch bind_attention_backward(const AttentionBackward& attention, std::span<const TensorView> views) {
  constexpr std::string_view kOp = "attention_backward";
  check(views.size() == 11, "{}: {} operands, expected 11", kOp, views.size());
  const HeadShape& shape = attention.shape;
  const int64_t tokens = views[1].rows();
  const DType dtype = views[1].dtype;
  const int64_t width = shape.heads * shape.dim, kv_width = shape.kv_heads * shape.dim;
  for (const auto& [view, name, columns] :
       {std::tuple(0, "dout", width), std::tuple(1, "q", width), std::tuple(2, "k", kv_width),
        std::tuple(3, "v", kv_width), std::tuple(4, "out", width), std::tuple(7, "dq", width),
        std::tuple(8, "dk", kv_width), std::tuple(9, "dv", kv_width)})
    expect_matrix(kOp, name, views[static_cast<size_t>(view)], dtype, tokens, columns);
  expect_matrix(kOp, "lse", views[5], DType::F32, shape.heads, tokens);
  return dispatch_activation(dtype, [&]<class T>() -> Launch {
    const auto bound = std::make_shared<TiledAttentionBackward<T>>(attention, views);
    return [bound](const RuntimeScalars& runtime) { bound->run(runtime.documents); };
  });
}

}  // namespace snug::cpu
