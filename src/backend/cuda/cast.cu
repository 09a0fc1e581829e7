// Bytes moved as they are, zeroed, and numbers in another form.
#include "backend/cuda/device.cuh"
#include "backend/master.h"

namespace snug::cuda {
namespace {

constexpr DTypes kAny{DType::F32, DType::BF16, DType::F16, DType::I32, DType::I16, DType::U8, DType::I8};

size_t row_bytes(const TensorView& view, int64_t elements) {
  return static_cast<size_t>(elements) * element_bytes(view.dtype);
}

// Between any two spaces: addresses say which.
Launch copy(const TensorView& x, const TensorView& y, cudaStream_t stream) {
  return [=, extent = Extent{x, y}](const PassFacts&) {
    if (extent.rows == 0) return;
    if (extent.rows == 1)
      check_cuda(cudaMemcpyAsync(y.data, x.data, row_bytes(x, extent.cols), cudaMemcpyDefault, stream), "copy");
    else
      check_cuda(
          cudaMemcpy2DAsync(y.data, row_bytes(y, y.row_stride), x.data, row_bytes(x, x.row_stride),
                            row_bytes(x, extent.cols), static_cast<size_t>(extent.rows), cudaMemcpyDefault, stream),
          "copy");
  };
}

template <class X, class Y>
struct CastBody {
  ByteRows x;
  Rows<Y> y;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    save_floats<N>(y.at(row, col), load_row<N, X>(x.at(row), col));
  }
};

template <class X>
struct SplitBody {
  ByteRows x;
  BFloat16* hi;
  int16_t* lo;
  template <int N>
  __device__ void operator()(int64_t, int64_t i) const {
    const auto values = load_row<N, X>(x.data, i);
    Pack<BFloat16, N> high;
    Pack<int16_t, N> low;
#pragma unroll
    for (int k = 0; k < N; k++) split(values[k], high[k], low[k]);
    save<N>(hi + i, high);
    save<N>(lo + i, low);
  }
};

constexpr int kTurned = 128;  // rows and columns of a tile of bytes

// Bytes r of four words as words of bytes: word c is byte c of each.
__device__ inline void turn(uint32_t (&w)[4]) {
  const uint32_t low01 = __byte_perm(w[0], w[1], 0x5140), high01 = __byte_perm(w[0], w[1], 0x7362);
  const uint32_t low23 = __byte_perm(w[2], w[3], 0x5140), high23 = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(low01, low23, 0x5410);
  w[1] = __byte_perm(low01, low23, 0x7632);
  w[2] = __byte_perm(high01, high23, 0x5410);
  w[3] = __byte_perm(high01, high23, 0x7632);
}

// Rows and columns in 16s. A thread reads 16 bytes of a row, and writes 16 of each of four columns. Word c of row r
// lies at c + 4 (r / 16), so that those who read 16 rows below one another meet other banks.
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(Rows<uint8_t> x, int64_t rows, int64_t cols, Rows<uint8_t> y) {
  constexpr int kWords = kTurned / 4, kQuads = kTurned / 16;
  __shared__ __align__(16) uint32_t tile[kTurned][kWords];
  const int64_t row = int64_t{blockIdx.y} * kTurned, col = int64_t{blockIdx.x} * kTurned;
  const int thread = static_cast<int>(threadIdx.x), quad = thread % kQuads;
#pragma unroll
  for (int line = thread / kQuads; line < kTurned; line += kThreads / kQuads) {
    if (row + line >= rows || col + 16 * quad >= cols) continue;
    const auto bytes = load<16>(x.at(row + line, col + 16 * quad));
    *reinterpret_cast<Pack<uint8_t, 16>*>(&tile[line][4 * ((quad + line / 16) % kQuads)]) = bytes;
  }
  __syncthreads();
  const int word = thread / kQuads, below = 16 * quad;  // this thread's columns, and its rows
  if (row + below >= rows || col + 4 * word >= cols) return;
  Pack<uint32_t, 4> columns[4];
#pragma unroll
  for (int four = 0; four < 4; four++) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = tile[below + 4 * four + i][(word + 4 * quad) % kWords];
    turn(w);
#pragma unroll
    for (int i = 0; i < 4; i++) columns[i][four] = w[i];
  }
#pragma unroll
  for (int i = 0; i < 4; i++) save<4>(reinterpret_cast<uint32_t*>(y.at(col + 4 * word + i, row + below)), columns[i]);
}

// Sizes of any kind.
struct TransposeBody {
  Rows<uint8_t> x, y;
  template <int>
  __device__ void operator()(int64_t row, int64_t col) const {
    *y.at(row, col) = *x.at(col, row);
  }
};

struct JoinBody {
  const BFloat16* hi;
  const int16_t* lo;
  float* x;
  template <int N>
  __device__ void operator()(int64_t, int64_t i) const {
    const auto high = load<N>(hi + i);
    const auto low = load<N>(lo + i);
    Pack<float, N> values;
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = join(high[k], low[k]);
    save<N>(x + i, values);
  }
};

}  // namespace

Launch bind_cast(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kFloat);
  const TensorView y = operands.matrix("y", kFloat, x.rows(), x.cols());
  operands.done();
  if (x.dtype == y.dtype) return copy(x, y, stream);
  return dispatch_float(x.dtype, [&]<class X>() {
    return dispatch_float(y.dtype, [&]<class Y>() -> Launch {
      return [=](const PassFacts&) {
        launch_elements(stream, Extent{x, y}, wide({x, y}), CastBody<X, Y>{ByteRows(x), Rows<Y>(y)});
      };
    });
  });
}

Launch bind_copy(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kAny);
  const TensorView y = operands.matrix("y", {x.dtype}, x.rows(), x.cols());
  operands.done();
  return copy(x, y, stream);
}

Launch bind_transpose(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", {DType::U8});
  const TensorView y = operands.matrix("y", {DType::U8}, x.cols(), x.rows());
  operands.done();
  const auto in_sixteens = [](const TensorView& view) {
    return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.row_stride % 16 == 0 && view.cols() % 16 == 0;
  };
  const bool tiles = in_sixteens(x) && in_sixteens(y);
  const dim3 grid(blocks_of(x.cols(), kTurned), blocks_of(x.rows(), kTurned));
  return [=](const PassFacts&) {
    const Rows<uint8_t> from(x), to(y);
    if (tiles)
      transpose_kernel<<<grid, kThreads, 0, stream>>>(from, x.rows(), x.cols(), to);
    else
      launch_elements(stream, Extent(y.rows(), y.cols()), false, TransposeBody{from, to});
    check_launch("transpose");
  };
}

Launch bind_fill(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kAny);
  operands.done();
  return [=, extent = Extent{x}](const PassFacts&) {
    if (extent.rows == 0) return;
    check_cuda(cudaMemset2DAsync(x.data, row_bytes(x, extent.rows == 1 ? extent.cols : x.row_stride), 0,
                                 row_bytes(x, extent.cols), static_cast<size_t>(extent.rows), stream),
               "fill");
  };
}

Launch bind_split_master(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.dense("x", kFloat);
  const TensorView hi = operands.vector("hi", {DType::BF16}, x.count());
  const TensorView lo = operands.vector("lo", {DType::I16}, x.count());
  operands.done();
  return dispatch_float(x.dtype, [&]<class X>() -> Launch {
    return [=](const PassFacts&) {
      launch_elements(stream, Extent{x}, wide({x, hi, lo}),
                      SplitBody<X>{ByteRows(x), hi.as<BFloat16>(), lo.as<int16_t>()});
    };
  });
}

Launch bind_join_master(Operands operands, cudaStream_t stream) {
  const TensorView hi = operands.dense("hi", {DType::BF16});
  const TensorView lo = operands.vector("lo", {DType::I16}, hi.count());
  const TensorView x = operands.vector("x", {DType::F32}, hi.count());
  operands.done();
  return [=](const PassFacts&) {
    launch_elements(stream, Extent{hi}, wide({hi, lo, x}),
                    JoinBody{hi.as<BFloat16>(), lo.as<int16_t>(), x.as<float>()});
  };
}

}  // namespace snug::cuda
