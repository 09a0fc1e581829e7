#include <memory>

#include "backend/cpu/attention_tiles.h"
#include "backend/cpu/math.h"
#include "backend/cpu/products.h"
#include "backend/cpu/runs.h"
#include "base/rounding.h"

namespace snug::cpu {
namespace {

// Holds keys and values packed for the products that read them, and the sums for their gradients, one for each query
// head.
template <class T>
struct BackwardScratch {
  BackwardScratch(std::byte* start, const AttentionSize& size, const HeadColumns& columns) {
    ScratchWalk walk(start);
    tiles = DocumentTiles(walk, size, true);
    const int64_t packed = columns.kv_heads * tiles.packed_rows(), sums = columns.heads * size.keys;
    keys = walk.take<T>(packed * columns.padded);
    keys_transposed = walk.take<T>(packed * columns.padded);
    values = walk.take<T>(packed * columns.padded_values);
    dkeys = walk.take<float>(sums * columns.padded);
    dvalues = walk.take<float>(sums * columns.padded_values);
    bytes = walk.bytes();
  }

  DocumentTiles tiles;
  T *keys, *values;        // by key head and tile: A [tokens][padded dim]
  T* keys_transposed;      // by key head and tile: A [padded dim][tokens]
  float *dkeys, *dvalues;  // by head: [K][padded dim]
  uint64_t bytes;
};

// Computes the gradients: each head of each document goes over its tiles of queries, and for each over the tiles of
// keys that it sees. With queries as columns: S = K Q^T, P = exp(scale S - lse), dP = V dO^T and dS = P (dP - delta),
// delta = rowsum(dO O); then dV += P dO, dK += scale dS Q, dQ^T = scale K^T dS (Dao et al., arXiv:2205.14135). Last,
// the heads that share a key head are added in order.
template <class T>
class TiledAttentionBackward {
 public:
  TiledAttentionBackward(const AttentionBackward& attention, const AttentionBackwardOperands& of, std::byte* scratch)
      : columns_(attention),
        visibility_(attention),
        scale_(attention.scale),
        cap_(attention.cap),
        of_(of),
        dout_(of.dout),
        q_(of.q),
        k_(of.k),
        v_(of.v),
        out_(of.out),
        lse_(of.lse),
        dq_(of.dq),
        dk_(of.dk),
        dv_(of.dv),
        scratch_(scratch, {of.q.rows(), of.k.rows(), of.documents.count() - 1, attention.cross}, columns_) {}

  void run(int64_t documents) {
    const std::span bounds(of_.documents.as<int32_t>(), static_cast<size_t>(documents + 1));
    const std::span key_bounds(of_.key_documents.as<int32_t>(), bounds.size());
    scratch_.tiles.cut(bounds, key_bounds);
    const std::span<const DocumentTile> keys = scratch_.tiles.keys();
    const auto share_keys = [&](const auto& body) {
      share(std::ssize(keys) * columns_.kv_heads,
            [&](int64_t i) { body(keys[static_cast<size_t>(i / columns_.kv_heads)], i % columns_.kv_heads); });
    };
    share_keys([&](const DocumentTile& tile, int64_t kv_head) { pack(tile, kv_head); });
    share(documents * columns_.heads, [&](int64_t i) { differentiate(i / columns_.heads, i % columns_.heads); });
    share_keys([&](const DocumentTile& tile, int64_t kv_head) { join_heads(tile, kv_head); });
    clear_outside(dq_, of_.dq, bounds);
    clear_outside(dk_, of_.dk, key_bounds);
    clear_outside(dv_, of_.dv, key_bounds);
    if (of_.dsinks.data) share(columns_.heads, [&](int64_t head) { differentiate_sink(head, bounds); });
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

  int64_t packed_row(const DocumentTile& tile, int64_t kv_head) const {
    return kv_head * scratch_.tiles.packed_rows() + tile.packed;
  }
  // Return where a head's sums for a tile of keys lie.
  float* dkeys_at(const DocumentTile& tile, int64_t head) const {
    return scratch_.dkeys + (head * of_.k.rows() + tile.begin) * columns_.padded;
  }
  float* dvalues_at(const DocumentTile& tile, int64_t head) const {
    return scratch_.dvalues + (head * of_.k.rows() + tile.begin) * columns_.padded_values;
  }

  void clear_outside(const Rows<T>& gradient, const TensorView& view, std::span<const int32_t> documents) const {
    share_rows(view.rows(), view.cols(), [&](int64_t row) {
      if (row < documents.front() || row >= documents.back()) std::fill_n(gradient[row], view.cols(), T(0.0f));
    });
  }

  void pack(const DocumentTile& tile, int64_t kv_head) {
    const auto keys = head_rows(k_, tile, columns_.key(kv_head), columns_.dim);
    const int64_t row = packed_row(tile, kv_head);
    pack_a(keys, scratch_.keys + row * columns_.padded);
    pack_a_transposed(keys, scratch_.keys_transposed + row * columns_.padded);
    pack_a(head_rows(v_, tile, columns_.value(kv_head), columns_.value_dim),
           scratch_.values + row * columns_.padded_values);
  }

  void load(const DocumentTile& tile, int64_t head, Queries& queries) const {
    const auto q = head_rows(q_, tile, columns_.query(head), columns_.dim);
    const auto dout = head_rows(dout_, tile, columns_.result(head), columns_.value_dim);
    pack_b(q, queries.q.data());
    pack_b_transposed(q, queries.q_transposed.data());
    pack_b(dout, queries.dout.data());
    pack_b_transposed(dout, queries.dout_transposed.data());
    std::fill_n(queries.lse, kTile, 0.0f);
    std::copy_n(lse_[head] + tile.begin, tile.rows(), queries.lse);
    row_products(head_rows(out_, tile, columns_.result(head), columns_.value_dim), dout, queries.delta);
  }

  void differentiate(int64_t document, int64_t head) {
    const TileUnit unit;
    Queries queries;
    TilePair pair;
    int64_t reached = 0;  // tiles of keys of which an earlier tile of queries has been
    const std::span<const DocumentTile> tiles = scratch_.tiles.tiles_of(document);
    if (tiles.empty()) clear_keys(document, head);
    for (const DocumentTile& tile : tiles) {
      load(tile, head, queries);
      const auto keys = scratch_.tiles.keys_of(&tile - scratch_.tiles.queries().data(), visibility_);
      for (int64_t j = keys.first; j < keys.end; j++)
        differentiate_pair(tile, keys, j, j < reached, head, queries, pair);
      reached = std::max(reached, keys.end);
      float* dq = queries.dq.data();
      const int64_t sums = columns_.padded * tile.padded_rows();
      if (keys.first >= keys.end) std::fill_n(dq, sums, 0.0f);
      for (int64_t r = 0; r < sums; r++) dq[r] *= scale_;
      round_columns(dq, tile.padded_rows(), tile.rows(), columns_.dim, dq_[tile.begin] + columns_.query(head),
                    dq_.stride);
    }
  }

  // `j` is the tile of keys; with `reached` its sums go on.
  void differentiate_pair(const DocumentTile& tile, const DocumentTiles::Keys& of, int64_t j, bool reached,
                          int64_t head, Queries& queries, TilePair& pair) {
    const DocumentTile& key_tile = of.tiles[j];
    const int64_t width = tile.padded_rows(), keys = key_tile.padded_rows(), padded = columns_.padded,
                  padded_values = columns_.padded_values, row = packed_row(key_tile, columns_.kv_head(head));
    VisibleKeys room;
    const VisibleKeys* const visible = visibility_.of_tiles(tile.index() * kTile, j * kTile, of.tokens, room);
    tile_product(scratch_.keys + row * padded, padded, queries.q_transposed.data(), width, pair.p.data(), kTile, keys,
                 width, padded, false);
    tile_product(scratch_.values + row * padded_values, padded_values, queries.dout_transposed.data(), width,
                 pair.ds.data(), kTile, keys, width, padded_values, false);
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
    tile_product(scratch_.keys_transposed + row * padded, keys, pair.ds_b.data(), width, queries.dq.data(), width,
                 padded, width, keys, j > of.first);

    // A document's last tile, if it is not full, is computed beside the sums because its zeros would run into the next
    // document's.
    const bool full = key_tile.rows() == kTile;
    float *dk = dkeys_at(key_tile, head), *dv = dvalues_at(key_tile, head);
    float* to_dk = full ? dk : pair.dk.data();
    float* to_dv = full ? dv : pair.dv.data();
    tile_product(pair.ds_a.data(), width, queries.q.data(), padded, to_dk, padded, keys, padded, width, reached);
    tile_product(pair.p_a.data(), width, queries.dout.data(), padded_values, to_dv, padded_values, keys, padded_values,
                 width, reached);
    if (full) return;
    std::copy_n(to_dk, key_tile.rows() * padded, dk);
    std::copy_n(to_dv, key_tile.rows() * padded_values, dv);
  }

  // Clears the sums of a document's keys, to which nothing attends.
  void clear_keys(int64_t document, int64_t head) {
    const int32_t* const bounds = of_.key_documents.as<int32_t>() + document;
    const int64_t row = head * of_.k.rows() + bounds[0], rows = bounds[1] - bounds[0];
    std::fill_n(scratch_.dkeys + row * columns_.padded, rows * columns_.padded, 0.0f);
    std::fill_n(scratch_.dvalues + row * columns_.padded_values, rows * columns_.padded_values, 0.0f);
  }

  // Of a sink there is no value, so that its weight's gradient is -delta.
  void differentiate_sink(int64_t head, std::span<const int32_t> documents) const {
    const float sink = of_.sinks.as<float>()[head];
    double sum = 0;
    for (int64_t row = documents.front(); row < documents.back(); row++) {
      float delta = 0;
      for (int64_t d = columns_.result(head); d < columns_.result(head + 1); d++)
        delta += to_float(out_[row][d]) * to_float(dout_[row][d]);
      sum -= static_cast<double>(std::exp(sink - lse_[head][row]) * delta);
    }
    of_.dsinks.as<float>()[head] = static_cast<float>(sum);
  }

  // Adds up the gradients of a key head over its query heads.
  void join_heads(const DocumentTile& tile, int64_t kv_head) {
    const int64_t head = kv_head * columns_.group, padded = columns_.padded, padded_values = columns_.padded_values;
    float *dk = dkeys_at(tile, head), *dv = dvalues_at(tile, head);
    for (int64_t g = 1; g < columns_.group; g++) {
      const float *next_dk = dkeys_at(tile, head + g), *next_dv = dvalues_at(tile, head + g);
      for (int64_t i = 0; i < tile.rows() * padded; i++) dk[i] += next_dk[i];
      for (int64_t i = 0; i < tile.rows() * padded_values; i++) dv[i] += next_dv[i];
    }
    for (int64_t i = 0; i < tile.rows() * padded; i++) dk[i] *= scale_;
    for (int64_t r = 0; r < tile.rows(); r++) {
      round_row(dk + r * padded, columns_.dim, dk_[tile.begin + r] + columns_.key(kv_head));
      round_row(dv + r * padded_values, columns_.value_dim, dv_[tile.begin + r] + columns_.value(kv_head));
    }
  }

  HeadColumns columns_;
  Visibility visibility_;
  float scale_, cap_;
  AttentionBackwardOperands of_;
  Rows<T> dout_, q_, k_, v_, out_;
  Rows<float> lse_;
  Rows<T> dq_, dk_, dv_;
  BackwardScratch<T> scratch_;
};

}  // namespace

uint64_t attention_backward_scratch_bytes(const AttentionBackward& attention, std::span<const Operand> operands) {
  check(operands.size() >= 10, "attention_backward: {} operands, expected 10", operands.size());
  const AttentionSize size{operands[1].shape.rows(), operands[2].shape.rows(), operands[6].shape.count() - 1,
                           attention.cross};
  return dispatch_activation(
      operands[1].dtype, [&]<class T>() { return BackwardScratch<T>(nullptr, size, HeadColumns(attention)).bytes; });
}

Launch bind_attention_backward(const AttentionBackward& attention, Operands operands) {
  const AttentionBackwardOperands of = attention_backward_operands(attention, operands);
  return dispatch_activation(of.q.dtype, [&]<class T>() -> Launch {
    const AttentionSize size{of.q.rows(), of.k.rows(), of.documents.count() - 1, attention.cross};
    std::byte* const scratch = operands.scratch(BackwardScratch<T>(nullptr, size, HeadColumns(attention)).bytes);
    operands.done();
    const auto bound = std::make_shared<TiledAttentionBackward<T>>(attention, of, scratch);
    return [bound, attention, bounds = of.documents](const RuntimeScalars& runtime) {
      bound->run(documents_of(attention, runtime, bounds));
    };
  });
}

}  // namespace snug::cpu
