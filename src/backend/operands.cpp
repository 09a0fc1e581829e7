#include "backend/operands.h"

#include <algorithm>

#include "base/rounding.h"

namespace snug {

void Operands::refuse(std::string_view reason) const {
  internal_error("{} ({}): {}", op_.site, kind(op_.attrs), reason);
}

const TensorView& Operands::take(std::string_view what, DTypes dtypes) {
  expect(next_ < views_.size(), "{} operands found, expected '{}' after them", views_.size(), what);
  const TensorView& view = views_[next_++];
  if (std::ranges::find(dtypes, view.dtype) == dtypes.end()) {
    std::string expected;
    for (const DType dtype : dtypes) expected += fmt::format("{}{}", expected.empty() ? "" : " or ", name(dtype));
    refuse(fmt::format("'{}' is {}, expected {}", what, name(view.dtype), expected));
  }
  expect(view.data != nullptr || view.count() == 0, "'{}' has no memory", what);
  return view;
}

const TensorView& Operands::matrix(std::string_view what, DTypes dtypes, int64_t rows, int64_t cols) {
  const TensorView& view = take(what, dtypes);
  expect(view.rows() == rows && view.cols() == cols, "'{}' is {}, expected [{}, {}]", what, to_string(view.shape), rows,
         cols);
  expect(view.rows() <= 1 || view.row_stride >= cols, "rows of '{}' lie {} elements apart, expected at least {}", what,
         view.row_stride, cols);
  return view;
}

const TensorView& Operands::dense(std::string_view what, DTypes dtypes) {
  const TensorView& view = take(what, dtypes);
  expect(view.dense(), "rows of '{}' {} lie {} elements apart, expected dense", what, to_string(view.shape),
         view.row_stride);
  return view;
}

const TensorView& Operands::vector(std::string_view what, DTypes dtypes, int64_t count) {
  const TensorView& view = dense(what, dtypes);
  expect(view.count() == count, "'{}' is {}, expected {} elements", what, to_string(view.shape), count);
  return view;
}

std::byte* Operands::scratch(uint64_t bytes) {
  if (bytes == 0) return nullptr;
  const TensorView& view = dense("scratch", {DType::U8});
  expect(static_cast<uint64_t>(view.count()) >= bytes, "scratch of {} bytes found, {} needed", view.count(), bytes);
  return view.data;
}

void Operands::done() const { expect(next_ == views_.size(), "{} operands found, expected {}", views_.size(), next_); }

Nf4Operands nf4_operands(const Dequantize& attrs, Operands& operands) {
  Nf4Operands found;
  found.packed = operands.dense("codes", {DType::U8});
  found.count = 2 * found.packed.count();
  const int64_t blocks = found.count / kNf4Block;
  operands.expect(found.count % kNf4Block == 0, "'codes' has {} bytes, expected a multiple of {}", found.packed.count(),
                  kNf4Block / 2);
  if (attrs.plain_scales) {
    found.scales.plain = operands.vector("scales", {DType::F32}, blocks).as<float>();
  } else {
    found.scales.codes = operands.vector("scale codes", {DType::U8}, blocks).as<uint8_t>();
    const int64_t groups = ceil_div(blocks, kNf4ScaleBlock);
    found.scales.block_scales = operands.vector("block scales", {DType::F32}, groups).as<float>();
    found.scales.offset = operands.vector("offset", {DType::F32}, 1).as<float>();
  }
  const TensorView& x = found.x = operands.take("x", kActivation);
  operands.expect(x.count() == found.count, "'x' is {}, expected {} elements", to_string(x.shape), found.count);
  operands.expect(x.rows() <= 1 || x.row_stride >= x.cols(), "rows of 'x' lie {} elements apart, expected at least {}",
                  x.row_stride, x.cols());
  operands.done();
  return found;
}

}  // namespace snug
