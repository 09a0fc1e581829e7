// What sums over ranks, rounding of optimizer state and dropout promise beyond the cases of op_cases.h.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "backend/cpu/backend.h"
#include "backend/cpu/math.h"
#include "op_case.h"
#include "tensor/codebook.h"

namespace snug {
namespace {

template <class T>
TensorView view(std::vector<T>& x, const Shape& shape, int64_t begin = 0) {
  return {reinterpret_cast<std::byte*>(x.data() + begin), dtype_of<T>(), shape, shape.cols()};
}

void run(const Attrs& attrs, const std::vector<TensorView>& views, const RuntimeScalars& runtime = {}) {
  Op op;
  op.attrs = attrs;
  op.site = "update_test";
  CpuBackend().bind(op, views)(runtime);
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

std::vector<float> numbers(size_t count, uint64_t seed, double low, double high) {
  std::vector<float> x(count);
  Numbers random(seed);
  for (float& value : x) value = static_cast<float>(random.uniform(low, high));
  return x;
}

// ---- Random numbers -------------------------------------------------------------------------------------------------

TEST(Random, GivesManyAsItGivesOne) {
  const Random random(0x123456789abcdef, RandomPurpose::Rounding, 7);
  for (const uint64_t first : {uint64_t{0}, uint64_t{3}, at_step(5, 4097), (uint64_t{1} << 34) - 6})
    for (const size_t count : {1u, 4u, 63u, 64u, 131u}) {
      std::vector<uint32_t> got(count + 1, 99);
      random.bits(first, {got.data(), count});
      for (size_t i = 0; i < count; i++) ASSERT_EQ(got[i], random.bits(first + i)) << first << " + " << i;
      EXPECT_EQ(got[count], 99u);
    }
}

// ---- Sums -----------------------------------------------------------------------------------------------------------

TEST(SumRanks, AddsInOrderOfRowsAndThenToWhatIsThere) {
  constexpr float kLarge = 0x1p24f;  // plus 1 it is itself again, plus 2 not
  std::vector<float> parts{kLarge, 1, 1, 1, kLarge, 1, 1, 1, kLarge}, sum(3);
  run(SumRanks{}, {view(parts, {3, 3}), view(sum, {3})});
  EXPECT_EQ(sum, (std::vector<float>{kLarge, kLarge, kLarge + 2}));
  sum = {1, kLarge, 0};
  parts = {kLarge, 1, 3, -kLarge, 1, 4, 1, 1, 5};
  run(SumRanks{.accumulate = true}, {view(parts, {3, 3}), view(sum, {3})});
  EXPECT_EQ(sum, (std::vector<float>{2, kLarge + 4, 12}));  // to nearest even
}

TEST(TreeSum, AddsNeighboursThenTheirSums) {
  // As ((a + b) + (c + d)) + e.
  constexpr float kLarge = 0x1p24f;  // plus 1 it is itself again, plus 3 it is rounded up to plus 4
  std::vector<float> partial{0, 0, 1, 1, kLarge, 1e30f}, sum(1);
  run(TreeSum{5}, {view(partial, {6}), view(sum, {1})});
  EXPECT_EQ(sum[0], kLarge + 2);
  partial = {kLarge, 1, 1, 1, 1, 1e30f};
  run(TreeSum{5}, {view(partial, {6}), view(sum, {1})});
  EXPECT_EQ(sum[0], kLarge + 4);
}

TEST(TreeSum, OfBlocksOfAPowerOfTwoIsTheTreeOfAll) {
  std::vector<float> x = numbers(1000, 1, 0, 5), blocks(4), of_blocks(1), all(1);
  run(TreeSum{1000, 256}, {view(x, {1000}), view(blocks, {4})});
  run(TreeSum{4, 0, 0.5f}, {view(blocks, {4}), view(of_blocks, {1})});
  run(TreeSum{1000}, {view(x, {1000}), view(all, {1})});
  EXPECT_EQ(of_blocks[0], all[0] * 0.5f);
}

TEST(TreeSum, IsTheSumThatClipFactorTakesWhereverRowsLie) {
  std::vector<float> strided = numbers(7 * 40, 1, 0, 5), dense;
  for (size_t i = 0; i < 7 * 33; i++) dense.push_back(strided[i / 33 * 40 + i % 33]);
  std::vector<float> sum(1), loss{0}, clip(3);
  TensorView rows = view(strided, {7, 33});
  rows.row_stride = 40;
  for (const size_t count : {1u, 2u, 33u, 100u, 231u}) {
    run(TreeSum{static_cast<int64_t>(count)}, {rows, view(sum, {1})});
    std::vector<float> first(dense.begin(), dense.begin() + static_cast<ptrdiff_t>(count));
    run(ClipFactor{}, {view(first, {static_cast<int64_t>(count)}), view(loss, {1}), view(clip, {3})});
    EXPECT_EQ(std::sqrt(sum[0]), clip[0]) << count;
  }
}

// ---- Stochastic rounding --------------------------------------------------------------------------------------------

float rounded(float x, uint32_t random) {
  BFloat16 y;
  cpu::store_stochastic(y, x, random);
  return cpu::to_float(y);
}

TEST(StochasticRounding, KeepsWhatBf16HasAndWhatIsNoNumber) {
  for (const uint32_t random : {0u, 1u, 0xffffu}) {
    for (const float x : {0.0f, -0.0f, 1.0f, -3.5f, 0x1p-126f, 0x1.fep127f, 0x1p-133f}) {
      EXPECT_EQ(rounded(x, random), x);
      EXPECT_EQ(std::signbit(rounded(x, random)), std::signbit(x));
    }
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(rounded(infinity, random), infinity);
    EXPECT_EQ(rounded(-infinity, random), -infinity);
    for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
      EXPECT_TRUE(std::isnan(rounded(std::bit_cast<float>(bits), random))) << bits;
  }
}

TEST(StochasticRounding, GoesUpAsOftenAsTheRestIsOfAUnit) {
  const float x = 1 + 0x1p-7f * (12345.0f / 65536);
  int64_t up = 0;
  for (uint32_t random = 0; random < 65536; random++) {
    const float y = rounded(x, random);
    ASSERT_TRUE(y == 1 || y == 1 + 0x1p-7f) << y;
    ASSERT_EQ(rounded(-x, random), -y);
    up += y > 1;
  }
  EXPECT_EQ(up, 12345);
}

// A weight, m or v that no step would move if rounded to nearest moves by the mean of the exact steps. Beside it: the
// standard error of that mean, of which the limits are five.
TEST(StochasticRounding, IsRightOnTheMean) {
  constexpr size_t kCount = 1 << 16;
  const auto all = static_cast<int64_t>(kCount);
  std::vector<float> g(kCount, 1), clip{1, 1, 1};
  const auto mean = [](const std::vector<BFloat16>& x) {
    double sum = 0;
    for (const BFloat16& value : x) sum += static_cast<double>(cpu::to_float(value));
    return sum / kCount;
  };
  {
    std::vector<BFloat16> m(kCount, BFloat16(0.99f)), v(kCount, BFloat16(0.99f));
    std::vector<float> w(kCount, 0);
    const auto start = static_cast<double>(cpu::to_float(m[0]));
    run(AdamW{.beta1 = 0.99, .beta2 = 0.999, .format = StateFormat::Bf16},
        {view(g, {all}), view(w, {all}), view(m, {all}), view(v, {all}), view(clip, {3})}, {.step = 1});
    const double error =
        0x1p-8 / 2 / 256;  // a unit's half over the root of the count: not less than the standard error
    EXPECT_NEAR(mean(m) - start, 0.01 * (1 - start), 5 * error);
    EXPECT_NEAR(mean(v) - start, 0.001 * (1 - start), 5 * error);
    EXPECT_GT(mean(v), start);
    // m and v draw different bits.
    size_t alike = 0;
    for (size_t i = 0; i < kCount; i++) alike += (cpu::to_float(m[i]) > 0.99f) && (cpu::to_float(v[i]) > 0.99f);
    EXPECT_LT(alike, kCount / 100);
  }
  {
    std::vector<BFloat16> w(kCount, BFloat16(1.0f));
    std::vector<uint8_t> m(kCount), v(kCount);
    std::vector<float> m_scales(kCount / 256, 0), v_scales(kCount / 256, 0);
    run(AdamW{.format = StateFormat::Bit8},
        {view(g, {all}), view(w, {all}), view(m, {all}), view(v, {all}), view(m_scales, {all / 256}),
         view(v_scales, {all / 256}), view(clip, {3})},
        {.step = 1, .learning_rate = 1e-4});
    EXPECT_NEAR(mean(w) - 1, -1e-4, 5 * 0x1p-8 / 2 / 256);  // the first step goes by the learning rate
    EXPECT_LT(mean(w), 1);
  }
}

// ---- Tiles ----------------------------------------------------------------------------------------------------------

// Everything that AdamW keeps of one parameter.
struct Kept {
  Kept(const AdamW& attrs, size_t count) : attrs(attrs), plain(numbers(count, 2, -1, 1)), lo(count) {
    for (const float x : plain) hi.emplace_back(x);
    const std::vector<float> some = numbers(count, 3, 0, 1);
    for (const float x : some) {
      m.emplace_back(x - 0.5f);
      v.emplace_back(x);
      m8.push_back(static_cast<uint8_t>(x * 255));
      v8.push_back(static_cast<uint8_t>(x * 255));
    }
    m_scales = v_scales = numbers(count / 256 + 1, 4, 0.1, 1);
  }
  // A step of elements [begin, begin + n).
  void step(std::vector<float>& g, int64_t begin, int64_t n, int64_t number) {
    AdamW tile = attrs;
    tile.first = 8192 + static_cast<uint64_t>(begin);
    std::vector<TensorView> views{view(g, {n}, begin), view(hi, {n}, begin)};
    if (attrs.split) views.push_back(view(lo, {n}, begin));
    const bool bit8 = attrs.format == StateFormat::Bit8;
    const int64_t block = begin / kStateBlock, blocks = (n + kStateBlock - 1) / kStateBlock;
    views.push_back(bit8 ? view(m8, {n}, begin) : view(m, {n}, begin));
    views.push_back(bit8 ? view(v8, {n}, begin) : view(v, {n}, begin));
    if (bit8) views.push_back(view(m_scales, {blocks}, block));
    if (bit8) views.push_back(view(v_scales, {blocks}, block));
    views.push_back(view(clip, {3}));
    run(tile, views, {.step = number, .learning_rate = 1e-2});
  }
  bool operator==(const Kept& o) const {
    return same_bytes(hi, o.hi) && same_bytes(lo, o.lo) && same_bytes(m, o.m) && same_bytes(v, o.v) && m8 == o.m8 &&
           v8 == o.v8 && m_scales == o.m_scales && v_scales == o.v_scales;
  }

  AdamW attrs;
  std::vector<float> plain, m_scales, v_scales, clip{1, 0.7f, 1};
  std::vector<BFloat16> hi, m, v;
  std::vector<int16_t> lo;
  std::vector<uint8_t> m8, v8;
};

TEST(AdamW, GivesTheSameBitsInTilesAsInOne) {
  constexpr int64_t kCount = 20000;
  for (const StateFormat format : {StateFormat::Bf16, StateFormat::Bit8}) {
    const AdamW attrs{.split = format == StateFormat::Bf16, .format = format, .seed = 6, .stream = 1};
    Kept whole(attrs, kCount), tiles(attrs, kCount);
    const Kept before = whole;
    for (int64_t number = 1; number <= 3; number++) {
      std::vector<float> g = numbers(kCount, 10 + static_cast<uint64_t>(number), -1, 1);
      whole.step(g, 0, kCount, number);
      tiles.step(g, 17408, kCount - 17408, number);
      tiles.step(g, 0, 4096, number);
      tiles.step(g, 4096, 17408 - 4096, number);
      EXPECT_TRUE(tiles == whole) << "step " << number;
    }
    EXPECT_FALSE(whole == before);
  }
}

TEST(Dropout, GivesTheSameBitsInPassesAsInOne) {
  constexpr int64_t kTokens = 13, kWidth = 1501;
  std::vector<float> x = numbers(kTokens * kWidth, 1, -1, 1), whole(x.size()), parts(x.size());
  const Dropout attrs{0.3, 8, 4};
  run(attrs, {view(x, {kTokens, kWidth}), view(whole, {kTokens, kWidth})}, {.step = 2, .first_token = 5});
  for (const auto& [first, end] : {std::pair{9, 13}, std::pair{0, 2}, std::pair{2, 9}}) {
    const Shape shape{end - first, kWidth};
    run(attrs, {view(x, shape, first * kWidth), view(parts, shape, first * kWidth)},
        {.step = 2, .first_token = 5 + first});
  }
  EXPECT_TRUE(same_bytes(parts, whole));
  const auto dropped = static_cast<double>(std::ranges::count(whole, 0.0f)) / static_cast<double>(whole.size());
  EXPECT_NEAR(dropped, 0.3, 5 * std::sqrt(0.3 * 0.7 / static_cast<double>(whole.size())));
  run(attrs, {view(x, {kTokens, kWidth}), view(parts, {kTokens, kWidth})}, {.step = 3, .first_token = 5});
  EXPECT_FALSE(same_bytes(parts, whole)) << "another step draws anew";
}

// ---- Dynamic maps ---------------------------------------------------------------------------------------------------

struct DynamicMaps : testing::TestWithParam<const char*> {
  const nlohmann::json all = nlohmann::json::parse(std::ifstream(SNUG_FIXTURES "/bitsandbytes/dynamic_maps.json"));
  const nlohmann::json fixture = all.at(GetParam());
  const DynamicMap& map = std::string_view(GetParam()) == "signed" ? kSignedMap : kUnsignedMap;
};

TEST_P(DynamicMaps, AreThoseOfBitsandbytes) {
  const auto want = fixture.at("map").get<std::vector<double>>();
  ASSERT_EQ(want.size(), 256u);
  const std::vector<double> reference = ref::dynamic_map(&map == &kSignedMap);
  for (size_t code = 0; code < 256; code++) {
    EXPECT_EQ(static_cast<double>(map[code]), want[code]) << code;
    EXPECT_EQ(reference[code], want[code]) << code;
  }
}

// A code is as near as the nearest, or further by no more than the bin in which its number lies is wide.
TEST_P(DynamicMaps, GiveANearestCodeButForABin) {
  const bool with_signs = &map == &kSignedMap;
  const CodeBins& bins = with_signs ? kMeanBins : kSquareBins;
  const uint8_t zero = with_signs ? kSignedZero : 0, most = with_signs ? kMeanMost : 255;
  for (uint8_t code = zero; code < most; code++) {
    EXPECT_EQ(bins.of(map[code] + CodeBins::kLeast), code);
    const float halfway = (map[code] + map[code + 1u]) / 2, bin = (halfway + CodeBins::kLeast) * 0x1p-9f;
    EXPECT_EQ(bins.of(std::max(halfway - bin, 0.0f) + CodeBins::kLeast), code) << halfway;
    EXPECT_EQ(bins.of(halfway + bin + CodeBins::kLeast), code + 1) << halfway;
  }
  EXPECT_EQ(bins.of(map[most] + CodeBins::kLeast), most);
  EXPECT_EQ(bins.of(CodeBins::kLeast), zero);
  EXPECT_EQ(bins.of(2), most);
  for (const float negative : {-0.0f, -0x1p-149f, -1.0f, -std::numeric_limits<float>::infinity()})
    EXPECT_EQ(bins.of(negative), zero) << negative;
  EXPECT_EQ(bins.of(std::numeric_limits<float>::quiet_NaN()), most);
}

TEST_P(DynamicMaps, GiveTheCodesOfBitsandbytesOrTheirNeighbours) {
  const auto x = fixture.at("x").get<std::vector<float>>();
  const auto codes = fixture.at("codes").get<std::vector<int>>();
  ASSERT_EQ(x.size(), codes.size());
  const bool with_signs = &map == &kSignedMap;
  const float largest = fixture.at("absmax").get<float>();
  int others = 0;
  for (size_t i = 0; i < x.size(); i++) {
    const int code = (with_signs ? kMeanBins : kSquareBins).of(std::abs(x[i]) / largest + CodeBins::kLeast);
    const int mine = x[i] < 0 ? kMeanMost - code : code, capped = with_signs ? std::min(codes[i], 254) : codes[i];
    EXPECT_LE(std::abs(mine - capped), 1) << x[i];
    others += mine != capped;
  }
  EXPECT_LE(others, 10);  // of 256
}

INSTANTIATE_TEST_SUITE_P(Maps, DynamicMaps, testing::Values("signed", "unsigned"));

// ---- Convergence ----------------------------------------------------------------------------------------------------

// 200 steps from 0 on sum(c (w - target)^2) / 2, curvatures c from 0.1 to 10, targets in [-1, 1), the learning rate
// falling to 0 along a line: the distance that is left, as a share of the first. Weights in bf16 cannot come nearer
// than their rounding.
TEST(AdamW, ConvergesInEveryFormat) {
  constexpr size_t kCount = 1024;
  const auto n = static_cast<int64_t>(kCount);
  const std::vector<float> target = numbers(kCount, 1, -1, 1), curvature = numbers(kCount, 2, 0.1, 10);
  const auto distance = [&](const auto& w) {
    double squares = 0;
    for (size_t i = 0; i < kCount; i++) {
      const double off = static_cast<double>(cpu::to_float(w[i])) - static_cast<double>(target[i]);
      squares += off * off / kCount;
    }
    return std::sqrt(squares);
  };
  std::vector<float> g(kCount), clip{1, 1, 1};
  const auto train = [&](const AdamW& attrs, auto& w, std::vector<TensorView> state) {
    state.insert(state.begin(), {view(g, {n}), view(w, {n})});
    state.push_back(view(clip, {3}));
    const double start = distance(w);
    for (int64_t step = 1; step <= 200; step++) {
      for (size_t i = 0; i < kCount; i++) g[i] = curvature[i] * (cpu::to_float(w[i]) - target[i]);
      run(attrs, state, {.step = step, .learning_rate = 0.05 * static_cast<double>(200 - step) / 200});
    }
    return distance(w) / start;
  };
  std::vector<float> plain(kCount), m(kCount), v(kCount);
  const double fp32 = train({}, plain, {view(m, {n}), view(v, {n})});
  std::vector<float> with_bf16(kCount);
  std::vector<BFloat16> bf16_m(kCount), bf16_v(kCount);
  const double bf16 = train({.format = StateFormat::Bf16}, with_bf16, {view(bf16_m, {n}), view(bf16_v, {n})});
  std::vector<BFloat16> rounded_w(kCount);
  std::vector<uint8_t> codes_m(kCount), codes_v(kCount);
  std::vector<float> scales_m(kCount / 256), scales_v(kCount / 256);
  const auto bit8_state = [&] {
    return std::vector{view(codes_m, {n}), view(codes_v, {n}), view(scales_m, {n / 256}), view(scales_v, {n / 256})};
  };
  const double bit8 = train({.format = StateFormat::Bit8}, rounded_w, bit8_state());
  std::vector<float> with_bit8(kCount);
  std::ranges::fill(scales_m, 0.0f);
  std::ranges::fill(scales_v, 0.0f);
  const double bit8_fp32 = train({.format = StateFormat::Bit8}, with_bit8, bit8_state());
  EXPECT_LT(fp32, 1e-4);
  EXPECT_NEAR(bf16, fp32, 1e-5);
  EXPECT_NEAR(bit8_fp32, fp32, 1e-5);
  EXPECT_NEAR(bit8, fp32, 0x1p-8);
}

}  // namespace
}  // namespace snug
