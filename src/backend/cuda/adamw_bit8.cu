// Computes AdamW with 8-bit state, a warp for each block of 256, with the operations and roundings of cpu/adamw.cpp.
#include "backend/cuda/adamw.cuh"
#include "tensor/codebook.h"

namespace snug::cuda {
namespace {

constexpr int kEach = kStateBlock / 32, kBit8Threads = 768;

struct Bit8State {
  uint8_t *m, *v;
  float *m_scales, *v_scales;
};

// Holds tables in a block's shared memory, at 32-bit addresses of which the place within it is a constant part.
struct alignas(16) Bit8Tables {
  DynamicMap m = kSignedMap, v = kUnsignedMap;
  CodeBins m_codes = kMeanBins, v_codes = kSquareBins;
};
__device__ constexpr Bit8Tables bit8_tables;

class SharedTables {
 public:
  // Fills the tables; called by all threads of a block. It holds a barrier.
  __device__ explicit SharedTables(Bit8Tables& tables) : at_(static_cast<uint32_t>(__cvta_generic_to_shared(&tables))) {
    for (unsigned i = threadIdx.x; i < sizeof(Bit8Tables) / sizeof(uint4); i += blockDim.x)
      reinterpret_cast<uint4*>(&tables)[i] = reinterpret_cast<const uint4*>(&bit8_tables)[i];
    __syncthreads();
    asm volatile("" : "+r"(at_)::"memory");  // reads through it come after the barrier
  }
  // Return the number of byte k of a word.
  __device__ float mean(uint32_t codes, int k) const { return number<offsetof(Bit8Tables, m)>(codes, k); }
  __device__ float square(uint32_t codes, int k) const { return number<offsetof(Bit8Tables, v)>(codes, k); }
  // Return CodeBins::of for numbers that are not beyond 1.
  __device__ uint32_t mean_code(float raised) const { return code<offsetof(Bit8Tables, m_codes)>(raised); }
  __device__ uint32_t square_code(float raised) const { return code<offsetof(Bit8Tables, v_codes)>(raised); }

 private:
  template <int kFrom>
  __device__ float number(uint32_t codes, int k) const {
    // One instruction takes the byte, its product with a number's size and the sum.
    const uint32_t at = __dp4a(codes, static_cast<uint32_t>(sizeof(float)) << k * 8, at_);
    float x;
    asm("ld.shared.f32 %0, [%1 + %2];" : "=f"(x) : "r"(at), "n"(kFrom));
    return x;
  }
  template <int kFrom>
  __device__ uint32_t code(float raised) const {
    constexpr int kFirst = static_cast<int>(CodeBins::kFirst);
    uint32_t code;
    asm("ld.shared.u8 %0, [%1 + %2];"
        : "=r"(code)
        : "r"(at_ + (__float_as_uint(raised) >> CodeBins::kShift)), "n"(kFrom - kFirst));
    return code;
  }
  uint32_t at_;
};

// Returns a weight after a step (AdamWScalars), from m and v. `fast` says that v is from 2^-100 to 2^40, |m| at most
// 2^40, and Scalars::fast_bit8 true.
__device__ inline float bit8_step(const Scalars& s, float w, float m, float v, bool fast) {
  const float root = fmaf(fast ? fast_normal_root(v) : sqrtf(v), s.root_over_rate, s.epsilon_over_rate);
  return fmaf(m, fast ? fast_normal_inverse(root) : 1.0f / root, w * s.keep);
}

// Returns the lowest bytes of four words.
__device__ inline uint32_t bytes_of(const uint32_t* words) {
  return __byte_perm(__byte_perm(words[0], words[1], 0x0040), __byte_perm(words[2], words[3], 0x0040), 0x5410);
}
// Returns 0xff in each byte whose number has a sign.
__device__ inline uint32_t signs_of(const float* x) {
  const auto both = [&](int k) {
    uint32_t signs;
    asm("prmt.b32 %0, %1, %2, 0xfb;" : "=r"(signs) : "r"(__float_as_uint(x[k])), "r"(__float_as_uint(x[k + 1])));
    return signs;
  };
  return __byte_perm(both(0), both(2), 0x5410);
}

// Holds a tensor and its state, of which a warp takes a block at a time: lane l has elements 8 l .. 8 l + 7 of it; the
// last block may have fewer.
template <class W, class G>
struct Bit8Tensor {
  const G* g;
  W* w;
  Bit8State state;
  uint32_t n;

  __device__ static uint32_t first(uint32_t block) { return block * kStateBlock + threadIdx.x % 32 * kEach; }
  __device__ int count(uint32_t block) const {
    return min(kEach, max(0, static_cast<int>(n) - static_cast<int>(first(block))));
  }
};

// Requests one block after the other for the L2 cache, with a lane for each line.
template <class W, class G>
class Ahead {
 public:
  // The first block is `block`, the next is `stride` blocks further.
  __device__ Ahead(const Bit8Tensor<W, G>& tensor, uint32_t block, uint32_t stride) : at_(nullptr), step_(0) {
    constexpr int kLine = 128;
    int line = static_cast<int>(threadIdx.x % 32);
    const auto lines_of = [&](const auto* numbers) {
      constexpr int kBytes = kStateBlock * static_cast<int>(sizeof(*numbers)), kLines = kBytes / kLine;
      if (0 <= line && line < kLines) {
        at_ = reinterpret_cast<const uint8_t*>(numbers) + uint64_t{block} * kBytes + line * kLine;
        step_ = uint64_t{stride} * kBytes;
      }
      line -= kLines;
    };
    lines_of(tensor.g);
    lines_of(tensor.w);
    lines_of(tensor.state.m);
    lines_of(tensor.state.v);
  }
  __device__ void next(bool there) {
    if (there && step_ > 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(at_));
    at_ += step_;
  }

 private:
  const uint8_t* at_;
  uint64_t step_;
};

// Holds a lane's elements of a block, as they lie in memory.
template <class W, class G>
struct Bit8Raw {
  Raw<G, kEach> gradients;
  Raw<W, kEach> weights;
  Raw<uint8_t, kEach> means, squares;
  float m_scale, v_scale;

  __device__ void fetch(const Bit8Tensor<W, G>& tensor, uint32_t block) {
    const uint32_t i = tensor.first(block);
    gradients.fetch(tensor.g + i);
    weights.fetch(tensor.w + i);
    means.fetch(tensor.state.m + i);
    squares.fetch(tensor.state.v + i);
    fetch_scales(tensor, block);
  }
  // Fetches a short block. Missing numbers are zeros, so that they do not change the block's scale.
  __device__ void fetch_last(const Bit8Tensor<W, G>& tensor, uint32_t block) {
    const uint32_t i = tensor.first(block);
    const int count = tensor.count(block);
    fetch_part(gradients, tensor.g + i, count, G{});
    fetch_part(weights, tensor.w + i, count, W{});
    fetch_part(means, tensor.state.m + i, count, kSignedZero);
    fetch_part(squares, tensor.state.v + i, count, uint8_t{0});
    fetch_scales(tensor, block);
  }

 private:
  __device__ void fetch_scales(const Bit8Tensor<W, G>& tensor, uint32_t block) {
    m_scale = tensor.state.m_scales[block];
    v_scale = tensor.state.v_scales[block];
  }
  template <class T>
  __device__ static void fetch_part(Raw<T, kEach>& raw, const T* from, int count, T none) {
    Pack<T, kEach> values;
#pragma unroll
    for (int k = 0; k < kEach; k++) values[k] = k < count ? from[k] : none;
    memcpy(&raw.words, &values, sizeof(values));
  }
};

// Holds a lane's codes and the block's scales.
struct QuantizedState {
  Pack<uint32_t, kEach / 4> m, v;
  float m_scale, v_scale;
};

// Returns the state from m and v, of all lanes of a warp, and sets x to the weights after a step, if all numbers are
// normal; `v_largest` is the block's, as bits.
__device__ inline QuantizedState quantized_fast(const SharedTables& tables, const Scalars& s, Pack<float, kEach>& x,
                                                const float (&m)[kEach], const float (&v)[kEach], float m_largest,
                                                uint32_t v_largest) {
  QuantizedState quantized;
  quantized.m_scale = state_scale(__uint_as_float(__reduce_max_sync(kAll, __float_as_uint(m_largest))), kMeanRise);
  quantized.v_scale = state_scale(__uint_as_float(v_largest), 1.0f);
  const float m_inverse = fast_normal_inverse(quantized.m_scale), v_inverse = fast_normal_inverse(quantized.v_scale);
  uint32_t m_code[kEach], v_code[kEach];
#pragma unroll
  for (int k = 0; k < kEach; k++) {
    x[k] = bit8_step(s, x[k], m[k], v[k], true);
    m_code[k] = tables.mean_code(fabsf(m[k] * m_inverse) + CodeBins::kLeast);
    v_code[k] = tables.square_code(fmaf(v[k], v_inverse, CodeBins::kLeast));
  }
#pragma unroll
  for (int k = 0; k < kEach; k += 4) {
    const uint32_t negative = signs_of(m + k);
    quantized.m[k / 4] = (bytes_of(m_code + k) ^ negative) - (negative & 0x01010101u);  // kMeanMost - code
    quantized.v[k / 4] = bytes_of(v_code + k);
  }
  return quantized;
}

// Returns such a state from any numbers, as quantized_fast() does from normal ones.
__device__ inline QuantizedState quantized_any(const SharedTables& tables, const Scalars& s, Pack<float, kEach>& x,
                                               const float (&m)[kEach], const float (&v)[kEach], float m_largest) {
  float v_largest = -INFINITY;
#pragma unroll
  for (int k = 0; k < kEach; k++) v_largest = fmaxf(v_largest, fabsf(v[k]));
  QuantizedState quantized;
  quantized.m_scale = state_scale(warp_max(m_largest), kMeanRise);
  quantized.v_scale = state_scale(warp_max(v_largest), 1.0f);
  const float m_inverse = 1.0f / quantized.m_scale, v_inverse = 1.0f / quantized.v_scale;
#pragma unroll
  for (int k = 0; k < kEach; k++) {
    x[k] = bit8_step(s, x[k], m[k], v[k], false);
    const uint32_t code = tables.mean_code(CodeBins::bounded(fabsf(m[k] * m_inverse) + CodeBins::kLeast));
    const uint32_t m_code = m[k] < 0 ? kMeanMost - code : code;
    const uint32_t v_code = tables.square_code(CodeBins::bounded(fmaf(v[k], v_inverse, CodeBins::kLeast)));
    quantized.m[k / 4] = (k % 4 == 0 ? 0 : quantized.m[k / 4]) | m_code << k % 4 * 8;
    quantized.v[k / 4] = (k % 4 == 0 ? 0 : quantized.v[k / 4]) | v_code << k % 4 * 8;
  }
  return quantized;
}

// Updates a block. With kWhole it has all of its 256 elements.
template <bool kWhole, class W, class G>
__device__ void update_block(const SharedTables& tables, const Scalars& s, const DeviceRandom& random, uint64_t place,
                             float factor, const Bit8Tensor<W, G>& tensor, uint32_t block, const Bit8Raw<W, G>& raw) {
  const uint32_t i = tensor.first(block);
  const float m_scale = raw.m_scale * s.mean_keep, v_scale = raw.v_scale * s.square_keep;
  uint32_t words[kEach / 2] = {};  // of random bits
  if constexpr (sizeof(W) == 2) random.bits<kEach / 2>(place + i / 2, words);

  const float mean_factor = factor * s.mean_share, square_factor = factor * s.root_of_square_share;
  float m[kEach], v[kEach], m_largest = -INFINITY;
  uint32_t v_largest = 0;  // as bits, which for NaN and negative numbers are above those of normal ones
#pragma unroll
  for (int k = 0; k < kEach; k++) {
    const float gradient = to_float(raw.gradients[k]), change = gradient * square_factor;
    m[k] = fmaf(tables.mean(raw.means.words[k / 4], k % 4), m_scale, gradient * mean_factor);
    v[k] = fmaf(change, change, fmaf(tables.square(raw.squares.words[k / 4], k % 4), v_scale, Scalars::kLeastSquare));
    m_largest = fmaxf(m_largest, fabsf(m[k]));  // ignores NaN
    v_largest = max(v_largest, __float_as_uint(v[k]));
  }
  v_largest = __reduce_max_sync(kAll, v_largest);
  const bool fast =
      kWhole && s.fast_bit8 && v_largest <= bits_of(0x1p40f) && fabsf(m_scale) <= 0x1p40f && v_scale >= 0.0f;

  Pack<float, kEach> x = raw.weights.floats();
  const QuantizedState state =
      fast ? quantized_fast(tables, s, x, m, v, m_largest, v_largest) : quantized_any(tables, s, x, m, v, m_largest);
  const auto bits = [&](int k) { return k % 2 == 0 ? lower_half(words[k / 2]) : upper_half(words[k / 2]); };
  const Bit8State& to = tensor.state;
  W* const w = tensor.w + i;
  if constexpr (kWhole) {
    if constexpr (sizeof(W) == 2)
      save_stochastic(w, x, bits, all_finite(x));
    else
      save<kEach>(w, x);
    save<kEach / 4>(reinterpret_cast<uint32_t*>(to.m + i), state.m);
    save<kEach / 4>(reinterpret_cast<uint32_t*>(to.v + i), state.v);
  } else {
#pragma unroll
    for (int k = 0; k < kEach; k++) {
      if (k >= tensor.count(block)) continue;
      if constexpr (sizeof(W) == 2)
        store_stochastic(w[k], x[k], bits(k));
      else
        w[k] = x[k];
      to.m[i + k] = static_cast<uint8_t>(state.m[k / 4] >> k % 4 * 8);
      to.v[i + k] = static_cast<uint8_t>(state.v[k / 4] >> k % 4 * 8);
    }
  }
  if (threadIdx.x % 32 != 0) return;
  to.m_scales[block] = state.m_scale;
  to.v_scales[block] = state.v_scale;
}

// While a warp works on a block, its next comes into registers and the one after that into the L2 cache.
template <class W, class G>
__global__ void __launch_bounds__(kBit8Threads, 1)
    adamw_bit8_kernel(Scalars scalars, DeviceRandom random, uint64_t place, const StepScalars* step,
                      Bit8Tensor<W, G> tensor) {
  __shared__ Bit8Tables block_tables;
  if (step->finite == 0.0f) return;
  const float factor = step->factor;
  const SharedTables tables(block_tables);
  constexpr uint32_t kWarps = kBit8Threads / 32;
  const uint32_t whole = tensor.n / kStateBlock, stride = gridDim.x * kWarps;
  uint32_t block = blockIdx.x * kWarps + threadIdx.x / 32;
  Bit8Raw<W, G> next;
  if (block < whole) next.fetch(tensor, block);
  Ahead<W, G> ahead(tensor, block + 2 * stride, stride);
  for (; block < whole; block += stride) {
    const Bit8Raw<W, G> raw = next;
    if (block + stride < whole) next.fetch(tensor, block + stride);
    ahead.next(block + 2 * stride < whole);
    update_block<true>(tables, scalars, random, place, factor, tensor, block, raw);
  }
  if (block * kStateBlock >= tensor.n) return;
  next.fetch_last(tensor, block);
  update_block<false>(tables, scalars, random, place, factor, tensor, block, next);
}

// A launch takes at most this many elements, as the kernel counts in 32 bits; blocks of state are whole in each.
constexpr int64_t kElementsPerLaunch = int64_t{1} << 30;
static_assert(kElementsPerLaunch % kStateBlock == 0);

template <class G, class W>
Launch update(const BoundAdamW& bound) {
  bool aligned = true;
  for (const TensorView& view : {bound.gradient, bound.weight, bound.m, bound.v})
    aligned = aligned && reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
  check(aligned, "adamw: 8-bit state or its weights start at an address that is no multiple of 16");
  const auto fit = static_cast<unsigned>(resident_blocks(adamw_bit8_kernel<W, G>, kBit8Threads, 0));
  return [=](const RuntimeScalars& runtime) {
    const int64_t n = bound.gradient.count();
    for (int64_t first = 0; first < n; first += kElementsPerLaunch) {
      const int64_t count = std::min(n - first, kElementsPerLaunch), block = first / kStateBlock;
      const Bit8Tensor<W, G> tensor{bound.gradient.as<G>() + first,
                                    bound.weight.as<W>() + first,
                                    {bound.m.as<uint8_t>() + first, bound.v.as<uint8_t>() + first,
                                     bound.m_scales + block, bound.v_scales + block},
                                    static_cast<uint32_t>(count)};
      const unsigned blocks = std::min(fit, blocks_of(count, kBit8Threads / 32 * kStateBlock));
      adamw_bit8_kernel<<<blocks, kBit8Threads, 0, bound.stream>>>(
          Scalars(bound.adamw, runtime), bound.random(), at_step(runtime.step, (bound.adamw.first + first) / 2),
          bound.step, tensor);
      check_launch("adamw");
    }
  };
}

}  // namespace

Launch bit8_launch(const BoundAdamW& bound) {
  return dispatch_activation(bound.gradient.dtype, [&]<class G>() {
    return dispatch_activation(bound.weight.dtype, [&]<class W>() { return update<G, W>(bound); });
  });
}

}  // namespace snug::cuda
