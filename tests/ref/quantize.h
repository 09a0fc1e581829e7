// Quantisation to 8 and 4 bits: program/ops.h's definition, operation by operation in fp32, by plain search.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "program/ops.h"
#include "ref/tensor.h"
#include "tensor/codebook.h"

namespace snug::ref {

inline float absmax(const double* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; i++) {
    const float magnitude = std::abs(static_cast<float>(x[i]));
    if (std::isnan(largest) || magnitude <= largest) continue;
    largest = magnitude;
  }
  return largest;
}

inline double int8_code(double x, float scale) {
  const float y = std::nearbyint(static_cast<float>(x) * (1.0f / scale * 127.0f));
  return std::isnan(y) ? 0 : static_cast<double>(std::fmin(std::fmax(y, -127.0f), 127.0f));
}
inline double int8_value(double code, double scale) {
  return static_cast<double>(static_cast<float>(code) * static_cast<float>(scale) * (1.0f / 127));
}

// The number of an e4m3fn code, by its definition.
inline double fp8_number(int64_t code) {
  const int exponent = static_cast<int>((code >> 3) & 15), mantissa = static_cast<int>(code & 7);
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);  // bias 7, 3 bits behind
  return code & 0x80 ? -magnitude : magnitude;
}
// The nearest, of two the even; beyond the largest the largest.
inline double fp8_code(double x, float scale) {
  if (scale == 0) return 0;
  const float y = static_cast<float>(x) / scale;
  if (std::isnan(y)) return std::signbit(y) ? 0xff : 0x7f;
  int best = 0;
  for (int code = 1; code < 0x7f; code++) {
    const double old = std::abs(fp8_number(best) - std::abs(static_cast<double>(y)));
    const double now = std::abs(fp8_number(code) - std::abs(static_cast<double>(y)));
    if (now < old || (now == old && code % 2 == 0)) best = code;
  }
  if (std::isinf(y)) best = 0x7e;
  return best + (std::signbit(y) ? 0x80 : 0);
}
inline double fp8_value(int64_t code, double scale) {
  return static_cast<double>(static_cast<float>(fp8_number(code)) * static_cast<float>(scale));
}

// The number of a codebook that is nearest to x over its block's scale; of two the lower.
template <size_t N>
double nearest_code(const std::array<float, N>& book, double x, float scale) {
  const float y = static_cast<float>(x) * (1.0f / std::max(scale, 1e-38f));
  if (std::isnan(y)) return 0;
  size_t best = 0;
  while (best + 1 < N && y > (book[best] + book[best + 1]) / 2) best++;
  return static_cast<double>(best);
}

// Computes a Quantize of its operands.
inline void quantize(const Quantize& op, std::vector<Tensor>& o) {
  Tensor x = o[0];
  if (op.columns)
    for (int64_t i = 0; i < x.shape.count(); i++) x[i] = o[0](i % x.rows(), i / x.rows());
  if (op.factors)
    for (int64_t i = 0; i < x.shape.count(); i++)
      x[i] = static_cast<double>(static_cast<float>(x[i]) * static_cast<float>(o[1][i % x.cols()]));
  Tensor &codes = o[op.factors ? 2 : 1], &scales = o[op.factors ? 3 : 2];
  if (op.columns && op.column_scales) {  // the scales are known
    for (int64_t i = 0; i < x.shape.count(); i++)
      codes[i] = fp8_code(x[i], static_cast<float>(scales[i / o[0].rows()]));
    return;
  }
  for (int64_t c = 0; op.column_scales && c < o[0].cols(); c++) {
    std::vector<double> column;
    for (int64_t r = 0; r < o[0].rows(); r++) column.push_back(o[0](r, c));
    o.back()[c] = static_cast<double>(absmax(column.data(), o[0].rows()) / 448);
  }
  const int64_t run = x.shape.count() / scales.shape.count();  // elements that share a scale
  if (op.format == BaseFormat::Nf4) std::ranges::fill(codes.values, 0.0);
  for (int64_t i = 0; i < x.shape.count(); i++) {
    const float largest = absmax(&x.values[static_cast<size_t>(i / run * run)], run);
    const float scale = op.format == BaseFormat::Fp8 ? largest / 448 : largest;
    scales[i / run] = static_cast<double>(scale);
    if (op.format == BaseFormat::Int8) codes[i] = int8_code(x[i], scale);
    if (op.format == BaseFormat::Fp8) codes[i] = fp8_code(x[i], scale);
    if (op.format == BaseFormat::Nf4) codes[i / 2] += nearest_code(kNf4Codebook, x[i], scale) * (i % 2 == 0 ? 16 : 1);
  }
}

}  // namespace snug::ref
