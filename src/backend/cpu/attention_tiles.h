// Declares the parts that forward, backward and cached attention share: documents cut into tiles, rows packed for
// tile_product(), and the softmax.
//
// A tile is up to kTile tokens of one document, counted from the document's first token. So a document's numbers come
// from equal products on equal shapes wherever it lies in the block and whatever lies beside it.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "backend/attention_operands.h"
#include "backend/cpu/runs.h"
#include "backend/cpu/tile_product.h"
#include "base/rounding.h"
#include "program/program.h"
#include "tensor/view.h"

namespace snug::cpu {

inline constexpr int64_t kTile = 64;     // tokens
inline constexpr int64_t kMaxDim = 256;  // of a head
inline constexpr uint64_t kAlign = 256;  // of the parts of a scratch, in bytes

// Says where a head's columns begin: among those of queries, keys, values and results.
struct HeadColumns {
  explicit HeadColumns(const HeadShape& shape) : HeadColumns(shape, shape.dim) {}
  explicit HeadColumns(const Attention& attention) : HeadColumns(attention.shape, attention.dim_of_values()) {}
  HeadColumns(const HeadShape& shape, int64_t value_dim);

  int64_t query(int64_t head) const { return head * dim; }
  int64_t key(int64_t kv_head) const { return kv_head * dim; }
  int64_t value(int64_t kv_head) const { return kv_head * value_dim; }
  int64_t result(int64_t head) const { return head * value_dim; }
  int64_t kv_head(int64_t head) const { return head / group; }

  int64_t heads, kv_heads, dim, value_dim;
  int64_t group;                  // query heads of a key head
  int64_t padded, padded_values;  // dim and value_dim as padded in tiles
};

// Lays out parts of a scratch, each aligned; walking from null gives its size.
class ScratchWalk {
 public:
  explicit ScratchWalk(std::byte* start) : start_(start) {}
  template <class T>
  T* take(int64_t count) {
    std::byte* part = start_ ? start_ + bytes_ : nullptr;
    bytes_ += round_up(static_cast<uint64_t>(count) * sizeof(T), kAlign);
    return reinterpret_cast<T*>(part);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* start_;
  uint64_t bytes_ = 0;
};

// ---- Documents ------------------------------------------------------------------------------------------------------

struct DocumentTile {
  int32_t document_begin = 0, document_end = 0;
  int32_t begin = 0;   // its first row
  int32_t packed = 0;  // that row if each document starts at a multiple of kTileStep

  int64_t rows() const { return std::min<int64_t>(kTile, document_end - begin); }
  int64_t padded_rows() const { return round_up_to_step(rows()); }
  int64_t index() const { return (begin - document_begin) / kTile; }  // in its document
};

// Holds what the scratch of attention follows from.
struct AttentionSize {
  int64_t tokens, keys, documents;  // at most
  bool cross;                       // keys have documents of their own
};

class Visibility;

// Lists the tiles of queries and those of keys, in order; they are one list unless keys have documents of their own.
class DocumentTiles {
 public:
  // Holds the tiles of keys of one document, of which a tile of queries attends to [first, end).
  struct Keys {
    const DocumentTile* tiles;
    int64_t tokens, first, end;
  };

  DocumentTiles() = default;
  // Takes memory, with `by_document` for tiles_of() too.
  DocumentTiles(ScratchWalk& walk, const AttentionSize& size, bool by_document);

  // Cuts documents (starts and the end of the last), those of keys too.
  void cut(std::span<const int32_t> documents, std::span<const int32_t> key_documents);

  std::span<const DocumentTile> queries() const { return {queries_, static_cast<size_t>(query_count_)}; }
  std::span<const DocumentTile> keys() const { return {keys_, static_cast<size_t>(key_count_)}; }
  std::span<const DocumentTile> tiles_of(int64_t document) const {
    return queries().subspan(static_cast<size_t>(first_[document]),
                             static_cast<size_t>(first_[document + 1] - first_[document]));
  }
  // Returns the keys to which tile `index` of queries attends.
  Keys keys_of(int64_t index, const Visibility& visibility) const;
  int64_t packed_rows() const { return packed_rows_; }  // of keys, at most

 private:
  bool cross_ = false;
  int64_t packed_rows_ = 0, query_count_ = 0, key_count_ = 0;
  DocumentTile *queries_ = nullptr, *keys_ = nullptr;
  int32_t *first_ = nullptr, *first_key_ = nullptr;  // the first tile of each document, and the end of the last
  std::span<const int32_t> documents_;
};

// ---- Packing: `rows` rows of `dim` elements, filled up with zeros ---------------------------------------------------

template <class T>
struct HeadRows {
  const T* data;   // first element of the first row's head
  int64_t stride;  // elements between rows
  int64_t rows, dim;
};

// Returns a tile's rows of a matrix, from `column` on.
template <class T>
HeadRows<T> head_rows(const Rows<T>& matrix, const DocumentTile& tile, int64_t column, int64_t dim) {
  return {matrix[tile.begin] + column, matrix.stride, tile.rows(), dim};
}

// Packs rows as A: [padded rows][padded dim].
template <class T>
void pack_a(const HeadRows<T>& from, T* to);
// Packs rows as A, transposed: [padded dim][padded rows].
template <class T>
void pack_a_transposed(const HeadRows<T>& from, T* to);
// Packs rows as B with a row for each row: [padded rows][padded dim].
template <class T>
void pack_b(const HeadRows<T>& from, T* to);
// Packs rows as B with a column for each row: [padded dim][padded rows].
template <class T>
void pack_b_transposed(const HeadRows<T>& from, T* to);

// Rounds n sums.
template <class T>
void round_row(const float* from, int64_t n, T* to);
// Rounds two rows of n sums to two rows of a B: interleaved for bf16, one after the other for fp32.
template <class T>
void round_row_pair(const float* first, const float* second, int64_t n, T* to);
// Transposes columns of sums [padded dim][n columns], n and the padded dim multiples of 16, into rows of `dim` elements
// and rounds them; it writes `count` of them.
template <class T>
void round_columns(const float* from, int64_t n, int64_t count, int64_t dim, T* to, int64_t to_stride);

// Multiplies column i of a dense [rows][cols] by factors[i].
void scale_columns(float* sums, int64_t rows, int64_t cols, const float* factors);

// ---- Softmax --------------------------------------------------------------------------------------------------------

// Says which keys of a tile the queries of another attend to: query q to those of [begin[q], end[q]), which may be
// none.
struct VisibleKeys {
  alignas(64) int32_t begin[kTile], end[kTile];
};
// Says to which keys of its document a query attends.
class Visibility {
 public:
  explicit Visibility(const Attention& attention)
      : window_(attention.window), chunk_(attention.chunk), bidirectional_(attention.bidirectional) {}
  explicit Visibility(int64_t window) : window_(window) {}

  // Return the first key and the end of the keys, of which the document has `keys`, to which the query at `query`
  // attends.
  int64_t begin(int64_t query) const {
    if (bidirectional_) return 0;
    return std::max<int64_t>(window_ > 0 ? std::max<int64_t>(0, query - window_ + 1) : 0,
                             chunk_ > 0 ? query / chunk_ * chunk_ : 0);
  }
  int64_t end(int64_t query, int64_t keys) const { return bidirectional_ ? keys : std::min(query + 1, keys); }

  // Returns the visible keys of the tiles of a document that begin at `query` and at `key`. It fills `room`, or returns
  // null if all queries attend to all keys.
  const VisibleKeys* of_tiles(int64_t query, int64_t key, int64_t keys, VisibleKeys& room) const;

 private:
  int64_t window_ = 0, chunk_ = 0;
  bool bidirectional_ = false;
};

// Replaces products [keys][kTile] with `queries` columns by scores under a soft cap, cap tanh(scale product / cap). If
// `slopes` is given, the factors of their gradients, 1 - tanh^2, go there.
void cap_scores(float* products, float* slopes, int64_t keys, int64_t queries, float scale, float cap);

// Computes the softmax over tiles of keys that come one after the other (Milakov and Gimelshein, arXiv:1805.02867), for
// a tile of queries at once: a query is a column, so that all sums are of whole vectors.
struct RunningSoftmax {
  alignas(64) float maximum[kTile], sum[kTile];
  alignas(64) float factor[kTile];  // for the sums from before the tile added last

  RunningSoftmax();
  // Replaces products [keys][kTile] with `queries` columns (a multiple of kTileStep) by weights relative to the maxima
  // so far. Weights of keys to which a column does not attend become 0; null: it attends to all.
  void add(float* products, int64_t keys, int64_t queries, const VisibleKeys* visible, float scale);
  // Adds a score without a key; `scale` is that of the products. It sets `factor`.
  void add_sink(float score, float scale);
};

// Differentiates: with P = exp(scale S - lse), 0 where a query does not attend to a key, replaces products S by P and
// gradients dP by P (dP - delta). Layout and `visible` are as above.
void differentiate_softmax(float* products, float* gradients, int64_t keys, int64_t queries, const VisibleKeys* visible,
                           float scale, const float* lse, const float* delta);

// Computes sums[r] = sum of a[r][d] b[r][d] over d, 0 for padding rows.
template <class T>
void row_products(const HeadRows<T>& a, const HeadRows<T>& b, float* sums);

// Holds memory on the stack that is not cleared first.
template <class T, int64_t count>
struct StackArray {
  T* data() { return reinterpret_cast<T*>(bytes); }
  alignas(64) std::byte bytes[static_cast<size_t>(count) * sizeof(T)];
};

}  // namespace snug::cpu
