// Every case of op_cases.h on the CUDA backend.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <random>

#include "backend/cuda/backend.h"
#include "backend/cuda/facts.h"
#include "base/rounding.h"
#include "op_runner.h"
#include "tensor/step_scalars.h"

namespace snug {
namespace {

void copy_bytes(void* to, const void* from, size_t bytes) {
  cudaError_t status = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
  if (status == cudaSuccess) status = cudaStreamSynchronize(cudaStreamLegacy);  // lanes do not wait for it
  check(status == cudaSuccess, "copying {} bytes: {}", bytes, cudaGetErrorString(status));
}

// One backend for all cases: a context takes longer than all of them.
struct Device {
  CudaBackend backend{0};
  CudaFacts facts;
  OpRunner runner{backend, facts, copy_bytes};
};

struct CudaOpTest : testing::TestWithParam<OpCase> {
  static void SetUpTestSuite() { device = new Device; }
  static void TearDownTestSuite() { delete device; }
  OpRunner& runner() {
    device->runner.after_launch = [] { device->backend.streams()->finish(); };
    return device->runner;
  }
  static inline Device* device = nullptr;
};

TEST_P(CudaOpTest, GivesTheReferenceInPlaceAndAlikeEveryTime) {
  OpRunner::Images first, second;
  ASSERT_EQ(runner().run(GetParam(), &first), "");
  ASSERT_EQ(runner().run(GetParam(), &second), "");
  EXPECT_TRUE(first == second) << "a second run gives other bits";
}

TEST_P(CudaOpTest, RefusesOperandsThatAreNotItsKinds) { EXPECT_EQ(runner().bind_wrongly(GetParam()), ""); }

struct CudaFusedTest : CudaOpTest {};
TEST_P(CudaFusedTest, GivesTheBitsOfSwiGlu) { EXPECT_EQ(fused_wrongly(runner(), GetParam()), ""); }

struct CudaCodesTest : CudaOpTest {};
TEST_P(CudaCodesTest, GivesTheBitsOfSwiGluAndOfQuantize) { EXPECT_EQ(codes_wrongly(runner(), GetParam()), ""); }

TEST(CudaOpRestore, GivesTheForwardsBits) {
  Device device;
  device.runner.after_launch = [&] { device.backend.streams()->finish(); };
  EXPECT_EQ(restore_wrongly(device.runner), "");
}

TEST(CudaOpEmbedding, RunsOfEqualIdsAreAddedInTheirOrder) {
  Device device;
  device.runner.after_launch = [&] { device.backend.streams()->finish(); };
  EXPECT_EQ(runs_wrongly(device.runner), "");
}

// cuBLASLt rounds a product before it adds a matrix in bf16.
TEST(CudaOpAdapter, FaintResultsAreNotLostInRoundingTheAddend) {
  Device device;
  device.runner.after_launch = [&] { device.backend.streams()->finish(); };
  EXPECT_EQ(faint_adapter_wrongly(device.runner, true), "");
}

// Large products over a side that 8 does not divide are two. cuBLASLt rounds a product before it adds a matrix or a
// bias in bf16, so that these are rounded twice.
TEST(CudaOpProducts, SidesThat8DoesNotDivideGiveTheReference) {
  Device device;
  device.runner.after_launch = [&] { device.backend.streams()->finish(); };
  const DType t = DType::BF16, f32 = DType::F32;
  const int64_t even = 1024, odd = 1029, tail = 3;
  OpCases cases{
      {"k",
       Gemm{.alpha = 0.5f},
       {in("a", t, {even, odd}, uniform(), tail), in("b", t, {odd, even}), out("d", t, {even, even})},
       {}},
      {"k of both",
       Gemm{.transpose_b = true, .bias = true},
       {in("a", t, {even, odd}, uniform(), tail), in("b", t, {even, odd}, uniform(), tail), in("bias", t, {even}),
        out("d", t, {even, even})},
       {}},
      {"n",
       Gemm{.transpose_b = true, .bias = true},
       {in("a", t, {even, even}), in("b", t, {odd, even}), in("bias", t, {odd}), out("d", t, {even, odd}, tail)},
       {}},
      {"m",
       Gemm{.transpose_a = true, .addend = true},
       {in("a", t, {even, odd}, uniform(), tail), in("b", t, {even, even}), in("c", f32, {odd, even}),
        out("d", f32, {odd, even})},
       {}},
      {"k and n",
       Gemm{.addend = true},
       {in("a", t, {even, odd}, uniform(), tail), in("b", t, {odd, odd}, uniform(), tail),
        in("c", t, {even, odd}, uniform(), tail), out("d", t, {even, odd}, tail)},
       {}}};
  for (OpCase& c : cases) {
    c.relative = 0x1p-8;
    c.absolute = 0.02;
    device.runner.run(c);  // finds algorithms, which overwrites operands
    EXPECT_EQ(device.runner.run(c), "") << c.name;
  }
}

// Takes matrices of one memory, one after the other, drawn from a normal distribution where they are numbers.
struct Drawn {
  explicit Drawn(CudaBackend& backend) : backend(backend), next(backend.reserve(Space::Device, kBytes)) {}
  TensorView take(DType dtype, const Shape& shape, uint64_t seed = 0) {
    const TensorView view{next, dtype, shape, shape.cols()};
    next += round_up<uint64_t>(static_cast<uint64_t>(shape.count()) * element_bytes(dtype), 256);
    if (dtype != DType::U8) run(RandomFill{.seed = seed}, {view});
    return view;
  }
  void run(const Attrs& attrs, const std::vector<TensorView>& views) {
    Op op;
    op.attrs = attrs;
    op.site = "drawn";
    backend.bind(op, views)({});
    backend.streams()->finish();
  }
  bool alike(const TensorView& a, const TensorView& b) {
    const uint64_t bytes = static_cast<uint64_t>(a.count()) * element_bytes(a.dtype);
    std::vector<std::byte> of_a(bytes), of_b(bytes);
    backend.read(of_a.data(), a.data, bytes);
    backend.read(of_b.data(), b.data, bytes);
    return of_a == of_b;
  }
  static constexpr uint64_t kBytes = uint64_t{1} << 30;
  CudaBackend& backend;
  std::byte* next;
};

// Rows that clusters of one to eight blocks hold, several one after the other in each.
TEST(CudaOpCodes, LongRowsHaveTheBitsOfSwiGluAndOfQuantize) {
  const DType t = DType::BF16, f32 = DType::F32, u8 = DType::U8;
  const auto [rows, most] = std::pair<int64_t, int64_t>{613, 40008};
  CudaBackend backend{0};
  Drawn drawn(backend);
  const std::vector<Shape> shapes{{rows, 2048}, {rows, 8200}, {rows, 14336}, {rows, 20000}, {rows / 4, most}};
  std::byte* const start = drawn.next;
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.cols());
    drawn.next = start;
    const int64_t n = shape.cols();
    const Shape wide{shape.rows(), 2 * n};
    const TensorView gate_up = drawn.take(t, wide, 1), factors = drawn.take(f32, {2 * n}, 2);
    std::array<std::vector<TensorView>, 2> ways;  // in one, and one by one
    for (std::vector<TensorView>& way : ways)
      way = {drawn.take(t, shape, 3), drawn.take(u8, shape), drawn.take(f32, {shape.rows()}), drawn.take(f32, {n}),
             drawn.take(t, wide),     drawn.take(u8, wide),  drawn.take(f32, {shape.rows()}), drawn.take(f32, {2 * n})};
    const auto& [h, codes, scales, columns, dgate_up, dcodes, dscales, dcolumns] =
        std::tie(ways[0][0], ways[0][1], ways[0][2], ways[0][3], ways[0][4], ways[0][5], ways[0][6], ways[0][7]);
    drawn.run(SwiGluBackwardQuantize{true, true}, {h, gate_up, factors, dgate_up, dcodes, dscales, dcolumns});
    drawn.run(SwiGluBackward{true}, {ways[1][0], gate_up, ways[1][4]});
    drawn.run(Quantize{BaseFormat::Fp8, true, false, true}, {ways[1][4], factors, ways[1][5], ways[1][6], ways[1][7]});
    EXPECT_TRUE(drawn.alike(h, ways[1][0])) << "restored";
    drawn.run(SwiGluQuantize{true}, {gate_up, h, codes, scales, columns});
    drawn.run(SwiGlu{}, {gate_up, ways[1][0]});
    drawn.run(Quantize{BaseFormat::Fp8, false, false, true}, {ways[1][0], ways[1][1], ways[1][2], ways[1][3]});
    for (size_t i = 0; i < ways[0].size(); i++) EXPECT_TRUE(drawn.alike(ways[0][i], ways[1][i])) << i;
    const TensorView turned = drawn.take(u8, {2 * n, shape.rows()}), again = drawn.take(u8, {2 * n, shape.rows()}),
                     found = drawn.take(f32, {2 * n});
    drawn.run(Quantize{BaseFormat::Fp8, false, true, true}, {dgate_up, turned, dcolumns});
    drawn.run(Quantize{BaseFormat::Fp8, false, true}, {dgate_up, again, found});
    EXPECT_TRUE(drawn.alike(dcolumns, found)) << "scales of columns";
    EXPECT_TRUE(drawn.alike(turned, again)) << "columns by known scales";
  }
}

// Holds an update with 8-bit state of `count` elements on the device, the first of which is number `first`.
struct Bit8Update {
  Bit8Update(CudaBackend& backend, std::byte* at, int64_t first, int64_t count) : first(first), count(count) {
    const auto take = [&](DType dtype, int64_t elements) {
      const TensorView view{at, dtype, {elements}, elements};
      at += round_up<uint64_t>(static_cast<uint64_t>(elements) * element_bytes(dtype), 256);
      return view;
    };
    const int64_t blocks = ceil_div(count, kStateBlock);
    views = {take(DType::BF16, count), take(DType::BF16, count), take(DType::U8, count),        take(DType::U8, count),
             take(DType::F32, blocks), take(DType::F32, blocks), take(DType::F32, kStepScalars)};
    end = at;
    const StepScalars scalars;
    backend.write(views[6].data, &scalars, sizeof(scalars));
  }
  // Returns the bytes of operand `i` that are of elements [begin, begin + elements).
  std::pair<std::byte*, uint64_t> part(size_t i, int64_t begin, int64_t elements) const {
    const bool scales = i == 4 || i == 5;
    const int64_t from = (begin - first) / (scales ? kStateBlock : 1);
    const int64_t size = scales ? elements / kStateBlock : elements;
    const uint64_t bytes = element_bytes(views[i].dtype);
    return {views[i].data + static_cast<uint64_t>(from) * bytes, static_cast<uint64_t>(size) * bytes};
  }
  void run(CudaBackend& backend) const {
    Op op;
    op.attrs = AdamW{.format = StateFormat::Bit8, .seed = 3, .stream = 5, .first = static_cast<uint64_t>(first)};
    op.site = "update";
    backend.bind(op, views)({.step = 2, .learning_rate = 0.01f});
    backend.streams()->finish();
  }
  int64_t first, count;
  std::vector<TensorView> views;
  std::byte* end;
};

// The kernel counts elements in 32 bits, so that large tensors take several launches.
TEST(CudaOpUpdate, LaunchesOfEightBitStateMeetWithoutASeam) {
  CudaBackend backend{0};
  constexpr int64_t kSeam = int64_t{1} << 30, kPart = 16 * kStateBlock, kBegin = kSeam - kPart / 2;
  constexpr uint64_t kBytes = uint64_t{7} << 30;
  std::byte* const memory = backend.reserve(Space::Device, kBytes);
  ASSERT_EQ(cudaMemset(memory, 0, kBytes), cudaSuccess);
  const Bit8Update whole(backend, memory, 0, kSeam + kPart / 2), part(backend, whole.end, kBegin, kPart);
  std::mt19937 random(7);
  for (size_t i = 0; i < 6; i++) {
    const auto [at, bytes] = whole.part(i, kBegin, kPart);
    std::vector<uint32_t> bits(bytes / 4);
    for (uint32_t& word : bits)  // numbers of any dtype, of moderate size
      word = i < 2 ? (random() & 0x007f007fu) | 0x3f003f00u : i < 4 ? static_cast<uint32_t>(random()) : 0x3c000000u;
    backend.write(at, bits.data(), bytes);
    backend.write(part.part(i, kBegin, kPart).first, bits.data(), bytes);
  }
  whole.run(backend);
  part.run(backend);
  for (size_t i = 1; i < 6; i++) {
    const auto [at, bytes] = whole.part(i, kBegin, kPart);
    std::vector<std::byte> of_whole(bytes), of_part(bytes);
    backend.read(of_whole.data(), at, bytes);
    backend.read(of_part.data(), part.part(i, kBegin, kPart).first, bytes);
    EXPECT_TRUE(of_whole == of_part) << "operand " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaOpTest, testing::ValuesIn(op_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaCodesTest, testing::ValuesIn(codes_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaFusedTest, testing::ValuesIn(fused_cases()), name_of);

}  // namespace
}  // namespace snug
