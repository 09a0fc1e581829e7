// How near memory's own speed the CPU's element-wise kernels run: bytes per second beside those of memcpy, both counted
// as read + written. Sizes are beyond the caches that a core has to itself. Two threads.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "base/parallel.h"

namespace snug {
namespace {

constexpr int kThreads = 2;

// Operands in a block of their own, filled with small numbers (small, and valid, as integers of any width too).
class Bench {
 public:
  Bench(Attrs attrs, std::vector<Operand> operands) {
    set_threads(kThreads);
    op_.attrs = std::move(attrs);
    op_.site = "bench";
    op_.operands = std::move(operands);
    const CpuFacts facts;
    if (const auto scratch = static_cast<int64_t>(facts.scratch_bytes(op_.attrs, op_.operands)))
      op_.operands.push_back({0, Access::Write, DType::U8, {scratch}, 0, scratch});
    uint64_t next = 0;
    for (Operand& operand : op_.operands) {
      operand.offset = next;
      next += (operand.extent() + 255) / 256 * 256;
    }
    std::byte* const block = backend_.reserve(Space::Device, next);
    for (const Operand& operand : op_.operands) {
      views_.push_back({block + operand.offset, operand.dtype, operand.shape, operand.row_stride});
      fill(views_.back());
    }
    launch_ = backend_.bind(op_, views_);
  }

  void run(benchmark::State& state, const RuntimeScalars& runtime = {}) {
    for (auto _ : state) launch_(runtime);
    state.SetBytesProcessed(static_cast<int64_t>(work(op_).bytes) * state.iterations());
  }

 private:
  static void fill(const TensorView& view) {
    for (int64_t i = 0; i < view.count(); i++) {
      const float number = 0.25f + 0.001f * static_cast<float>(i % 700);
      if (view.dtype == DType::F32) view.as<float>()[i] = number;
      if (view.dtype == DType::BF16) view.as<BFloat16>()[i] = BFloat16(number);
      if (view.dtype == DType::I32) view.as<int32_t>()[i] = static_cast<int32_t>(i % 512);
      if (view.dtype == DType::U8) view.as<uint8_t>()[i] = static_cast<uint8_t>(i % 127);
      if (view.dtype == DType::I8) view.as<int8_t>()[i] = static_cast<int8_t>(i % 127);
    }
  }

  CpuBackend backend_;
  Op op_;
  std::vector<TensorView> views_;
  Launch launch_;
};

Operand operand(Access access, DType dtype, const Shape& shape) { return {0, access, dtype, shape, 0, shape.cols()}; }
Operand r(DType dtype, const Shape& shape) { return operand(Access::Read, dtype, shape); }
Operand w(DType dtype, const Shape& shape) { return operand(Access::Write, dtype, shape); }
Operand rw(DType dtype, const Shape& shape) { return operand(Access::ReadWrite, dtype, shape); }
DType activation(const benchmark::State& state) { return state.range(0) == 0 ? DType::F32 : DType::BF16; }

void memory_copy(benchmark::State& state) {
  constexpr int64_t kBytes = 64 << 20, kPart = kBytes / kThreads;
  const std::unique_ptr<char[]> from(new char[kBytes]()), to(new char[kBytes]());
  set_threads(kThreads);
  for (auto _ : state)
    parallel_for(kThreads, [&](int64_t i) { std::memcpy(to.get() + i * kPart, from.get() + i * kPart, kPart); });
  state.SetBytesProcessed(2 * kBytes * state.iterations());
}

void rms_norm(benchmark::State& state) {
  const DType t = activation(state);
  const Shape x{8192, 2048};
  Bench(RmsNorm{1e-5f}, {r(t, x), r(t, {2048}), w(t, x), w(DType::F32, {8192})}).run(state);
}

void rms_norm_backward(benchmark::State& state) {
  const DType t = activation(state);
  const Shape x{8192, 2048};
  Bench(RmsNormBackward{.accumulate = true, .gain_gradient = true},
        {r(t, x), r(t, x), r(t, {2048}), r(DType::F32, {8192}), rw(t, x), w(DType::F32, {2048})})
      .run(state);
}

void layer_norm(benchmark::State& state) {
  const DType t = activation(state);
  const Shape x{8192, 2048};
  Bench(LayerNorm{1e-5f, false, true}, {r(t, x), r(t, {2048}), r(t, {2048}), w(t, x), w(DType::F32, {2, 8192})})
      .run(state);
}

void layer_norm_backward(benchmark::State& state) {
  const DType t = activation(state);
  const Shape x{8192, 2048};
  Bench(LayerNormBackward{.accumulate = true, .gain_gradient = true, .bias_gradient = true},
        {r(t, x), r(t, x), r(t, {2048}), r(DType::F32, {2, 8192}), rw(t, x), w(DType::F32, {2048}),
         w(DType::F32, {2048})})
      .run(state);
}

void swiglu(benchmark::State& state) {
  const DType t = activation(state);
  Bench(SwiGlu{}, {r(t, {4096, 8192}), w(t, {4096, 4096})}).run(state);
}

void swiglu_backward(benchmark::State& state) {
  const DType t = activation(state);
  Bench(SwiGluBackward{}, {r(t, {4096, 4096}), r(t, {4096, 8192}), w(t, {4096, 8192})}).run(state);
}

void rope(benchmark::State& state) {
  const DType t = activation(state);
  Bench(Rope{64}, {rw(t, {8192, 40 * 64}), r(DType::I32, {8192}), r(DType::F32, {512, 64})}).run(state);
}

void cross_entropy(benchmark::State& state) {
  const DType t = activation(state);
  const int64_t rows = 256;
  Bench(CrossEntropy{.gradient = true},
        {rw(t, {rows, state.range(1)}), r(DType::I32, {rows}), r(DType::F32, {rows}), w(DType::F32, {rows})})
      .run(state, {.loss_rows = rows, .loss_scale = 0.01f});
}

void accumulate(benchmark::State& state) {
  Bench(Accumulate{}, {r(activation(state), {1 << 24}), rw(DType::F32, {1 << 24})}).run(state);
}

void norm_partials(benchmark::State& state) {
  Bench(NormPartials{}, {r(activation(state), {1 << 25}), w(DType::F32, {(1 << 25) / kUnit})}).run(state);
}

void column_sum(benchmark::State& state) {
  Bench(ColumnSum{}, {r(activation(state), {8192, 2048}), w(DType::F32, {2048})}).run(state);
}

void adamw(benchmark::State& state) {
  const Shape n{1 << 23};
  Bench(AdamW{}, {r(activation(state), n), rw(DType::F32, n), rw(DType::F32, n), rw(DType::F32, n), r(DType::F32, {3})})
      .run(state, {.step = 3, .learning_rate = 1e-5f});
}

void adamw_split(benchmark::State& state) {
  const Shape n{1 << 23};
  Bench(AdamW{.split = true}, {r(activation(state), n), rw(DType::BF16, n), rw(DType::I16, n), rw(DType::F32, n),
                               rw(DType::F32, n), r(DType::F32, {3})})
      .run(state, {.step = 3, .learning_rate = 1e-5f});
}

void quantize(benchmark::State& state) {
  const auto format = static_cast<BaseFormat>(state.range(1));
  const bool nf4 = format == BaseFormat::Nf4;
  const Shape x{4096, 4096};
  const Operand codes = nf4 ? w(DType::U8, {x.count() / 2}) : w(format == BaseFormat::Int8 ? DType::I8 : DType::U8, x);
  Bench(Quantize{format}, {r(activation(state), x), codes, w(DType::F32, {nf4 ? x.count() / kNf4Block : x[0]})})
      .run(state);
}

void dequantize(benchmark::State& state) {
  const auto format = static_cast<BaseFormat>(state.range(1));
  const Shape x{4096, 4096};
  const int64_t blocks = x.count() / kNf4Block;
  const Operand y = w(activation(state), x), offset = r(DType::F32, {1});
  if (format == BaseFormat::Nf4)
    Bench(Dequantize{format},
          {r(DType::U8, {x.count() / 2}), r(DType::U8, {blocks}), r(DType::F32, {blocks / kNf4ScaleBlock}), offset, y})
        .run(state);
  else
    Bench(Dequantize{format}, {r(format == BaseFormat::Int8 ? DType::I8 : DType::U8, x), r(DType::F32, {x[0]}), y})
        .run(state);
}

// The first argument is the dtype: 0 fp32, 1 bf16 (of gradients, for the update).
BENCHMARK(memory_copy)->UseRealTime();
BENCHMARK(rms_norm)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(rms_norm_backward)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(layer_norm)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(layer_norm_backward)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(swiglu)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(swiglu_backward)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(rope)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(cross_entropy)->ArgsProduct({{0, 1}, {49152, 151936}})->UseRealTime();
BENCHMARK(accumulate)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(norm_partials)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(column_sum)->Arg(0)->Arg(1)->UseRealTime();
// The second is the format: 1 int8, 2 fp8, 3 nf4.
BENCHMARK(quantize)->ArgsProduct({{0, 1}, {1, 2, 3}})->UseRealTime();
BENCHMARK(dequantize)->ArgsProduct({{0, 1}, {1, 2, 3}})->UseRealTime();
BENCHMARK(adamw)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(adamw_split)->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
}  // namespace snug
