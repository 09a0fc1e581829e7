// Matrices with sentinel bytes round them and in the gaps between their rows.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "program/program.h"
#include "tensor/view.h"

namespace snug {

class Guarded {
 public:
  // A matrix whose rows lie `gap` elements further apart than they are long; its elements start as NaN (or 0xa5..).
  Guarded(DType dtype, int64_t rows, int64_t cols, int64_t gap = 0) : Guarded(dtype, Shape{rows, cols}, cols + gap) {}
  Guarded(DType dtype, const Shape& shape, int64_t row_stride)
      : bytes_(kGuard * 2 + static_cast<size_t>(shape.rows() * row_stride) * element_bytes(dtype), kSentinel) {
    view_ = {.data = start(), .dtype = dtype, .shape = shape, .row_stride = row_stride};
    for (int64_t row = 0; row < view_.rows(); row++) std::memset(row_start(row), 0xff, row_bytes());
  }
  Guarded(Guarded&& other) noexcept : view_(other.view_), bytes_(std::move(other.bytes_)) { view_.data = start(); }

  const TensorView& view() const { return view_; }
  double at(int64_t row, int64_t col) const {
    const std::byte* element = row_start(row) + static_cast<size_t>(col) * element_bytes(view_.dtype);
    if (view_.dtype == DType::F32) return *reinterpret_cast<const float*>(element);
    return static_cast<float>(*reinterpret_cast<const BFloat16*>(element));
  }
  void set(int64_t row, int64_t col, double value) {
    std::byte* element = row_start(row) + static_cast<size_t>(col) * element_bytes(view_.dtype);
    if (view_.dtype == DType::F32)
      *reinterpret_cast<float*>(element) = static_cast<float>(value);
    else
      *reinterpret_cast<BFloat16*>(element) = BFloat16(static_cast<float>(value));
  }
  void fill_normal(std::mt19937& random, double deviation = 1) {
    std::normal_distribution<double> normal(0, deviation);
    for (int64_t row = 0; row < view_.rows(); row++)
      for (int64_t col = 0; col < view_.cols(); col++) set(row, col, normal(random));
  }
  // The elements of rows [begin, end), without gaps.
  std::vector<std::byte> rows(int64_t begin, int64_t end) const {
    std::vector<std::byte> all;
    for (int64_t row = begin; row < end; row++) all.insert(all.end(), row_start(row), row_start(row) + row_bytes());
    return all;
  }
  std::vector<std::byte> all() const { return rows(0, view_.rows()); }
  bool guards_hold() const {
    std::vector<std::byte> expected(bytes_.size(), kSentinel);
    for (int64_t row = 0; row < view_.rows(); row++) {
      const auto offset = static_cast<size_t>(row_start(row) - bytes_.data());
      std::memcpy(expected.data() + offset, row_start(row), row_bytes());
    }
    return expected == bytes_;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr std::byte kSentinel{0xa5};

  // Aligned as an arena's buffers are.
  std::byte* start() {
    void* data = bytes_.data();
    size_t space = 2 * kGuard;
    return static_cast<std::byte*>(std::align(kGuard, kGuard, data, space));
  }
  std::byte* row_start(int64_t row) const {
    return view_.data + static_cast<size_t>(row * view_.row_stride) * element_bytes(view_.dtype);
  }
  size_t row_bytes() const { return static_cast<size_t>(view_.cols()) * element_bytes(view_.dtype); }

  TensorView view_;
  std::vector<std::byte> bytes_;
};

// Operands as planning sees them: one buffer for each address.
inline std::vector<Operand> operands_of(const std::vector<TensorView>& views) {
  std::vector<Operand> operands;
  for (const TensorView& view : views) {
    Operand operand;
    for (operand.buffer = 0; views[operand.buffer].data != view.data;) operand.buffer++;
    operand.dtype = view.dtype;
    operand.shape = view.shape;
    operand.row_stride = view.row_stride;
    operands.push_back(operand);
  }
  return operands;
}

// Runs an op as a program does: scratch as declared, bound, launched. `scratch_bytes` and `bind` are a kind's
// functions.
template <class Attrs, class ScratchBytes, class Bind>
void run_op(const Attrs& attrs, std::vector<TensorView> views, const RuntimeScalars& runtime,
            ScratchBytes scratch_bytes, Bind bind) {
  const uint64_t bytes = scratch_bytes(attrs, operands_of(views));
  Guarded scratch(DType::U8, Shape{static_cast<int64_t>(bytes)}, static_cast<int64_t>(bytes));
  if (bytes > 0) views.push_back(scratch.view());
  bind(attrs, views)(runtime);
  EXPECT_TRUE(scratch.guards_hold()) << "scratch overrun";
}

}  // namespace snug
