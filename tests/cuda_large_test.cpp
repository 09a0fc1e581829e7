// Ops over more than 2^31 elements: their last rows have the bits that these rows have by themselves.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <random>
#include <span>

#include "backend/cuda/backend.h"
#include "backend/cuda/facts.h"
#include "base/rounding.h"
#include "tensor/step_scalars.h"

namespace snug {
namespace {

constexpr int64_t kColumns = 4096, kPart = 16, kRows = (int64_t{1} << 31) / kColumns + 2 * kPart;
constexpr int64_t kBefore = kRows - kPart;  // rows that come before the last
constexpr uint64_t kBytes = uint64_t{44} << 30;

// Says how an operand lies, and what its last rows hold.
enum class Lie {
  Rows,    // [rows, cols]
  Flat,    // [rows cols]
  Single,  // [1, rows cols]
  Turned,  // [cols, rows]
  Fixed    // [cols], or [lines, cols], whatever the number of rows
};
struct Arg {
  Lie lie;
  DType dtype;
  int64_t cols;
  enum class Fill { Numbers, Small, Places, Documents, Scalars } fill = Fill::Numbers;
  int64_t lines = 0;

  Shape shape(int64_t rows) const {
    if (fill == Fill::Documents) return {rows / kPart + 1};
    switch (lie) {
      case Lie::Rows:
        return cols == 1 ? Shape{rows} : Shape{rows, cols};
      case Lie::Flat:
        return {rows * cols};
      case Lie::Single:
        return {1, rows * cols};
      case Lie::Turned:
        return {cols, rows};
      case Lie::Fixed:
        break;
    }
    return lines > 0 ? Shape{lines, cols} : Shape{cols};
  }
};

struct LargeCase {
  std::string name;
  std::function<Attrs(int64_t first)> attrs;  // by the first element
  std::vector<Arg> args;
};
void PrintTo(const LargeCase& c, std::ostream* stream) { *stream << c.name; }

// Holds an op's operands of so many rows on the device; `before` more precede them where they are a part.
struct Bound {
  int64_t rows, before;
  std::vector<TensorView> views;
};

class LargeTest : public testing::TestWithParam<LargeCase> {
 protected:
  static void SetUpTestSuite() {
    size_t free = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    if (free < kBytes + (size_t{2} << 30)) return;
    backend_ = new CudaBackend{0};
    memory_ = backend_->reserve(Space::Device, kBytes);
  }
  static void TearDownTestSuite() {
    delete backend_;
    backend_ = nullptr;
  }

  Bound take(const LargeCase& c, int64_t rows, int64_t before) {
    Bound taken{rows, before, {}};
    std::vector<Operand> operands;
    for (const Arg& arg : c.args) {
      const Shape shape = arg.shape(rows);
      taken.views.push_back(take_bytes(arg.dtype, shape));
      operands.push_back({.dtype = arg.dtype, .shape = shape, .row_stride = shape.cols()});
    }
    const auto scratch = static_cast<int64_t>(CudaFacts().scratch_bytes(c.attrs(0), operands));
    if (scratch > 0) taken.views.push_back(take_bytes(DType::U8, {scratch}));
    return taken;
  }
  TensorView take_bytes(DType dtype, const Shape& shape) {
    const uint64_t bytes = static_cast<uint64_t>(shape.count()) * element_bytes(dtype);
    const TensorView view{memory_ + used_, dtype, shape, shape.cols()};
    used_ += round_up<uint64_t>(bytes, 256);
    check(used_ <= kBytes, "{} bytes taken", used_);
    EXPECT_EQ(cudaMemset(view.data, 0, bytes), cudaSuccess);
    return view;
  }
  // Returns the bytes of an operand that are of the last rows, row by row of a matrix that is turned.
  std::vector<std::byte> last(const Arg& arg, const TensorView& view, int64_t rows) const {
    const size_t element = element_bytes(arg.dtype);
    const bool turned = arg.lie == Lie::Turned, fixed = arg.lie == Lie::Fixed;
    const auto count = static_cast<size_t>(fixed ? std::max<int64_t>(1, arg.lines) : kPart);
    const size_t width = turned ? count * element : count * static_cast<size_t>(arg.cols) * element;
    const size_t lines = turned ? static_cast<size_t>(arg.cols) : 1, pitch = static_cast<size_t>(rows) * element;
    const size_t skip =
        fixed ? 0 : static_cast<size_t>(rows - kPart) * element * (turned ? 1 : static_cast<size_t>(arg.cols));
    std::vector<std::byte> bytes(width * lines);
    EXPECT_EQ(cudaMemcpy2D(bytes.data(), width, view.data + skip, turned ? pitch : width, width, lines,
                           cudaMemcpyDeviceToHost),
              cudaSuccess);
    return bytes;
  }
  void put_last(const Arg& arg, const Bound& to, size_t i, std::span<const std::byte> bytes) const {
    const size_t element = element_bytes(arg.dtype);
    const bool fixed = arg.lie == Lie::Fixed;
    const size_t skip = fixed ? 0 : static_cast<size_t>((to.rows - kPart) * arg.cols) * element;
    EXPECT_EQ(cudaMemcpy(to.views[i].data + skip, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  // Returns what the last rows of an operand hold, or all of one that has no rows.
  std::vector<std::byte> drawn(const Arg& arg, const Bound& to) {
    const auto count = static_cast<size_t>(arg.lie == Lie::Fixed ? arg.shape(0).count() : kPart * arg.cols);
    std::vector<std::byte> bytes(count * element_bytes(arg.dtype));
    const auto put = [&]<class T>(size_t i, T value) { std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T)); };
    for (size_t i = 0; i < count; i++) {
      const float number = arg.fill == Arg::Fill::Small ? static_cast<float>(random_() % 5) - 2.0f
                                                        : static_cast<float>(random_() % 2000 + 1) / 1000.0f;
      if (arg.fill == Arg::Fill::Places)
        put(i, static_cast<int32_t>(kBefore - to.before + static_cast<int64_t>(i)));
      else if (arg.dtype == DType::F32)
        put(i, number);
      else if (arg.dtype == DType::BF16)
        put(i, static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16));
      else if (arg.dtype == DType::I32)
        put(i, static_cast<int32_t>(random_() % 16));
      else if (arg.dtype == DType::I16)
        put(i, static_cast<int16_t>(random_()));
      else
        bytes[i] = static_cast<std::byte>(random_());
    }
    return bytes;
  }
  void fill(const LargeCase& c, const Bound& whole, const Bound& part) {
    for (size_t i = 0; i < c.args.size(); i++) {
      const Arg& arg = c.args[i];
      const unsigned seed = static_cast<unsigned>(i) + 1;
      for (const Bound* to : {&whole, &part}) {
        random_.seed(seed);
        if (arg.fill == Arg::Fill::Documents) {
          std::vector<int32_t> starts;
          for (int64_t d = 0; d <= to->rows / kPart; d++) starts.push_back(static_cast<int32_t>(d * kPart));
          backend_->write(to->views[i].data, starts.data(), starts.size() * sizeof(int32_t));
        } else if (arg.fill == Arg::Fill::Scalars) {
          const StepScalars scalars;
          backend_->write(to->views[i].data, &scalars, sizeof(scalars));
        } else if (arg.lie != Lie::Turned) {
          put_last(arg, *to, i, drawn(arg, *to));
        }
      }
    }
  }
  void run(const LargeCase& c, const Bound& on) {
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // lanes do not wait for what fills
    Op op;
    op.attrs = c.attrs(on.before * kColumns);
    op.site = c.name;
    backend_->bind(op, on.views)({.documents = on.rows / kPart,
                                  .loss_rows = on.rows,
                                  .segments = kPart,
                                  .loss_scale = 0.5f,
                                  .step = 3,
                                  .learning_rate = 0.01,
                                  .first_token = on.before});
    backend_->streams()->finish();
  }

  static inline CudaBackend* backend_ = nullptr;
  static inline std::byte* memory_ = nullptr;
  uint64_t used_ = 0;
  std::mt19937 random_;
};

TEST_P(LargeTest, LastRowsAreAsByThemselves) {
  if (!backend_) GTEST_SKIP() << "the card has less than " << (kBytes >> 30) << " GiB free";
  const LargeCase& c = GetParam();
  // Of what has no rows, such as a sum over all of them, only zeros come before.
  const Bound whole = take(c, kRows, 0), part = take(c, kPart, kBefore);
  fill(c, whole, part);
  run(c, whole);
  run(c, part);
  for (size_t i = 0; i < c.args.size(); i++) {
    if (c.args[i].fill == Arg::Fill::Documents || c.args[i].fill == Arg::Fill::Places) continue;
    EXPECT_TRUE(last(c.args[i], whole.views[i], kRows) == last(c.args[i], part.views[i], kPart)) << "operand " << i;
  }
}

std::vector<LargeCase> large_cases() {
  const DType b = DType::BF16, f = DType::F32, u8 = DType::U8, i32 = DType::I32;
  const int64_t n = kColumns;
  const auto x = [&](DType t, int64_t cols = kColumns) { return Arg{Lie::Rows, t, cols}; };
  const auto flat = [&](DType t, int64_t cols = kColumns) { return Arg{Lie::Flat, t, cols}; };
  const auto fixed = [](DType t, int64_t cols) { return Arg{Lie::Fixed, t, cols}; };
  const auto same = [](const Attrs& attrs) { return [=](int64_t) { return attrs; }; };
  const Arg scalars{Lie::Fixed, f, kStepScalars, Arg::Fill::Scalars},
      documents{Lie::Fixed, i32, 1, Arg::Fill::Documents};
  std::vector<LargeCase> all{
      {"rms_norm", same(RmsNorm{1e-5f}), {x(b), fixed(b, n), x(b), x(f, 1)}},
      {"rms_norm_backward", same(RmsNormBackward{.accumulate = true}), {x(b), x(b), fixed(b, n), x(f, 1), x(b)}},
      {"layer_norm", same(LayerNorm{1e-5f}), {x(b), fixed(b, n), x(b), {Lie::Turned, f, 2}}},
      {"activate", same(Activate{Activation::Gelu}), {x(b), x(b)}},
      {"activate_backward", same(ActivateBackward{true}), {x(b), x(b), x(b)}},
      {"swiglu", same(SwiGlu{}), {x(b), x(b, n / 2)}},
      {"swiglu_backward", same(SwiGluBackward{true}), {x(b, n / 2), x(b), x(b)}},
      {"swiglu_quantize", same(SwiGluQuantize{true}), {x(b), x(b, n / 2), x(u8, n / 2), x(f, 1), fixed(f, n / 2)}},
      {"swiglu_backward_quantize",
       same(SwiGluBackwardQuantize{true, true}),
       {x(b, n / 2), x(b), fixed(f, n), x(b), x(u8), x(f, 1), fixed(f, n)}},
      {"rope", same(Rope{128}), {x(b), x(i32, 1), {Lie::Fixed, f, 128, Arg::Fill::Numbers, 16}}},
      {"accumulate", same(Accumulate{}), {x(b), x(f)}},
      {"rescale", same(Rescale{2, true}), {x(b), x(b), x(b)}},
      {"cast", same(Cast{}), {x(f), x(b)}},
      {"copy", same(Copy{}), {x(b), x(b)}},
      {"fill", same(snug::Fill{}), {x(b)}},
      {"split_master", same(SplitMaster{}), {flat(f), flat(b), flat(DType::I16)}},
      {"join_master", same(JoinMaster{}), {flat(f), flat(b), flat(DType::I16)}},
      {"random_fill",
       [](int64_t first) { return RandomFill{.seed = 7, .first = static_cast<uint64_t>(first)}; },
       {x(b)}},
      {"dropout", same(Dropout{0.25, 5, 1}), {x(b), x(b)}},
      {"transpose", same(Transpose{}), {x(u8), {Lie::Turned, u8, n}}},
      {"column_sum", same(ColumnSum{}), {{Lie::Rows, b, n, Arg::Fill::Small}, fixed(f, n)}},
      {"scale_columns", same(ScaleColumns{{{0}, {n}}}), {x(b), {Lie::Fixed, f, n, Arg::Fill::Numbers, 2}, x(b)}},
      {"sum_ranks", same(SumRanks{}), {{Lie::Single, b, n}, flat(f)}},
      {"norm_partials", same(NormPartials{}), {flat(b), x(f, 1)}},
      {"cross_entropy", same(CrossEntropy{.gradient = true}), {x(b), x(i32, 1), x(f, 1), x(f, 1)}},
      {"quantize.int8", same(Quantize{BaseFormat::Int8}), {x(b), x(DType::I8), x(f, 1)}},
      {"quantize.fp8", same(Quantize{BaseFormat::Fp8, false, false, true}), {x(b), x(u8), x(f, 1), fixed(f, n)}},
      {"quantize.fp8.columns", same(Quantize{BaseFormat::Fp8, false, true}), {x(b), {Lie::Turned, u8, n}, fixed(f, n)}},
      {"quantize.nf4", same(Quantize{BaseFormat::Nf4}), {x(b), flat(u8, n / 2), flat(f, n / kNf4Block)}},
      {"dequantize.int8", same(Dequantize{BaseFormat::Int8}), {x(DType::I8), x(f, 1), x(b)}},
      {"dequantize.fp8", same(Dequantize{BaseFormat::Fp8}), {x(u8), x(f, 1), x(b)}},
      {"dequantize.nf4", same(Dequantize{BaseFormat::Nf4, true}), {flat(u8, n / 2), flat(f, n / kNf4Block), x(b)}},
      {"gather_rows",
       same(GatherRows{}),
       {x(b), {Lie::Fixed, i32, kPart, Arg::Fill::Places}, {Lie::Fixed, b, n, Arg::Fill::Numbers, kPart}}},
      {"lion", same(Lion{.split = true}), {flat(b), flat(b), flat(DType::I16), flat(f), scalars}},
      {"schedule_free_adamw",
       same(ScheduleFreeAdamW{.split = true}),
       {flat(b), flat(b), flat(DType::I16), flat(f), flat(f), scalars}},
      {"schedule_free_average", same(ScheduleFreeAverage{.split = true}), {flat(b), flat(DType::I16), flat(f)}},
      {"attention",
       same(Attention{{32, 8, 128}, 0.001f, kPart}),
       {x(b), x(b, 1024), x(b, 1024), documents, x(b), {Lie::Turned, f, 32}}},
      {"attention_backward",
       same(AttentionBackward{{{32, 8, 128}, 0.001f, kPart}}),
       {x(b), x(b), x(b, 1024), x(b, 1024), x(b), {Lie::Turned, f, 32}, documents, x(b), x(b, 1024), x(b, 1024)}},
  };
  const auto adamw = [](bool split, StateFormat format) {
    return [=](int64_t first) {
      return AdamW{.split = split, .format = format, .seed = 3, .stream = 5, .first = static_cast<uint64_t>(first)};
    };
  };
  const int64_t blocks = n / kStateBlock;
  all.push_back({"adamw.fp32", adamw(false, StateFormat::Fp32), {flat(b), flat(f), flat(f), flat(f), scalars}});
  all.push_back(
      {"adamw.split", adamw(true, StateFormat::Fp32), {flat(b), flat(b), flat(DType::I16), flat(f), flat(f), scalars}});
  all.push_back(
      {"adamw.bf16", adamw(true, StateFormat::Bf16), {flat(b), flat(b), flat(DType::I16), flat(b), flat(b), scalars}});
  all.push_back({"adamw.8bit",
                 adamw(false, StateFormat::Bit8),
                 {flat(b), flat(b), flat(u8), flat(u8), flat(f, blocks), flat(f, blocks), scalars}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cuda, LargeTest, testing::ValuesIn(large_cases()), [](const auto& tested) {
  std::string name = tested.param.name;
  std::ranges::replace(name, '.', '_');
  return name;
});

}  // namespace
}  // namespace snug
