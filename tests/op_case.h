// What a case of an op is made of: attributes, operands and how they are filled, scalars, and how near the reference
// (ref/reference.h) the results must be.
#pragma once

#include <functional>
#include <numeric>
#include <ostream>
#include <string>

#include "program/program.h"
#include "ref/reference.h"

namespace snug {

// Seeded numbers, the same everywhere (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

using Filling = std::function<void(ref::Tensor&, Numbers&)>;

// Fills.
inline Filling uniform(double low = -1, double high = 1) {
  return [=](ref::Tensor& x, Numbers& numbers) {
    for (double& value : x.values) value = numbers.uniform(low, high);
  };
}
inline Filling integers(int64_t low, int64_t high) {  // in [low, high)
  return [=](ref::Tensor& x, Numbers& numbers) {
    for (double& value : x.values)
      value = std::floor(numbers.uniform(static_cast<double>(low), static_cast<double>(high)));
  };
}
// The list, over and over.
inline Filling list(std::vector<double> values) {
  return [=](ref::Tensor& x, Numbers&) {
    for (size_t i = 0; i < x.values.size(); i++) x.values[i] = values[i % values.size()];
  };
}
inline Filling list(const std::vector<int32_t>& values) {
  return list(std::vector<double>(values.begin(), values.end()));
}
// Mostly uniform in [-1, 1), with these values strewn in.
inline Filling strewn(std::vector<double> values) {
  return [=](ref::Tensor& x, Numbers& numbers) {
    uniform()(x, numbers);
    for (size_t i = 0; i < x.values.size(); i += 5) x.values[i] = values[i / 5 % values.size()];
  };
}

struct CaseOperand {
  std::string name;
  Access access;
  DType dtype;
  Shape shape;
  Filling fill;        // of what is read
  int64_t tail = 0;    // elements between a row's end and the next row
  uint64_t shift = 0;  // bytes that the view starts beyond an aligned address
};

struct OpCase {
  std::string name;
  Attrs attrs;
  std::vector<CaseOperand> operands;
  RuntimeScalars runtime;
  // |got - want| <= relative |want| + absolute + half a unit in the last place of the result's dtype: sums are in fp32,
  // every result is rounded once. Both 0: the result must be the reference rounded to nearest even, bit for bit.
  double relative = 4e-6, absolute = 4e-6;
  std::function<void(std::vector<ref::Tensor>&)> prepare = {};  // computes operands from others, after all are filled
  size_t master = 0;  // if not 0: operands [master] and [master + 1] are hi and lo, compared as the fp32 they join to
};

// How a failing test names its case.
inline void PrintTo(const OpCase& c, std::ostream* stream) { *stream << c.name; }

inline CaseOperand in(std::string name, DType dtype, const Shape& shape, Filling fill = uniform(), int64_t tail = 0) {
  return {std::move(name), Access::Read, dtype, shape, std::move(fill), tail};
}
inline CaseOperand out(std::string name, DType dtype, const Shape& shape, int64_t tail = 0) {
  return {std::move(name), Access::Write, dtype, shape, {}, tail};
}
inline CaseOperand inout(std::string name, DType dtype, const Shape& shape, Filling fill = uniform(),
                         int64_t tail = 0) {
  return {std::move(name), Access::ReadWrite, dtype, shape, std::move(fill), tail};
}

using OpCases = std::vector<OpCase>;
inline constexpr std::array kActivations{DType::F32, DType::BF16};
inline constexpr std::array kAllActivations{Activation::Silu, Activation::GeluTanh, Activation::Gelu,
                                            Activation::GeluQuick, Activation::ReluSquared};
inline std::string_view word(Activation activation) {
  constexpr std::array<std::string_view, kAllActivations.size()> kWords{"silu", "gelu_tanh", "gelu", "gelu_quick",
                                                                        "relu_squared"};
  return kWords[static_cast<size_t>(activation)];
}
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace snug
