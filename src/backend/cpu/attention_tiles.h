// Declares the parts that forward, backward and cached attention share: documents cut into tiles, rows packed for
// tile_product(), and the softmax.
//
// A tile is up to kTile tokens of one document, counted from the document's first token. So a document's numbers come
// from equal products on equal shapes wherever it lies in the block and whatever lies beside it.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "backend/cpu/tile_product.h"
#include "base/rounding.h"
#include "program/program.h"
#include "tensor/view.h"

namespace snug::cpu {

inline constexpr int64_t kTile = 64;     // tokens
inline constexpr int64_t kMaxDim = 256;  // of a head
inline constexpr uint64_t kAlign = 256;  // of the parts of a scratch, in bytes

// Says where a head's columns begin: among those of queries and results, and among those of keys and of values.
struct HeadColumns {
  explicit HeadColumns(const HeadShape& shape);

  int64_t query(int64_t head) const { return head * dim; }
  int64_t key(int64_t kv_head) const { return kv_head * dim; }
  int64_t kv_head(int64_t head) const { return head / group; }

  int64_t heads, kv_heads, dim;
  int64_t group;   // query heads of a key head
  int64_t padded;  // dim as padded in tiles
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

// Bounds the number of tiles and packed rows of any documents within T tokens.
struct TileBounds {
  TileBounds(int64_t tokens, int64_t documents)
      : tiles(tokens / kTile + std::min(tokens, documents)),
        packed_rows(tokens + (kTileStep - 1) * std::min(tokens, documents)) {}
  int64_t tiles, packed_rows;
};

// Cuts documents (starts and the end of the last) into tiles, written to `tiles` in order; returns how many.
int64_t cut_documents(std::span<const int32_t> documents, DocumentTile* tiles);

// ---- Packing: `rows` rows of `dim` elements, filled up with zeros ---------------------------------------------------

template <class T>
struct HeadRows {
  const T* data;   // first element of the first row's head
  int64_t stride;  // elements between rows
  int64_t rows, dim;
};

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
// Returns the visible keys of the tiles of a document that begin at `query` and at `key`, where a query attends to the
// keys up to itself, to the last `window` of them, or to all if that is 0. It fills `room`, or returns null if all
// queries attend to all keys.
const VisibleKeys* visible_keys(int64_t query, int64_t key, int64_t window, VisibleKeys& room);
// Returns the first token of a document to which the one at `query` attends.
constexpr int64_t first_visible(int64_t query, int64_t window) {
  return window > 0 ? std::max<int64_t>(0, query - window + 1) : 0;
}

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

// Throws InternalError unless `view` is a matrix of this size and dtype.
void expect_matrix(std::string_view op, std::string_view what, const TensorView& view, DType dtype, int64_t rows,
                   int64_t cols);
// Returns the start of an op's scratch, its last view. Throws InternalError if it holds less than `bytes`.
std::byte* scratch_of(std::string_view op, const TensorView& view, uint64_t bytes);

}  // namespace snug::cpu
