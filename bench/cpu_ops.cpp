// The rate of every product of a LoRA training step, and of its attention, beside the best this processor does.
//
//   cpu_ops [tokens] [threads]        (1024 and 2)
//
// Sizes are SmolLM2-135M's: hidden 576, 9 heads over 3 of 64, feed-forward 1536, vocabulary 49152, rank 16. "of best"
// is the rate relative to a 1024-cubed product of the same dtype in the same run. The best of several runs is shown.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "backend/cpu/matmul.h"
#include "backend/cpu/products.h"
#include "backend/cpu/tile_product.h"
#include "base/parallel.h"

namespace snug {
namespace {

// Bytes for operands, filled with small numbers that are finite in every dtype.
class Memory {
 public:
  TensorView matrix(DType dtype, int64_t rows, int64_t cols, int64_t row_stride) {
    const auto bytes = static_cast<size_t>(rows * row_stride) * element_bytes(dtype);
    auto& block = blocks_.emplace_back((bytes + 319) / 2);
    for (size_t i = 0; i < block.size(); i++)
      block[i] = static_cast<uint16_t>(0x3c00 + i * 7919 % 251 + (i % 3 ? 0x8000 : 0));
    void* start = block.data();
    size_t space = bytes + 319;
    return {static_cast<std::byte*>(std::align(256, bytes, start, space)), dtype, {rows, cols}, row_stride};
  }
  TensorView scratch(uint64_t bytes) {
    const auto count = static_cast<int64_t>(bytes);
    TensorView view = matrix(DType::U8, 1, count, count);
    view.shape = {count};
    return view;
  }

 private:
  std::vector<std::vector<uint16_t>> blocks_;
};

double best_seconds(const Launch& launch, const RuntimeScalars& runtime) {
  using Clock = std::chrono::steady_clock;
  launch(runtime);
  double best = 1e9, total = 0;
  for (int run = 0; run < 100 && (run < 5 || total < 0.3); run++) {
    const auto begin = Clock::now();
    launch(runtime);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

std::vector<Operand> operands_of(const std::vector<TensorView>& views) {
  std::vector<Operand> operands;
  for (const TensorView& view : views) {
    Operand operand;
    while (views[operand.buffer].data != view.data) operand.buffer++;
    operand.dtype = view.dtype;
    operand.shape = view.shape;
    operand.row_stride = view.row_stride;
    operands.push_back(operand);
  }
  return operands;
}

struct ProductShape {
  const char* what;
  int64_t m, n, k;
  Gemm gemm;
  bool in_place = false;               // adds to d
  int64_t d_stride = 0, a_stride = 0;  // of a row; 0: dense
};

double gemm_seconds(const ProductShape& x, DType dtype) {
  Memory memory;
  const bool ta = x.gemm.transpose_a, tb = x.gemm.transpose_b;
  const int64_t a_cols = ta ? x.m : x.k, b_cols = tb ? x.k : x.n;
  std::vector<TensorView> views{
      memory.matrix(dtype, ta ? x.k : x.m, a_cols, std::max(a_cols, x.a_stride)),
      memory.matrix(dtype, tb ? x.n : x.k, b_cols, b_cols),
  };
  const TensorView d = memory.matrix(dtype, x.m, x.n, std::max(x.n, x.d_stride));
  if (x.gemm.addend) views.push_back(x.in_place ? d : memory.matrix(dtype, x.m, x.n, x.n));
  views.push_back(d);
  if (const uint64_t bytes = cpu::gemm_scratch_bytes(x.gemm, operands_of(views)))
    views.push_back(memory.scratch(bytes));
  cpu::MatmulCalls calls;
  return best_seconds(cpu::bind_gemm(x.gemm, views, calls), {});
}

void print(std::string_view what, std::string_view sizes, double seconds, double flops, double bytes, double best) {
  fmt::print("{:<16} {:<24} {:9.3f} ms {:8.1f} GFLOP/s {:7.1f} GB/s {:5.0f} % of best\n", what, sizes, seconds * 1e3,
             flops / seconds / 1e9, bytes / seconds / 1e9, 100 * flops / seconds / best);
}

void products(int64_t tokens, DType dtype, double best) {
  const int64_t t = tokens;
  const Gemm forward{.transpose_b = true}, residual{.transpose_b = true, .addend = true}, backward{},
      gradient{.transpose_a = true}, lora_dx{.addend = true};
  const ProductShape shapes[] = {
      {"qkv", t, 960, 576, forward},
      {"o", t, 576, 576, residual},
      {"gate_up", t, 3072, 576, forward},
      {"down", t, 576, 1536, residual},
      {"head", 256, 49152, 576, forward},
      {"head dx", 256, 576, 49152, backward},
      {"qkv dx", t, 576, 960, backward},
      {"o dx", t, 576, 576, backward},
      {"gate_up dx", t, 576, 3072, backward},
      {"down dx", t, 1536, 576, backward},
      {"qkv dw", 960, 576, t, gradient},
      {"gate_up dw", 3072, 576, t, gradient},
      {"down dw", 576, 1536, t, gradient},
      {"qkv lora_a", t, 48, 576, forward},
      {"down lora_a", t, 16, 1536, forward},
      {"q lora_b", t, 576, 16, residual, true, 960, 48},
      {"gate lora_b", t, 1536, 16, residual, true, 3072, 32},
      {"down lora_b", t, 576, 16, residual, true},
      {"gate lora_db", 1536, 16, t, gradient, false, 0, 3072},
      {"gate lora_dxa", t, 16, 1536, backward, false, 32, 3072},
      {"qkv lora_da", 48, 576, t, gradient},
      {"down lora_da", 16, 1536, t, gradient},
      {"qkv lora_dx", t, 576, 48, lora_dx, true},
      {"down lora_dx", t, 1536, 16, lora_dx, true},
      {"one token qkv", 1, 960, 576, forward},
      {"one token head", 1, 49152, 576, forward},
  };
  const auto element = static_cast<double>(element_bytes(dtype));
  for (const ProductShape& x : shapes) {
    const auto m = static_cast<double>(x.m), n = static_cast<double>(x.n), k = static_cast<double>(x.k);
    print(x.what, fmt::format("{} x {} x {}", x.m, x.n, x.k), gemm_seconds(x, dtype), 2 * m * n * k,
          element * (m * k + k * n + m * n * (x.gemm.addend ? 2 : 1)), best);
  }
}

// Flops as causal attention needs them: two products forward, five backward, of half a square each.
void attention(int64_t tokens, int64_t length, DType dtype, double best) {
  Memory memory;
  const HeadShape shape{.heads = 9, .kv_heads = 3, .dim = 64};
  const float scale = 0.125f;
  const int64_t width = shape.heads * shape.dim, count = tokens / length;
  std::vector<int32_t> documents;
  for (int64_t d = 0; d <= count; d++) documents.push_back(static_cast<int32_t>(d * length));
  const RuntimeScalars runtime{.documents = count};
  const TensorView bounds{reinterpret_cast<std::byte*>(documents.data()), DType::I32, {count + 1}, count + 1};
  const int64_t kv_width = shape.key_columns();
  const auto keys = [&] { return memory.matrix(dtype, tokens, kv_width, kv_width); };
  const TensorView q = memory.matrix(dtype, tokens, width, width), k = keys(), v = keys();
  const TensorView out = memory.matrix(dtype, tokens, width, width), dout = memory.matrix(dtype, tokens, width, width);
  const TensorView lse = memory.matrix(DType::F32, shape.heads, tokens, tokens);
  const TensorView dq = memory.matrix(dtype, tokens, width, width), dk = keys(), dv = keys();

  std::vector<TensorView> views{q, k, v, bounds, out, lse};
  const Attention forward{shape, scale};
  views.push_back(memory.scratch(cpu::attention_scratch_bytes(forward, operands_of(views))));
  const double product = static_cast<double>(tokens * length * width);
  const std::string sizes = fmt::format("{} documents of {}", count, length);
  const double bytes = static_cast<double>(element_bytes(dtype)) * static_cast<double>(tokens * (width + 2 * kv_width));
  Op op;
  print("attention", sizes, best_seconds(cpu::bind_attention(forward, Operands(op, views)), runtime), 2 * product,
        bytes, best);

  std::vector<TensorView> back{dout, q, k, v, out, lse, bounds, dq, dk, dv};
  const AttentionBackward backward{{shape, scale}};
  back.push_back(memory.scratch(cpu::attention_backward_scratch_bytes(backward, operands_of(back))));
  print("attention dqkv", sizes, best_seconds(cpu::bind_attention_backward(backward, Operands(op, back)), runtime),
        5 * product, 2 * bytes, best);
}

void run(int64_t tokens, int threads) {
  set_threads(threads);
  for (const DType dtype : {DType::BF16, DType::F32}) {
    const double best = 2.0 * 1024 * 1024 * 1024 / gemm_seconds({"", 1024, 1024, 1024, {.transpose_b = true}}, dtype);
    fmt::print("\n{}, {} tokens, {} threads; 1024 cubed: {:.1f} GFLOP/s; tiles by {}\n", name(dtype), tokens, threads,
               best / 1e9, cpu::tile_unit_name());
    products(tokens, dtype, best);
    for (const int64_t length : {int64_t{16}, int64_t{128}, tokens}) attention(tokens, length, dtype, best);
    attention(8 * tokens, 8 * tokens, dtype, best);
  }
}

}  // namespace
}  // namespace snug

int main(int count, char** arguments) {
  const int64_t tokens = count > 1 ? std::atoll(arguments[1]) : 1024;
  const int threads = count > 2 ? std::atoi(arguments[2]) : 2;
  snug::run(tokens, threads);
}
