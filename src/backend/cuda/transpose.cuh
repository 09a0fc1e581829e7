// Transposes a matrix of bytes.
#pragma once

#include "backend/cuda/device.cuh"

namespace snug::cuda {

inline constexpr int kTransposeTile = 128;  // rows and columns of a tile

// Transposes bytes: word c becomes byte c of each of the four words.
__device__ inline void transpose_bytes(uint32_t (&w)[4]) {
  const uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), high01 = __byte_perm(w[0], w[1], 0x7362);
  const uint32_t low23 = __byte_perm(w[2], w[3], 0x5140), high23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low01, low23, 0x5410);
  w[1] = __byte_perm(low01, low23, 0x7632);
  w[2] = __byte_perm(high01, high23, 0x5410);
  w[3] = __byte_perm(high01, high23, 0x7632);
}

// Computes y = x^T, of bytes that `source` writes 16 at a time: source.from(col) returns a reader, whose fetch(row)
// requests the data of a row's bytes, and whose put(fetched, to) writes these. Rows and columns are in 16s. A thread
// takes 16 bytes of some rows, all of which it requests first, always from one column, and writes 16 of each of four
// columns. Word c of row r lies at c + 4 (r / 16), so that threads that read 16 rows below one another use different
// banks. The last rows come first: if x has just been read from its first row on, they are still in the L2 cache.
template <class Source>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(Source source, int64_t rows, int64_t cols, Rows<uint8_t> y) {
  constexpr int kWords = kTransposeTile / 4, kQuads = kTransposeTile / 16, kLines = kTransposeTile * kQuads / kThreads;
  __shared__ __align__(16) uint32_t tile[kTransposeTile][kWords];
  const int64_t row = int64_t{gridDim.y - 1 - blockIdx.y} * kTransposeTile, col = int64_t{blockIdx.x} * kTransposeTile;
  const int thread = static_cast<int>(threadIdx.x), quad = thread % kQuads;
  if (col + 16 * quad < cols) {
    const auto bytes = source.from(col + 16 * quad);
    const auto line = [&](int i) { return thread / kQuads + i * (kThreads / kQuads); };
    decltype(bytes.fetch(row)) fetched[kLines];
#pragma unroll
    for (int i = 0; i < kLines; i++) fetched[i] = bytes.fetch(min(row + line(i), rows - 1));
#pragma unroll
    for (int i = 0; i < kLines; i++)
      bytes.put(fetched[i], reinterpret_cast<uint8_t*>(&tile[line(i)][4 * ((quad + line(i) / 16) % kQuads)]));
  }
  __syncthreads();
  const int word = thread / kQuads, below = 16 * quad;  // first column by four, and first row, of this thread
  if (row + below >= rows || col + 4 * word >= cols) return;
  Pack<uint32_t, 4> columns[4];
#pragma unroll
  for (int four = 0; four < 4; four++) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = tile[below + 4 * four + i][(word + 4 * quad) % kWords];
    transpose_bytes(w);
#pragma unroll
    for (int i = 0; i < 4; i++) columns[i][four] = w[i];
  }
#pragma unroll
  for (int i = 0; i < 4; i++) save<4>(reinterpret_cast<uint32_t*>(y.at(col + 4 * word + i, row + below)), columns[i]);
}

inline dim3 transpose_grid(const TensorView& x) {
  return {blocks_of(x.cols(), kTransposeTile), blocks_of(x.rows(), kTransposeTile)};
}

// Returns whether columns come in 16s, and rows begin at multiples of 16 bytes.
inline bool in_sixteens(const TensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.row_stride % 16 == 0 && view.cols() % 16 == 0;
}

}  // namespace snug::cuda
