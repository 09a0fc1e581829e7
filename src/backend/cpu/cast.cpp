// Moves bytes, zeroes them, and casts numbers.
#include <cstring>

#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "backend/master.h"
#include "base/rounding.h"

namespace snug::cpu {
namespace {

Launch copy(const TensorView& x, const TensorView& y) {
  return [=, extent = Extent{x, y}](const RuntimeScalars&) {
    const auto size = static_cast<int64_t>(element_bytes(x.dtype));
    share_runs(extent, [&](int64_t row, int64_t begin, int64_t end) {
      std::memcpy(y.data + (row * y.row_stride + begin) * size, x.data + (row * x.row_stride + begin) * size,
                  static_cast<size_t>((end - begin) * size));
    });
  };
}

}  // namespace

Launch bind_cast(Operands operands) {
  const TensorView x = operands.take("x", kFloat);
  const TensorView y = operands.matrix("y", kFloat, x.rows(), x.cols());
  operands.done();
  if (x.dtype == y.dtype) return copy(x, y);
  return dispatch_float(x.dtype, [&]<class X>() {
    return dispatch_float(y.dtype, [&]<class Y>() -> Launch {
      return [x, to = Rows<Y>(y), extent = Extent{x, y}](const RuntimeScalars&) {
        share_runs(extent, [&](int64_t row, int64_t begin, int64_t end) {
          const std::byte* source = x.data + row * x.row_stride * static_cast<int64_t>(sizeof(X));
          Y* target = to[row];
          for (int64_t i = begin; i < end; i++) store(target[i], load<X>(source, i));
        });
      };
    });
  });
}

Launch bind_copy(Operands operands) {
  const DTypes any{DType::F32, DType::BF16, DType::F16, DType::I32, DType::I16, DType::U8, DType::I8};
  const TensorView x = operands.take("x", any);
  const TensorView y = operands.matrix("y", {x.dtype}, x.rows(), x.cols());
  operands.done();
  return copy(x, y);
}

Launch bind_transpose(Operands operands) {
  const TensorView x = operands.take("x", {DType::U8});
  const TensorView y = operands.matrix("y", {DType::U8}, x.cols(), x.rows());
  operands.done();
  return [rows = y.rows(), cols = y.cols(), from = Rows<uint8_t>(x), to = Rows<uint8_t>(y)](const RuntimeScalars&) {
    constexpr int64_t kTile = 64;
    share(ceil_div(rows, kTile), [&](int64_t tile) {
      const int64_t begin = tile * kTile, end = std::min(rows, begin + kTile);
      for (int64_t col = 0; col < cols; col++)
        for (int64_t row = begin; row < end; row++) to[row][col] = from[col][row];
    });
  };
}

Launch bind_fit_columns(Operands operands) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView y = operands.take("y", {x.dtype});
  operands.done();
  operands.expect(x.rows() == y.rows(), "found {} rows of y, expected {}, as many as of x", y.rows(), x.rows());
  return [=](const RuntimeScalars&) {
    const auto size = static_cast<int64_t>(element_bytes(x.dtype)), copied = std::min(x.cols(), y.cols());
    share_rows(y.rows(), y.cols(), [&](int64_t row) {
      std::byte* const to = y.data + row * y.row_stride * size;
      std::memcpy(to, x.data + row * x.row_stride * size, static_cast<size_t>(copied * size));
      std::memset(to + copied * size, 0, static_cast<size_t>((y.cols() - copied) * size));
    });
  };
}

Launch bind_fill(Operands operands) {
  const TensorView x =
      operands.take("x", {DType::F32, DType::BF16, DType::F16, DType::I32, DType::I16, DType::U8, DType::I8});
  operands.done();
  return [x, extent = Extent{x}](const RuntimeScalars&) {
    const auto size = static_cast<int64_t>(element_bytes(x.dtype));
    share_runs(extent, [&](int64_t row, int64_t begin, int64_t end) {
      std::memset(x.data + (row * x.row_stride + begin) * size, 0, static_cast<size_t>((end - begin) * size));
    });
  };
}

Launch bind_split_master(Operands operands) {
  const TensorView x = operands.dense("x", kFloat);
  BFloat16* const hi = operands.vector("hi", {DType::BF16}, x.count()).as<BFloat16>();
  int16_t* const lo = operands.vector("lo", {DType::I16}, x.count()).as<int16_t>();
  operands.done();
  return dispatch_float(x.dtype, [&]<class X>() -> Launch {
    return [=](const RuntimeScalars&) {
      share_runs(Extent{x}, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) split(load<X>(x.data, i), hi[i], lo[i]);
      });
    };
  });
}

Launch bind_join_master(Operands operands) {
  const TensorView high = operands.dense("hi", {DType::BF16});
  const int16_t* const lo = operands.vector("lo", {DType::I16}, high.count()).as<int16_t>();
  float* const x = operands.vector("x", {DType::F32}, high.count()).as<float>();
  operands.done();
  return [=, hi = high.as<BFloat16>()](const RuntimeScalars&) {
    share_runs(Extent{high}, [&](int64_t, int64_t begin, int64_t end) {
#pragma omp simd
      for (int64_t i = begin; i < end; i++) x[i] = join(hi[i], lo[i]);
    });
  };
}

}  // namespace snug::cpu
