// Moves bytes, zeroes them, and casts numbers.
#include "backend/cuda/device.cuh"
#include "backend/cuda/transpose.cuh"
#include "backend/master.h"

namespace snug::cuda {
namespace {

constexpr DTypes kAny{DType::F32, DType::BF16, DType::F16, DType::I32, DType::I16, DType::U8, DType::I8};

size_t row_bytes(const TensorView& view, int64_t elements) {
  return static_cast<size_t>(elements) * element_bytes(view.dtype);
}

// Copies between any two spaces, which follow from the addresses.
Launch copy(const TensorView& x, const TensorView& y, cudaStream_t stream) {
  return [=, extent = Extent{x, y}](const RuntimeScalars&) {
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

// Gives 16 bytes of a row as they are, for transpose_kernel().
struct StoredBytes {
  Rows<uint8_t> x;
  struct Columns {
    Rows<uint8_t> x;
    int64_t col;
    __device__ Pack<uint32_t, 4> fetch(int64_t row) const {
      return load<4>(reinterpret_cast<const uint32_t*>(x.at(row, col)));
    }
    __device__ void put(const Pack<uint32_t, 4>& raw, uint8_t* to) const {
      save<4>(reinterpret_cast<uint32_t*>(to), raw);
    }
  };
  __device__ Columns from(int64_t col) const { return {x, col}; }
};

// Transposes matrices of any size.
struct TransposeBody {
  Rows<uint8_t> x, y;
  template <int>
  __device__ void operator()(int64_t row, int64_t col) const {
    *y.at(row, col) = *x.at(col, row);
  }
};

// Copies what x has of a row's group of N elements, and zeros beyond it. Threads take groups across rows, as rows may
// be short.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    fit_columns_kernel(Rows<T> x, int64_t columns, Rows<T> y, int64_t rows, int64_t groups) {
  const int64_t group = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = group / groups, col = group % groups * N;
  if (row >= rows) return;
  Pack<T, N> values;
#pragma unroll
  for (int k = 0; k < N; k++) values[k] = col + k < columns ? *x.at(row, col + k) : T{};
  save<N>(y.at(row, col), values);
}

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
      return [=](const RuntimeScalars&) {
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
  const bool tiles = in_sixteens(x) && in_sixteens(y);
  const dim3 grid = transpose_grid(x);
  return [=](const RuntimeScalars&) {
    const Rows<uint8_t> from(x), to(y);
    if (tiles)
      transpose_kernel<<<grid, kThreads, 0, stream>>>(StoredBytes{from}, x.rows(), x.cols(), to);
    else
      launch_elements(stream, Extent(y.rows(), y.cols()), false, TransposeBody{from, to});
    check_launch("transpose");
  };
}

Launch bind_fit_columns(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView y = operands.take("y", {x.dtype});
  operands.done();
  operands.expect(x.rows() == y.rows(), "found {} rows of y, expected {}, as many as of x", y.rows(), x.rows());
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_wide(wide({y}), [&]<int N>() -> Launch {
      const int64_t groups = y.cols() / N;
      return [=](const RuntimeScalars&) {
        if (y.count() == 0) return;
        fit_columns_kernel<N><<<blocks_of(y.rows() * groups, kThreads), kThreads, 0, stream>>>(
            Rows<T>(x), x.cols(), Rows<T>(y), y.rows(), groups);
        check_launch("fit_columns");
      };
    });
  });
}

Launch bind_fill(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kAny);
  operands.done();
  return [=, extent = Extent{x}](const RuntimeScalars&) {
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
    return [=](const RuntimeScalars&) {
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
  return [=](const RuntimeScalars&) {
    launch_elements(stream, Extent{hi}, wide({hi, lo, x}),
                    JoinBody{hi.as<BFloat16>(), lo.as<int16_t>(), x.as<float>()});
  };
}

}  // namespace snug::cuda
