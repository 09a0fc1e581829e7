// Declares what a kernel sees: typed memory without ownership or any device API.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "tensor/dtype.h"

namespace snug {

// Holds up to four dimensions, the last one contiguous.
struct Shape {
  std::array<int64_t, 5> dims{1, 1, 1, 1, 1};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes);
  int64_t operator[](int i) const { return dims[static_cast<size_t>(i)]; }
  int64_t count() const { return dims[0] * dims[1] * dims[2] * dims[3] * dims[4]; }
  // Return the size as a matrix: all dimensions but the last, and the last. A scalar is 1 x 1.
  int64_t rows() const { return cols() == 0 ? 0 : count() / cols(); }
  int64_t cols() const { return rank == 0 ? 1 : dims[static_cast<size_t>(rank - 1)]; }
  bool operator==(const Shape&) const = default;
};

// Returns "[4096, 14336]".
std::string to_string(const Shape& shape);

// Refers to elements of a matrix whose rows may be padded: row r starts at data + r * row_stride elements.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::F32;
  Shape shape;
  int64_t row_stride = 0;  // elements; shape.cols() when rows are dense

  int64_t rows() const { return shape.rows(); }
  int64_t cols() const { return shape.cols(); }
  int64_t count() const { return shape.count(); }
  bool dense() const { return row_stride == cols() || rows() <= 1; }

  template <class T>
  T* as() const {
    check(dtype == dtype_of<T>(), "a view of {} was read as {}", name(dtype), name(dtype_of<T>()));
    return reinterpret_cast<T*>(data);
  }
};

// Calls f.template operator()<T>() with the C++ type of a floating-point dtype.
template <class F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F32:
      return f.template operator()<float>();
    case DType::BF16:
      return f.template operator()<BFloat16>();
    case DType::F16:
      return f.template operator()<Float16>();
    default:
      break;
  }
  internal_error("dtype {} is not a floating-point type", name(dtype));
}

}  // namespace snug
