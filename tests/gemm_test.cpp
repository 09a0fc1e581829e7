// Products against loops in fp64, over shapes, layouts and everything that may be added.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/matmul.h"
#include "backend/cpu/products.h"
#include "base/parallel.h"
#include "expect_error.h"
#include "guarded.h"

namespace snug {
namespace {

struct Sizes {
  int64_t m, n, k;
};

struct GemmCase {
  Sizes sizes;
  Gemm gemm;
  DType factors = DType::F32, c = DType::F32, d = DType::F32, bias = DType::F32;
  bool in_place = false;  // c is d
  int64_t gap = 0;        // between rows of every operand
};

std::ostream& operator<<(std::ostream& out, const GemmCase& x) {
  return out << x.sizes.m << "x" << x.sizes.n << "x" << x.sizes.k << " of " << name(x.factors) << " to " << name(x.d)
             << (x.gemm.transpose_a ? " ta" : "") << (x.gemm.transpose_b ? " tb" : "") << " alpha " << x.gemm.alpha
             << (x.gemm.addend ? x.in_place ? " in place" : " addend " : "")
             << (x.gemm.addend ? name(x.c) : std::string_view()) << (x.gemm.bias ? " bias" : "") << " gap " << x.gap;
}

// The operands of a case, filled from a seed of their own.
struct GemmData {
  explicit GemmData(const GemmCase& x)
      : a(x.gemm.transpose_a ? Guarded(x.factors, x.sizes.k, x.sizes.m, x.gap)
                             : Guarded(x.factors, x.sizes.m, x.sizes.k, x.gap)),
        b(x.gemm.transpose_b ? Guarded(x.factors, x.sizes.n, x.sizes.k, x.gap)
                             : Guarded(x.factors, x.sizes.k, x.sizes.n, x.gap)),
        c(x.c, x.sizes.m, x.sizes.n, 3 * x.gap),
        d(x.d, x.sizes.m, x.sizes.n, x.gap),
        bias(x.bias, Shape{x.sizes.n}, x.sizes.n) {
    std::mt19937 random(7);
    for (Guarded* operand : {&a, &b, &c, &bias}) operand->fill_normal(random);
    if (x.in_place) d.fill_normal(random);
  }
  Guarded a, b, c, d, bias;
};

Launch bind_alone(const Gemm& gemm, std::span<const TensorView> views) {
  cpu::MatmulCalls calls;
  return cpu::bind_gemm(gemm, views, calls);
}

void run(const GemmCase& x, GemmData& data) {
  std::vector<TensorView> views{data.a.view(), data.b.view()};
  if (x.gemm.addend) views.push_back(x.in_place ? data.d.view() : data.c.view());
  if (x.gemm.bias) views.push_back(data.bias.view());
  views.push_back(data.d.view());
  run_op(x.gemm, views, {}, cpu::gemm_scratch_bytes, bind_alone);
}

// Every factor is exact in its dtype and every product of two in fp32 or nearly so: each of k additions, in whatever
// order, and each step after them loses at most 2^-23 of the sum of magnitudes; rounding to bf16 at most 2^-8 of the
// result.
void expect_right(const GemmCase& x) {
  SCOPED_TRACE(testing::PrintToString(x));
  GemmData data(x);
  std::vector<double> before;
  for (int64_t i = 0; i < x.sizes.m; i++)
    for (int64_t j = 0; j < x.sizes.n; j++) before.push_back(x.in_place ? data.d.at(i, j) : data.c.at(i, j));
  run(x, data);
  for (int64_t i = 0; i < x.sizes.m; i++)
    for (int64_t j = 0; j < x.sizes.n; j++) {
      double value = 0, magnitude = 0;
      for (int64_t p = 0; p < x.sizes.k; p++) {
        const double term = (x.gemm.transpose_a ? data.a.at(p, i) : data.a.at(i, p)) *
                            (x.gemm.transpose_b ? data.b.at(j, p) : data.b.at(p, j)) * x.gemm.alpha;
        value += term;
        magnitude += std::abs(term);
      }
      const auto add = [&](double term) {
        value += term;
        magnitude += std::abs(term);
      };
      if (x.gemm.addend) add(before[static_cast<size_t>(i * x.sizes.n + j)]);
      if (x.gemm.bias) add(data.bias.at(0, j));
      const double bound = static_cast<double>(x.sizes.k + 4) * 0x1p-23 * magnitude +
                           (x.d == DType::BF16 ? 0x1.01p-8 * std::abs(value) : 0);
      ASSERT_LE(std::abs(data.d.at(i, j) - value), bound) << "at " << i << ", " << j;
    }
  EXPECT_TRUE(data.d.guards_hold());
}

const Sizes kSizes[] = {{1, 1, 1},    {1, 331, 72},   {7, 5, 3},     {33, 31, 17}, {100, 24, 72},
                        {72, 16, 96}, {257, 321, 33}, {40, 130, 16}, {16, 70, 96}, {24, 24, 300}};

TEST(Gemm, MatchesLoopsForEveryShapeAndTranspose) {
  for (const Sizes& sizes : kSizes)
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true})
        for (const int64_t gap : {0, 3})
          for (const auto& [factors, d] : {std::pair{DType::F32, DType::F32}, std::pair{DType::BF16, DType::BF16},
                                           std::pair{DType::BF16, DType::F32}})
            expect_right({.sizes = sizes,
                          .gemm = {.transpose_a = transpose_a, .transpose_b = transpose_b},
                          .factors = factors,
                          .d = d,
                          .gap = gap});
}

TEST(Gemm, AddsEveryCombinationOfAddendAndBias) {
  for (const Sizes& sizes : {Sizes{7, 5, 3}, Sizes{33, 70, 16}, Sizes{300, 16, 40}})
    for (const auto& [factors, d] :
         {std::pair{DType::F32, DType::F32}, std::pair{DType::BF16, DType::BF16}, std::pair{DType::BF16, DType::F32}})
      for (const DType c : {DType::F32, factors})
        for (const DType bias : {DType::F32, factors})
          for (const float alpha : {1.0f, 0.3f})
            for (const int64_t gap : {0, 8})
              for (int mode = 1; mode < 6; mode++) {
                const bool addend = mode >= 2, in_place = mode >= 4;
                if (in_place && c != d) continue;
                expect_right({.sizes = sizes,
                              .gemm = {.transpose_b = true, .alpha = alpha, .addend = addend, .bias = mode % 2 == 1},
                              .factors = factors,
                              .c = c,
                              .d = d,
                              .bias = bias,
                              .in_place = in_place,
                              .gap = gap});
              }
}

// The library has only its reference for a part of a wider result with most of what may come after the sums; a linear
// with a bias was hundreds of times slower by it.
TEST(Gemm, IsNeverTheLibrarysReference) {
  using Addend = cpu::MatmulSpec::Addend;
  for (const DType dtype : {DType::F32, DType::BF16})
    for (const int64_t gap : {0, 512})
      for (const bool transpose_b : {false, true})
        for (const Addend addend : {Addend::None, Addend::Separate, Addend::InPlace})
          for (const float alpha : {1.0f, 2.0f})
            for (const bool bias : {false, true}) {
              const auto made = cpu::Matmul::make(
                  {.m = 256,
                   .n = 256,
                   .k = 128,
                   .factors = dtype,
                   .c = dtype,
                   .d = dtype,
                   .bias_dtype = dtype,
                   .a_strides = {128, 1},
                   .b_strides = transpose_b ? std::array<int64_t, 2>{1, 128} : std::array<int64_t, 2>{256, 1},
                   .c_stride = 256 + gap,
                   .d_stride = 256 + gap,
                   .alpha = alpha,
                   .addend = addend,
                   .bias = bias});
              ASSERT_TRUE(made.has_value());
              EXPECT_EQ(made->implementation().find("ref"), std::string::npos)
                  << name(dtype) << " gap " << gap << " addend " << static_cast<int>(addend) << " alpha " << alpha
                  << " bias " << bias << ": " << made->implementation();
            }
}

TEST(Gemm, IsBitEqualForAnyNumberOfThreads) {
  const Sizes sizes[] = {{264, 330, 24}, {1, 700, 40}, {270, 16, 96}, {270, 330, 16}, {16, 330, 270}, {64, 64, 1024}};
  for (const Sizes& size : sizes)
    for (int layout = 0; layout < 4; layout++)
      for (const DType factors : {DType::F32, DType::BF16}) {
        GemmCase x{.sizes = size,
                   .gemm = {.transpose_a = layout % 2 == 1, .transpose_b = layout >= 2, .alpha = 0.5f},
                   .factors = factors,
                   .d = factors};
        SCOPED_TRACE(testing::PrintToString(x));
        set_threads(1);
        GemmData one(x);
        run(x, one);
        for (const int team : {2, 3, 4}) {
          set_threads(team);
          GemmData many(x);
          run(x, many);
          EXPECT_EQ(one.d.all(), many.d.all()) << team << " threads";
        }
        set_threads(1);
      }
}

TEST(Gemm, KeepsFp32ProductsInFp32) {
  const GemmCase x{.sizes = {64, 64, 64}, .gemm = {}};
  GemmData data(x);
  for (int64_t i = 0; i < 64; i++)
    for (int64_t j = 0; j < 64; j++) {
      data.a.set(i, j, i == j ? 1 + 0x1p-22 : 0);
      data.b.set(i, j, 1);
    }
  run(x, data);
  for (int64_t i = 0; i < 64; i++) EXPECT_EQ(data.d.at(i, 5), 1 + 0x1p-22);
}

TEST(Gemm, RefusesOperandsThatDoNotFit) {
  const GemmCase x{.sizes = {8, 6, 4}, .gemm = {}};
  GemmData data(x);
  Guarded other(DType::F32, 8, 7), half(DType::BF16, 4, 6);
  const auto bind = [&](std::vector<TensorView> views) { bind_alone({}, views); };
  EXPECT_TRUE(fails_with<InternalError>([&] { bind({data.a.view(), data.b.view(), other.view()}); }, "d is [8, 7]"));
  EXPECT_TRUE(fails_with<InternalError>([&] { bind({data.a.view(), half.view(), data.d.view()}); }, "b is bf16"));
  EXPECT_TRUE(fails_with<InternalError>([&] { bind({data.a.view(), data.b.view()}); }, "operands"));
}

}  // namespace
}  // namespace snug
