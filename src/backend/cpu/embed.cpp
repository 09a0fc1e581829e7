// Picks rows by index from a table, and adds their gradients to it.
#include <algorithm>
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "base/rounding.h"

namespace snug::cpu {
namespace {

// Requires indices below `limit`; negative ones only where they mean none.
void check_indices(std::string_view what, const int32_t* indices, int64_t count, int64_t limit, bool none = false) {
  for (int64_t i = 0; i < count; i++)
    check((none || indices[i] >= 0) && indices[i] < limit, "{}: index {} at {} is outside [0, {})", what, indices[i], i,
          limit);
}

template <class T>
void clear(const Rows<T>& rows, int64_t count, int64_t cols) {
  share_rows(count, cols, [&](int64_t row) { std::fill_n(rows[row], cols, T(0.0f)); });
}

// Sets dtable[...][begin, end) of one token's run to the sum over its places, in order.
template <class X, class D>
void add_run(const Rows<X>& dx, const int32_t* places, int64_t count, int64_t begin, int64_t end, bool accumulate,
             D* target) {
  constexpr int64_t kTile = 256;
  for (int64_t first = begin; first < end; first += kTile) {
    const int64_t width = std::min(kTile, end - first);
    float total[kTile] = {};
    for (int64_t i = 0; i < count; i++) {
      const X* source = dx[places[i]] + first;
      for (int64_t j = 0; j < width; j++) total[j] += to_float(source[j]);
    }
    for (int64_t j = 0; j < width; j++)
      store(target[first + j], (accumulate ? to_float(target[first + j]) : 0.0f) + total[j]);
  }
}

// Sets columns [begin, begin + width) of a long run's row, by lanes (program/ops.h); width is at most kLongTile.
constexpr int64_t kLongTile = 64;
template <class X, class D>
void add_long_run(const Rows<X>& dx, const int32_t* places, int64_t count, int64_t begin, int64_t width,
                  bool accumulate, D* target) {
  float lanes[kRunLanes][kLongTile] = {};
  for (int64_t i = 0; i < count; i++) {
    const X* source = dx[places[i]] + begin;
    float* const lane = lanes[i % kRunLanes];
#pragma omp simd
    for (int64_t j = 0; j < width; j++) lane[j] += to_float(source[j]);
  }
  for (int64_t half = kRunLanes / 2; half > 0; half /= 2)
    for (int64_t l = 0; l < half; l++) {
#pragma omp simd
      for (int64_t j = 0; j < width; j++) lanes[l][j] += lanes[l + half][j];
    }
  for (int64_t j = 0; j < width; j++)
    store(target[begin + j], (accumulate ? to_float(target[begin + j]) : 0.0f) + lanes[0][j]);
}

// Returns the long run that holds place `slot` kLongRun, if no place of a slot before it is in that run: so each long
// run has one slot. -1 if there is none.
int64_t run_of_slot(const int32_t* starts, int64_t segments, int64_t slot) {
  const int64_t place = slot * kLongRun;
  if (segments == 0 || place >= starts[segments]) return -1;
  const int64_t run = std::upper_bound(starts, starts + segments, place) - starts - 1;
  if (run < 0 || starts[run + 1] - starts[run] <= kLongRun || place - starts[run] >= kLongRun) return -1;
  return run;
}

}  // namespace

Launch bind_embedding(Operands operands) {
  const TensorView indices = operands.dense("ids", kIndex);
  const TensorView table = operands.take("table", kActivation);
  const TensorView x = operands.matrix("x", kActivation, indices.count(), table.cols());
  operands.done();
  return dispatch_activation(table.dtype, [&]<class S>() {
    return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
      return [=, ids = indices.as<int32_t>(), from = Rows<S>(table), to = Rows<T>(x)](const RuntimeScalars&) {
        check_indices("embedding", ids, x.rows(), table.rows());
        share_rows(x.rows(), x.cols(), [&](int64_t t) {
          const S* source = from[ids[t]];
          T* target = to[t];
#pragma omp simd
          for (int64_t i = 0; i < x.cols(); i++) store(target[i], to_float(source[i]));
        });
      };
    });
  });
}

Launch bind_embedding_backward(const EmbeddingBackward& embedding, Operands operands) {
  const auto of = embedding_backward_operands(operands);
  const TensorView dx = of.dx, dtable = of.dtable;
  const int64_t tokens = dx.rows(), cols = dx.cols();
  const int32_t *const order = of.order, *const starts = of.starts, *const ids = of.ids;
  return dispatch_activation(dx.dtype, [&]<class X>() {
    return dispatch_activation(dtable.dtype, [&]<class D>() -> Launch {
      return [=, from = Rows<X>(dx), to = Rows<D>(dtable)](const RuntimeScalars& runtime) {
        const int64_t segments = segments_of(embedding, runtime, tokens);
        check_indices("embedding_backward", order, tokens, tokens);
        check_indices("embedding_backward", starts, segments + 1, tokens + 1);
        check_indices("embedding_backward", ids, segments, dtable.rows());
        if (!embedding.accumulate) clear(to, dtable.rows(), cols);
        constexpr int64_t kTile = 512;  // frequent tokens have many rows, so several threads share one
        const int64_t tiles = ceil_div(cols, kTile);
        share(segments * tiles, [&](int64_t i) {
          const int64_t segment = i / tiles, begin = i % tiles * kTile;
          const int64_t count = starts[segment + 1] - starts[segment];
          if (count > kLongRun) return;
          add_run(from, order + starts[segment], count, begin, std::min(cols, begin + kTile), embedding.accumulate,
                  to[ids[segment]]);
        });
        const int64_t slots = tokens > kLongRun ? ceil_div(tokens, kLongRun) : 0,
                      long_tiles = ceil_div(cols, kLongTile);
        share(slots * long_tiles, [&](int64_t i) {
          const int64_t run = run_of_slot(starts, segments, i / long_tiles), begin = i % long_tiles * kLongTile;
          if (run < 0) return;
          add_long_run(from, order + starts[run], starts[run + 1] - starts[run], begin,
                       std::min(kLongTile, cols - begin), embedding.accumulate, to[ids[run]]);
        });
      };
    });
  });
}

Launch bind_gather_rows(Operands operands) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView indices = operands.dense("rows", kIndex);
  const TensorView y = operands.matrix("y", {x.dtype}, indices.count(), x.cols());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=, rows = indices.as<int32_t>(), from = Rows<T>(x), to = Rows<T>(y)](const RuntimeScalars&) {
      check_indices("gather_rows", rows, y.rows(), x.rows(), true);
      const size_t bytes = static_cast<size_t>(x.cols()) * sizeof(T);
      share_rows(y.rows(), y.cols(), [&](int64_t i) {
        if (rows[i] < 0)
          std::fill_n(to[i], x.cols(), T(0.0f));
        else
          std::memcpy(to[i], from[rows[i]], bytes);
      });
    };
  });
}

Launch bind_scatter_rows(const ScatterRows& scatter, Operands operands) {
  const auto of = scatter_rows_operands(operands);
  const TensorView y = of.y, x = of.x;
  const int32_t* const rows = of.rows;
  return dispatch_activation(y.dtype, [&]<class T>() -> Launch {
    return [=, from = Rows<T>(y), to = Rows<T>(x), how = scatter.how](const RuntimeScalars&) {
      check_indices("scatter_rows", rows, y.rows(), x.rows(), true);
      if (how == Scatter::OverZeros) clear(to, x.rows(), x.cols());
      share_rows(y.rows(), y.cols(), [&](int64_t i) {
        if (rows[i] < 0) return;
        const T* source = from[i];
        T* target = to[rows[i]];
        if (how != Scatter::Add)
          std::memcpy(target, source, static_cast<size_t>(y.cols()) * sizeof(T));
        else
#pragma omp simd
          for (int64_t j = 0; j < y.cols(); j++) store(target[j], to_float(target[j]) + to_float(source[j]));
      });
    };
  });
}

}  // namespace snug::cpu
