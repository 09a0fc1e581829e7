// Computes products in fp8 on cards whose cuBLASLt has none with a scale for each row: all but 9.0. Tiles are
// multiplied by mma.sync (PTX ISA, "mma.m16n8k32", of 8.9 and newer), which takes 32 codes where bf16 has 16 elements:
// 16-byte chunks of codes lie in shared memory, and come from there, as those of bf16 do (attention_tiles.cuh).
#include "backend/cuda/attention_tiles.cuh"
#include "base/option_name.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define SNUG_FP8(...) asm volatile(__VA_ARGS__)
#else
#define SNUG_FP8(...)
#endif

namespace snug::cuda {
namespace {

// A block of four warps computes kSide x kSide of the result, a warp a quarter of that, in steps of kStepBytes codes
// of a row; two blocks are on a multiprocessor with 100 KiB.
constexpr int kSide = 128, kStepBytes = 64, kStages = 3, kProductThreads = 128, kWarpSide = 64;
constexpr int kFragments = kWarpSide / 16, kSums = kWarpSide / 8;
using StepTile = SwizzledTile<kStepBytes / 2>;  // of pairs of codes
constexpr int kTileBytes = kSide * kStepBytes, kSharedBytes = 2 * kStages * kTileBytes;
constexpr int kTilesTogether = 8;  // rows of tiles that blocks work on at a time, so that they share columns in L2

struct Fp8Product {
  const BFloat16 *a, *b;       // pairs of codes
  int64_t a_stride, b_stride;  // in pairs
  const float *a_scales, *b_scales;
  const BFloat16 *c, *bias;  // or null
  BFloat16* d;
  int64_t c_stride, d_stride;
  int m, n, k;
};

__device__ void multiply_codes(Sum& sum, const Fragment& a, uint32_t b0, uint32_t b1) {
  SNUG_FP8(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Adds the products of a step, of which this warp's rows of a begin at `row` and of b at `column`.
__device__ void multiply_step(Sum (&sums)[kFragments][kSums], const StepTile& a, const StepTile& b, int row,
                              int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < kStepBytes / 32; k++) {
    Fragment left[kFragments];
#pragma unroll
    for (int f = 0; f < kFragments; f++) a.load_left(left[f], row + 16 * f, k);
#pragma unroll
    for (int s = 0; s < kSums; s += 2) {
      Fragment right;
      load_matrices(right, b.at(column + 8 * s + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int f = 0; f < kFragments; f++) {
        multiply_codes(sums[f][s], left[f], right[0], right[1]);
        multiply_codes(sums[f][s + 1], left[f], right[2], right[3]);
      }
    }
  }
}

// Writes this warp's part of the result, which begins at (row, column). 16 divides the columns of the whole.
__device__ void save_product(const Fp8Product& p, const Sum (&sums)[kFragments][kSums], int row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int f = 0; f < kFragments; f++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int r = row + 16 * f + 8 * half + lane / 4;
      if (r >= p.m) continue;
      const float scale = p.a_scales[r];
#pragma unroll
      for (int s = 0; s < kSums; s++) {
        const int col = column + 8 * s + lane % 4 * 2;
        if (col >= p.n) continue;
        const float2 scales = *reinterpret_cast<const float2*>(p.b_scales + col);
        float low = sums[f][s][2 * half] * (scale * scales.x), high = sums[f][s][2 * half + 1] * (scale * scales.y);
        if (p.bias) {
          low += to_float(p.bias[col]);
          high += to_float(p.bias[col + 1]);
        }
        if (p.c) {
          const uint32_t pair = *reinterpret_cast<const uint32_t*>(p.c + r * p.c_stride + col);
          low += low_number(pair);
          high += high_number(pair);
        }
        *reinterpret_cast<uint32_t*>(p.d + r * p.d_stride + col) = packed(low, high);
      }
    }
}

__global__ void __launch_bounds__(kProductThreads, 2) fp8_product_kernel(const __grid_constant__ Fp8Product p) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  const int rows = (p.m + kSide - 1) / kSide, columns = (p.n + kSide - 1) / kSide;
  const int group = static_cast<int>(blockIdx.x) / (kTilesTogether * columns), first = group * kTilesTogether,
            together = min(kTilesTogether, rows - first), place = static_cast<int>(blockIdx.x) - first * columns;
  const int row = (first + place % together) * kSide, column = place / together * kSide;
  const int steps = (p.k + kStepBytes - 1) / kStepBytes;

  const auto tile = [&](int step, int side) {
    return StepTile{reinterpret_cast<BFloat16*>(shared_bytes + (step % kStages * 2 + side) * kTileBytes)};
  };
  const auto fetch = [&](int step) {
    if (step < steps) {
      const int at = step * kStepBytes / 2, left = p.k / 2 - at;
      tile(step, 0).fetch<kSide, kProductThreads>(p.a + row * p.a_stride + at, p.a_stride, p.m - row, left);
      tile(step, 1).fetch<kSide, kProductThreads>(p.b + column * p.b_stride + at, p.b_stride, p.n - column, left);
    }
    commit_fetches();
  };
  const int warp = static_cast<int>(threadIdx.x) / 32, warp_row = warp / 2 * kWarpSide,
            warp_column = warp % 2 * kWarpSide;
  Sum sums[kFragments][kSums] = {};
#pragma unroll
  for (int step = 0; step + 1 < kStages; step++) fetch(step);
  for (int step = 0; step < steps; step++) {
    wait_fetches<kStages - 2>();
    __syncthreads();  // the step's tiles are there, and nobody reads those that are fetched next
    fetch(step + kStages - 1);
    multiply_step(sums, tile(step, 0), tile(step, 1), warp_row, warp_column);
  }
  save_product(p, sums, row + warp_row, column + warp_column);
}

}  // namespace

Launch bind_fp8_product(const Fp8Gemm& gemm, std::span<const TensorView> views, cudaStream_t stream) {
  const Product product = product_of(gemm, views);
  check(views.size() == product.operands + 3, "fp8_gemm: {} operands, expected {}", views.size(), product.operands + 3);
  const TensorView &a = views[0], &b = views[2], &d = views[product.operands + 1];
  const TensorView* const c = gemm.addend ? &views[4] : nullptr;
  const TensorView* const bias = gemm.bias ? &views[gemm.addend ? 5 : 4] : nullptr;
  const auto pairs = [](const TensorView& codes) { return reinterpret_cast<const BFloat16*>(codes.data); };
  const Fp8Product p{pairs(a),
                     pairs(b),
                     a.row_stride / 2,
                     b.row_stride / 2,
                     views[1].as<float>(),
                     views[3].as<float>(),
                     c ? c->as<BFloat16>() : nullptr,
                     bias ? bias->as<BFloat16>() : nullptr,
                     d.as<BFloat16>(),
                     c ? c->row_stride : 0,
                     d.row_stride,
                     static_cast<int>(product.m),
                     static_cast<int>(product.n),
                     static_cast<int>(product.k)};
  for (const TensorView* codes : {&a, &b})
    check(codes->row_stride % 16 == 0 && reinterpret_cast<uintptr_t>(codes->data) % 16 == 0,
          "fp8_gemm: rows of codes that do not begin at 16 bytes");
  if (architecture_of(fp8_product_kernel) < 89)
    device_error(
        "fp8_gemm: this build of snug has no code for compute capability 8.9 or newer; -DSNUG_CUDA_ARCHITECTURES adds "
        "it, {} bf16 does without",
        option_name("compute"));
  allow_shared(fp8_product_kernel, kSharedBytes);
  const int64_t tiles = ceil_div(product.m, int64_t{kSide}) * ceil_div(product.n, int64_t{kSide});
  return [=, grid = static_cast<unsigned>(tiles)](const RuntimeScalars&) {
    fp8_product_kernel<<<grid, kProductThreads, kSharedBytes, stream>>>(p);
    check_launch("fp8_gemm");
  };
}

}  // namespace snug::cuda
