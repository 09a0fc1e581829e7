// AdamW, element by element with the operations and roundings of cpu/adamw.cpp, so that both give the same bits.
#include "backend/adamw_scalars.h"
#include "backend/cuda/code_table.cuh"
#include "backend/master.h"

namespace snug::cuda {
namespace {

// start + weight (end - start), from the nearer end (torch.lerp).
__device__ inline float lerp(float start, float end, float weight) {
  return weight < 0.5f ? fmaf(weight, end - start, start) : fmaf(weight - 1.0f, end - start, end);
}

// The step's scalars, and whether they leave roots and quotients of usual numbers far from the ends of the exponents.
struct Scalars : AdamWScalars {
  Scalars(const AdamW& adamw, const PassFacts& facts)
      : AdamWScalars(adamw, facts),
        inverse_correction(1.0f / root_correction),
        usual(root_correction >= 0x1p-20f && root_correction <= 1.0f && epsilon >= 0.0f && epsilon <= 0x1p20f &&
              std::abs(rate_of_mean) >= 0x1p-40f && std::abs(rate_of_mean) <= 0x1p20f) {}
  float inverse_correction;
  bool usual;
};

constexpr uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// What a thread's numbers are together. Usual: m is from 2^-100 to 2^100 in magnitude, and v from 2^-100 to 2^40. Zero:
// v and the change are, as in an embedding's rows whose tokens never came; then m is finite.
enum class Numbers : uint8_t { Usual, Zero, Any };

// The weights after a step; m and v are brought forward. Only where the numbers are neither usual nor zero it takes the
// full root and division.
template <int N>
__device__ Numbers step(const Scalars& s, Pack<float, N>& w, const Pack<float, N>& gradient, float factor,
                        Pack<float, N>& m, Pack<float, N>& v) {
  constexpr uint32_t kLeast = bits_of(0x1p-100f), kMost = bits_of(0x1p40f);
  constexpr uint32_t kLeastChange = bits_of(0x1p-80f) << 1, kMostChange = bits_of(0x1p60f) << 1;  // without signs
  uint32_t least = ~0u, most = 0;  // negative numbers and NaN are more
  uint32_t farthest_change = 0;    // above the least; smaller ones and NaN are farther
  uint32_t changes = 0;            // all bits, without signs
  Pack<float, N> change;
#pragma unroll
  for (int k = 0; k < N; k++) {
    const float g = gradient[k] * factor;
    m[k] = lerp(m[k], g, s.mean_share);
    v[k] = fmaf(s.square_share * g, g, v[k] * s.square_keep);
    change[k] = s.rate_of_mean * m[k];
    least = min(least, __float_as_uint(v[k]));
    most = max(most, __float_as_uint(v[k]));
    farthest_change = max(farthest_change, (__float_as_uint(change[k]) << 1) - kLeastChange);
    changes |= __float_as_uint(change[k]) << 1;
  }
  const bool usual = s.usual && least >= kLeast && most <= kMost && farthest_change <= kMostChange - kLeastChange;
  if (usual) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float root = quotient(usual_root(v[k]), s.root_correction, s.inverse_correction) + s.epsilon;
      w[k] = w[k] * s.keep + usual_quotient(change[k], root);
    }
    return Numbers::Usual;
  }
  const bool zero = most == 0 && changes == 0 && s.epsilon > 0.0f;
  if (zero) {
#pragma unroll
    for (int k = 0; k < N; k++) w[k] = w[k] * s.keep + change[k];  // over epsilon, which leaves a zero and its sign
  } else {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float root = sqrtf(v[k]) / s.root_correction + s.epsilon;
      w[k] = w[k] * s.keep + change[k] / root;
    }
  }
  return zero ? Numbers::Zero : Numbers::Any;
}

template <int N>
__device__ bool all_finite(const Pack<float, N>& x) {
  float zeros = 0;
#pragma unroll
  for (int k = 0; k < N; k++) zeros = fmaf(x[k], 0.0f, zeros);
  return zeros == 0.0f;
}

// The upper or the lower halves of N words.
template <bool kUpper, int N, class T>
__device__ void save_halves(T* to, const Pack<uint32_t, N>& words) {
  Pack<uint32_t, N / 2> halves;
#pragma unroll
  for (int k = 0; k < N; k += 2) halves[k / 2] = __byte_perm(words[k], words[k + 1], kUpper ? 0x7632 : 0x5410);
  save<N / 2>(reinterpret_cast<uint32_t*>(to), halves);
}

// store_stochastic of N numbers, with the upper or the lower halves of their random bits.
template <bool kUpper, int N>
__device__ void save_stochastic(BFloat16* to, const Pack<float, N>& x, const uint32_t (&random)[N], bool finite) {
  const auto bits = [&](int k) { return kUpper ? random[k] >> 16 : random[k] & 0xffffu; };
  if constexpr (N > 1)
    if (finite) {
      Pack<uint32_t, N> sums;
#pragma unroll
      for (int k = 0; k < N; k++) sums[k] = __float_as_uint(x[k]) + bits(k);
      return save_halves<true>(to, sums);
    }
  Pack<BFloat16, N> rounded;
#pragma unroll
  for (int k = 0; k < N; k++) store_stochastic(rounded[k], x[k], bits(k));
  save<N>(to, rounded);
}

// A tensor's weights: as they lie in memory, and back from fp32.
struct PlainWeight {
  float* w;
  template <int N>
  __device__ Raw<float, N> fetch(int64_t i) const {
    Raw<float, N> raw;
    raw.fetch(w + i);
    return raw;
  }
  template <int N>
  __device__ void store(int64_t i, const Pack<float, N>& x) const {
    save<N>(w + i, x);
  }
};

struct SplitWeight {
  BFloat16* hi;
  int16_t* lo;
  template <int N>
  struct Joined {
    Raw<BFloat16, N> high;
    Raw<int16_t, N> low;
    __device__ Pack<float, N> floats() const {
      Pack<float, N> x;
#pragma unroll
      for (int k = 0; k < N; k++) x[k] = join(high[k], low[k]);
      return x;
    }
  };
  template <int N>
  __device__ Joined<N> fetch(int64_t i) const {
    Joined<N> raw;
    raw.high.fetch(hi + i);
    raw.low.fetch(lo + i);
    return raw;
  }
  template <int N>
  __device__ void store(int64_t i, const Pack<float, N>& x) const {
    if constexpr (N > 1)
      if (all_finite(x)) {
        Pack<uint32_t, N> bits, rounded;
#pragma unroll
        for (int k = 0; k < N; k++) {
          bits[k] = __float_as_uint(x[k]);
          rounded[k] = bits[k] + 0x8000u;
        }
        save_halves<true>(hi + i, rounded);
        return save_halves<false>(lo + i, bits);
      }
    Pack<BFloat16, N> high;
    Pack<int16_t, N> low;
#pragma unroll
    for (int k = 0; k < N; k++) split(x[k], high[k], low[k]);
    save<N>(hi + i, high);
    save<N>(lo + i, low);
  }
};

// A tensor's m and v: as they lie in memory, and back from fp32 with the random bits of an element. `finite`: all are.
template <class X>
struct State {
  static constexpr bool kRandom = sizeof(X) == 2;
  X *m, *v;
  template <int N>
  struct Both {
    Raw<X, N> mean, square;
  };
  template <int N>
  __device__ Both<N> fetch(int64_t i) const {
    Both<N> raw;
    raw.mean.fetch(m + i);
    raw.square.fetch(v + i);
    return raw;
  }
  template <int N>
  __device__ void store(int64_t i, const Pack<float, N>& mean, const Pack<float, N>& square,
                        const uint32_t (&random)[N], bool finite) const {
    if constexpr (kRandom) {
      save_stochastic<false>(m + i, mean, random, finite);
      save_stochastic<true>(v + i, square, random, finite);
    } else {
      save<N>(m + i, mean);
      save<N>(v + i, square);
    }
  }
};

// What lies in memory is asked for first, so that random numbers are made while it comes.
template <int N, class Weight, class X, class G>
__global__ void __launch_bounds__(kThreads, State<X>::kRandom ? 4 : 5)
    adamw_kernel(Scalars scalars, DeviceRandom random, uint64_t place, const G* g, int64_t n, const float* clip,
                 Weight weight, State<X> state) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= n) return;
  const float factor = clip[1], finite = clip[2];
  Raw<G, N> gradient;
  gradient.fetch(g + i);
  const auto weights = weight.template fetch<N>(i);
  const auto both = state.template fetch<N>(i);
  uint32_t bits[N] = {};
  if constexpr (State<X>::kRandom) random.bits<N>(place + static_cast<uint64_t>(i), bits);
  Pack<float, N> w = weights.floats(), mean = both.mean.floats(), square = both.square.floats();
  const Numbers numbers = step<N>(scalars, w, gradient.floats(), factor, mean, square);
  if (finite == 0.0f) return;  // only here, as the compiler would ask for nothing before
  weight.template store<N>(i, w);
  state.template store<N>(i, mean, square, bits, numbers != Numbers::Any);
}

// ---- 8-bit state: a warp a block of 256 -----------------------------------------------------------------------------

__device__ constexpr CodeTable<true> signed_table(kSignedMap);
__device__ constexpr CodeTable<false> unsigned_table(kUnsignedMap);
constexpr uint8_t kZeroMean = 127;  // the code of 0
static_assert(kSignedMap.values[kZeroMean] == 0 && kUnsignedMap.values[0] == 0);

constexpr int kEach = kStateBlock / 32;

struct Bit8State {
  uint8_t *m, *v;
  float *m_scales, *v_scales;
};

// Codes of a warp's block, four in a word; gives the scale. `usual`: of all of the warp's numbers step() said so.
template <bool kNegatives>
__device__ float narrow(const CodeTable<kNegatives>& table, const Pack<float, kEach>& x, bool usual,
                        Pack<uint32_t, kEach / 4>& codes) {
  float largest = usual ? 0.0f : -INFINITY;
#pragma unroll
  for (int k = 0; k < kEach; k++) largest = fmaxf(largest, fabsf(x[k]));  // NaN is passed over
  uint32_t code[kEach];
  if (usual) {
    largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(largest)));
    const float inverse = usual_inverse(largest);
#pragma unroll
    for (int k = 0; k < kEach; k++) code[k] = table.nearest(quotient(x[k], largest, inverse));
  } else {
    largest = warp_max(largest);
    const float divisor = largest > 0 ? largest : 1.0f;
#pragma unroll
    for (int k = 0; k < kEach; k++) {
      const float y = x[k] / divisor;
      code[k] = y == y ? table.nearest(y) : 0;
    }
  }
#pragma unroll
  for (int k = 0; k < kEach; k += 4)
    codes[k / 4] =
        __byte_perm(__byte_perm(code[k], code[k + 1], 0x0062), __byte_perm(code[k + 2], code[k + 3], 0x0062), 0x5410);
  return largest;
}

// Elements 8 l .. 8 l + 7 of the block are lane l's; of the last block fewer may be there.
template <class T>
__device__ void fetch_part(Raw<T, kEach>& raw, const T* from, int count, T none) {
  Pack<T, kEach> values;
#pragma unroll
  for (int k = 0; k < kEach; k++) values[k] = k < count ? from[k] : none;
  memcpy(&raw.words, &values, sizeof(values));
}
__device__ inline void save_codes(uint8_t* to, int64_t i, int count, const Pack<uint32_t, kEach / 4>& codes) {
  if (count == kEach) return save<kEach / 4>(reinterpret_cast<uint32_t*>(to + i), codes);
#pragma unroll
  for (int k = 0; k < kEach; k++)
    if (k < count) to[i + k] = static_cast<uint8_t>(codes[k / 4] >> k % 4 * 8);
}

template <class W, class G>
__global__ void __launch_bounds__(kThreads, 4)
    adamw_bit8_kernel(Scalars scalars, DeviceRandom random, uint64_t place, const G* g, int64_t n, const float* clip,
                      W* w, Bit8State state) {
  __shared__ CodeTable<true> m_table;
  __shared__ CodeTable<false> v_table;
  if (clip[2] == 0.0f) return;
  const float factor = clip[1];
  m_table.copy_from(signed_table);
  v_table.copy_from(unsigned_table);
  __syncthreads();
  const auto update = [&]<bool kWhole>(int64_t block) {
    const int64_t i = block * kStateBlock + threadIdx.x % 32 * kEach;
    const int count = kWhole ? kEach : static_cast<int>(min(int64_t{kEach}, max(int64_t{0}, n - i)));
    Raw<G, kEach> gradient;
    Raw<W, kEach> weight;
    Raw<uint8_t, kEach> means, squares;
    if (kWhole) {
      gradient.fetch(g + i);
      weight.fetch(w + i);
      means.fetch(state.m + i);
      squares.fetch(state.v + i);
    } else {  // numbers that are not there stay zeros
      fetch_part(gradient, g + i, count, G{});
      fetch_part(weight, w + i, count, W{});
      fetch_part(means, state.m + i, count, kZeroMean);
      fetch_part(squares, state.v + i, count, uint8_t{0});
    }
    const float m_scale = state.m_scales[block], v_scale = state.v_scales[block];
    uint32_t bits[kEach] = {};
    if constexpr (sizeof(W) == 2) random.bits<kEach>(place + static_cast<uint64_t>(i), bits);

    Pack<float, kEach> mean, square, x = weight.floats();
#pragma unroll
    for (int k = 0; k < kEach; k++) {
      mean[k] = m_table.values[means[k]] * m_scale;
      square[k] = v_table.values[squares[k]] * v_scale;
    }
    const bool mine = step<kEach>(scalars, x, gradient.floats(), factor, mean, square) == Numbers::Usual;
    const bool usual = kWhole && __all_sync(kAll, mine);
    if constexpr (!kWhole) {
#pragma unroll
      for (int k = 0; k < kEach; k++) {
        if (k >= count) continue;
        if constexpr (sizeof(W) == 2)
          store_stochastic(w[i + k], x[k], bits[k] & 0xffffu);
        else
          w[i + k] = x[k];
      }
    } else if constexpr (sizeof(W) == 2) {
      save_stochastic<false>(w + i, x, bits, all_finite(x));
    } else {
      save<kEach>(w + i, x);
    }
    Pack<uint32_t, kEach / 4> codes;
    const float m_largest = narrow(m_table, mean, usual, codes);
    save_codes(state.m, i, count, codes);
    const float v_largest = narrow(v_table, square, usual, codes);
    save_codes(state.v, i, count, codes);
    if (threadIdx.x % 32 != 0) return;
    state.m_scales[block] = m_largest;
    state.v_scales[block] = v_largest;
  };
  const int64_t whole = n / kStateBlock, warps = int64_t{gridDim.x} * (kThreads / 32);
  int64_t block = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  for (; block < whole; block += warps) update.template operator()<true>(block);
  if (block * kStateBlock < n) update.template operator()<false>(block);
}

struct Bound {
  AdamW adamw;
  TensorView gradient, weight, lo, m, v;
  const float* clip;
  cudaStream_t stream;

  bool wide_views() const { return wide({gradient, weight, m, v}) && (!adamw.split || wide({lo})); }
  uint64_t place(const PassFacts& facts) const { return at_step(facts.step, adamw.first); }
  DeviceRandom random() const { return {adamw.seed, RandomPurpose::Rounding, adamw.stream}; }
};

template <class G, class Weight, class X>
Launch update(const Bound& bound, Weight weight, State<X> state) {
  return dispatch_wide(bound.wide_views(), [&]<int N>() -> Launch {
    return [=, n = bound.gradient.count()](const PassFacts& facts) {
      if (n == 0) return;
      adamw_kernel<N><<<blocks_of(n, N * kThreads), kThreads, 0, bound.stream>>>(
          Scalars(bound.adamw, facts), bound.random(), bound.place(facts), bound.gradient.as<G>(), n, bound.clip,
          weight, state);
      check_launch("adamw");
    };
  });
}

template <class G, class W>
Launch update_bit8(const Bound& bound, const Bit8State& state) {
  const int64_t n = bound.gradient.count();
  bool aligned = true;
  for (const TensorView& view : {bound.gradient, bound.weight, bound.m, bound.v})
    aligned = aligned && reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
  check(aligned, "adamw: 8-bit state or its weights start at an address that is no multiple of 16");
  const auto fit = static_cast<unsigned>(blocks_that_fit(adamw_bit8_kernel<W, G>, kThreads, 0));
  const unsigned blocks = std::min(fit, blocks_of(n, kThreads / 32 * kStateBlock));
  return [=](const PassFacts& facts) {
    adamw_bit8_kernel<<<blocks, kThreads, 0, bound.stream>>>(Scalars(bound.adamw, facts), bound.random(),
                                                             bound.place(facts), bound.gradient.as<G>(), n, bound.clip,
                                                             bound.weight.as<W>(), state);
    check_launch("adamw");
  };
}

}  // namespace

Launch bind_adamw(const AdamW& adamw, Operands operands, cudaStream_t stream) {
  Bound bound{adamw, operands.dense("g", kActivation), {}, {}, {}, {}, nullptr, stream};
  const int64_t n = bound.gradient.count(), blocks = (n + kStateBlock - 1) / kStateBlock;
  const bool bit8 = adamw.format == StateFormat::Bit8;
  operands.expect(!bit8 || !adamw.split, "8-bit state has no 'lo'");
  operands.expect(adamw.first % kStateBlock == 0, "element {} starts no block of {}", adamw.first, kStateBlock);
  bound.weight = adamw.split ? operands.vector("w", {DType::BF16}, n)
                 : bit8      ? operands.vector("w", kActivation, n)
                             : operands.vector("w", {DType::F32}, n);
  if (adamw.split) bound.lo = operands.vector("lo", {DType::I16}, n);
  const DType kept = bit8 ? DType::U8 : adamw.format == StateFormat::Bf16 ? DType::BF16 : DType::F32;
  bound.m = operands.vector("m", {kept}, n);
  bound.v = operands.vector("v", {kept}, n);
  float* const m_scales = bit8 ? operands.vector("m_scales", {DType::F32}, blocks).as<float>() : nullptr;
  float* const v_scales = bit8 ? operands.vector("v_scales", {DType::F32}, blocks).as<float>() : nullptr;
  bound.clip = operands.vector("clip", {DType::F32}, 3).as<float>();
  operands.done();
  return dispatch_activation(bound.gradient.dtype, [&]<class G>() {
    const auto with_state = [&](auto state) {
      if (adamw.split) return update<G>(bound, SplitWeight{bound.weight.as<BFloat16>(), bound.lo.as<int16_t>()}, state);
      return update<G>(bound, PlainWeight{bound.weight.as<float>()}, state);
    };
    if (adamw.format == StateFormat::Fp32) return with_state(State<float>{bound.m.as<float>(), bound.v.as<float>()});
    if (adamw.format == StateFormat::Bf16)
      return with_state(State<BFloat16>{bound.m.as<BFloat16>(), bound.v.as<BFloat16>()});
    const Bit8State state{bound.m.as<uint8_t>(), bound.v.as<uint8_t>(), m_scales, v_scales};
    if (bound.weight.dtype == DType::F32) return update_bit8<G, float>(bound, state);
    return update_bit8<G, BFloat16>(bound, state);
  });
}

}  // namespace snug::cuda
