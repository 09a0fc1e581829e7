// Walks operands: matrices as typed rows, and work divided into parts that depend on shapes alone.
#pragma once

#include <algorithm>
#include <functional>

#include "base/parallel.h"
#include "base/rounding.h"
#include "tensor/view.h"

namespace snug::cpu {

// Gives the rows of a view whose dtype is known.
template <class T>
struct Rows {
  explicit Rows(const TensorView& view) : data(view.as<T>()), stride(view.row_stride) {}
  T* operator[](int64_t row) const { return data + row * stride; }
  T* data;
  int64_t stride;
};

// Runs as parallel_for(), without the allocation of a std::function for a closure of more than two words.
template <class Body>
void share(int64_t count, const Body& body) {
  parallel_for(count, std::cref(body));
}

// Calls f.template operator()<T>() with T of an activation's dtype (Operands has checked that it is one).
template <class F>
decltype(auto) dispatch_activation(DType dtype, const F& f) {
  return dtype == DType::BF16 ? f.template operator()<BFloat16>() : f.template operator()<float>();
}

inline constexpr int64_t kPiece = 16384;  // elements from which a thread of its own is worth while

// Calls body(row) for every row; whole rows of `cols` elements go together until they make a piece.
template <class Body>
void share_rows(int64_t rows, int64_t cols, const Body& body) {
  const int64_t together = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, cols));
  share(ceil_div(rows, together), [&](int64_t piece) {
    const int64_t end = std::min(rows, (piece + 1) * together);
    for (int64_t row = piece * together; row < end; row++) body(row);
  });
}

// Holds the size of a matrix whose elements can be taken in any grouping.
struct Extent {
  // Takes views of one shape: a single row if all are dense.
  explicit Extent(std::initializer_list<TensorView> views) : rows(views.begin()->rows()), cols(views.begin()->cols()) {
    if (!std::ranges::all_of(views, [](const TensorView& view) { return view.dense(); })) return;
    cols *= rows;
    rows = cols > 0 ? 1 : 0;
  }
  Extent(int64_t rows, int64_t cols) : rows(rows), cols(cols) {}
  int64_t rows, cols;
};

// Calls body(row, begin, end) for runs of columns that together cover the matrix.
template <class Body>
void share_runs(const Extent& extent, const Body& body) {
  if (extent.cols <= kPiece) {
    share_rows(extent.rows, extent.cols, [&](int64_t row) { body(row, 0, extent.cols); });
    return;
  }
  const int64_t pieces = ceil_div(extent.cols, kPiece);
  share(extent.rows * pieces, [&](int64_t i) {
    const int64_t begin = i % pieces * kPiece;
    body(i / pieces, begin, std::min(extent.cols, begin + kPiece));
  });
}

}  // namespace snug::cpu
