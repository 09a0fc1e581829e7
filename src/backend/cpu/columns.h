// Sums down the columns of a matrix.
#pragma once

#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "base/rounding.h"

namespace snug::cpu {

// Calls take(j, term(x[0][j]) + term(x[1][j]) + ...) for every column, with a sum in fp32: it adds blocks of 64 rows in
// order, and the blocks in order. Threads divide the columns among themselves.
template <class T, class Term, class Take>
void sum_columns(const Rows<T>& x, int64_t rows, int64_t cols, const Term& term, const Take& take) {
  constexpr int64_t kTile = 64, kBlock = 64;
  share(ceil_div(cols, kTile), [&](int64_t tile) {
    const int64_t begin = tile * kTile, width = std::min(kTile, cols - begin);
    float total[kTile] = {};
    for (int64_t first = 0; first < rows; first += kBlock) {
      float block[kTile] = {};
      for (int64_t row = first; row < std::min(rows, first + kBlock); row++) {
        const T* source = x[row] + begin;
        for (int64_t j = 0; j < width; j++) block[j] += term(to_float(source[j]));
      }
      for (int64_t j = 0; j < width; j++) total[j] += block[j];
    }
    for (int64_t j = 0; j < width; j++) take(begin + j, total[j]);
  });
}

// Computes the sums of columns, rounded once.
template <class T, class S>
void sum_columns(const Rows<T>& x, int64_t rows, int64_t cols, S* sum) {
  sum_columns(
      x, rows, cols, [](float value) { return value; }, [sum](int64_t j, float total) { store(sum[j], total); });
}

}  // namespace snug::cpu
