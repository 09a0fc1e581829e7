// AdamW, element by element with the operations and roundings of cpu/adamw.cpp, so that both give the same bits.
#include "backend/adamw_scalars.h"
#include "backend/cuda/device.cuh"
#include "backend/master.h"
#include "tensor/codebook.h"

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
        usual(root_correction >= 0x1p-20f && root_correction <= 1.0f && epsilon >= 0.0f && epsilon <= 0x1p20f) {}
  float inverse_correction;
  bool usual;
};

__device__ inline bool within(float magnitude, float least, float most) {
  return magnitude >= least && magnitude <= most;
}

// The weights after a step; m and v are brought forward. Numbers that are zero, tiny, huge or none go by way of the
// full division, all of a thread's together.
template <int N>
__device__ void step(const Scalars& s, Pack<float, N>& w, const Pack<float, N>& gradient, float factor,
                     Pack<float, N>& m, Pack<float, N>& v) {
  bool usual = s.usual;
#pragma unroll
  for (int k = 0; k < N; k++) {
    const float g = gradient[k] * factor;
    m[k] = lerp(m[k], g, s.mean_share);
    v[k] = fmaf(s.square_share * g, g, v[k] * s.square_keep);
    usual = usual && within(v[k], 0x1p-100f, 0x1p40f) && within(fabsf(s.rate_of_mean * m[k]), 0x1p-80f, 0x1p60f);
  }
  if (usual) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float root = quotient(usual_root(v[k]), s.root_correction, s.inverse_correction) + s.epsilon;
      w[k] = w[k] * s.keep + usual_quotient(s.rate_of_mean * m[k], root);
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float root = sqrtf(v[k]) / s.root_correction + s.epsilon;
      w[k] = w[k] * s.keep + s.rate_of_mean * m[k] / root;
    }
  }
}

// A tensor's weights: as fp32, and back with the random bits of an element.
struct PlainWeight {
  static constexpr bool kRandom = false;
  float* w;
  template <int N>
  __device__ Pack<float, N> load(int64_t i) const {
    return cuda::load<N>(w + i);
  }
  template <int N>
  __device__ void store(int64_t i, const Pack<float, N>& x, const uint32_t (&)[N]) const {
    save<N>(w + i, x);
  }
};

struct SplitWeight {
  static constexpr bool kRandom = false;
  BFloat16* hi;
  int16_t* lo;
  template <int N>
  __device__ Pack<float, N> load(int64_t i) const {
    const auto high = cuda::load<N>(hi + i);
    const auto low = cuda::load<N>(lo + i);
    Pack<float, N> x;
#pragma unroll
    for (int k = 0; k < N; k++) x[k] = join(high[k], low[k]);
    return x;
  }
  template <int N>
  __device__ void store(int64_t i, const Pack<float, N>& x, const uint32_t (&)[N]) const {
    Pack<BFloat16, N> high;
    Pack<int16_t, N> low;
#pragma unroll
    for (int k = 0; k < N; k++) split(x[k], high[k], low[k]);
    save<N>(hi + i, high);
    save<N>(lo + i, low);
  }
};

struct RoundedWeight {
  static constexpr bool kRandom = true;
  BFloat16* w;
  template <int N>
  __device__ Pack<float, N> load(int64_t i) const {
    return load_floats<N>(w + i);
  }
  template <int N>
  __device__ void store(int64_t i, const Pack<float, N>& x, const uint32_t (&random)[N]) const {
    Pack<BFloat16, N> rounded;
#pragma unroll
    for (int k = 0; k < N; k++) store_stochastic(rounded[k], x[k], random[k] & 0xffffu);
    save<N>(w + i, rounded);
  }
};

// A tensor's m and v, widened and back. `first` is the first element of the kStateBlock that a warp has, `lane` this
// thread's part of it.
struct PlainState {
  static constexpr bool kRandom = false;
  float *m, *v;
  template <int N>
  __device__ void load(int64_t i, Pack<float, N>& mean, Pack<float, N>& square) const {
    mean = cuda::load<N>(m + i);
    square = cuda::load<N>(v + i);
  }
  template <int N>
  __device__ void store(int64_t i, const Pack<float, N>& mean, const Pack<float, N>& square,
                        const uint32_t (&)[N]) const {
    save<N>(m + i, mean);
    save<N>(v + i, square);
  }
};

struct Bf16State {
  static constexpr bool kRandom = true;
  BFloat16 *m, *v;
  template <int N>
  __device__ void load(int64_t i, Pack<float, N>& mean, Pack<float, N>& square) const {
    mean = load_floats<N>(m + i);
    square = load_floats<N>(v + i);
  }
  template <int N>
  __device__ void store(int64_t i, const Pack<float, N>& mean, const Pack<float, N>& square,
                        const uint32_t (&random)[N]) const {
    Pack<BFloat16, N> means, squares;
#pragma unroll
    for (int k = 0; k < N; k++) {
      store_stochastic(means[k], mean[k], random[k] & 0xffffu);
      store_stochastic(squares[k], square[k], random[k] >> 16);
    }
    save<N>(m + i, means);
    save<N>(v + i, squares);
  }
};

template <class Weight, class State, class G>
struct UpdateBody {
  Scalars scalars;
  DeviceRandom random;
  uint64_t place;  // in the stream, of the first element
  const G* g;
  const float* clip;
  Weight weight;
  State state;
  template <int N>
  __device__ void operator()(int64_t, int64_t i) const {
    if (clip[2] == 0.0f) return;
    uint32_t bits[N] = {};
    if constexpr (Weight::kRandom || State::kRandom) random.bits<N>(place + static_cast<uint64_t>(i), bits);
    const auto gradient = load_floats<N>(g + i);
    Pack<float, N> mean, square, w = weight.template load<N>(i);
    state.template load<N>(i, mean, square);
    step<N>(scalars, w, gradient, clip[1], mean, square);
    weight.template store<N>(i, w, bits);
    state.template store<N>(i, mean, square, bits);
  }
};

// ---- 8-bit state: a warp a block of 256 -----------------------------------------------------------------------------

__constant__ const DynamicMap signed_map = kSignedMap, unsigned_map = kUnsignedMap;

// A map, and for numbers that agree in sign, exponent and the upper 7 bits of the fraction the code of the least of
// them: between two such numbers lies at most one of the map's bounds, so one comparison gives a number's own code.
struct CodeTable {
  static constexpr int kFirst = (127 - 24) << 7, kMagnitudes = (24 << 7) + 1;  // up to 2^-24: as 0; then up to 1

  // By all threads of the block.
  __device__ void fill(const DynamicMap& map) {
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += static_cast<int>(blockDim.x)) {
      values[i] = map.values[i];
      bounds[i] = i < 255 ? map.bounds[i] : INFINITY;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kMagnitudes; i += static_cast<int>(blockDim.x)) {
      const bool negative = i >= kMagnitudes;
      const uint32_t magnitude = static_cast<uint32_t>(i % kMagnitudes + kFirst) << 16;
      const float least = negative               ? -__uint_as_float(magnitude | 0xffffu)
                          : i % kMagnitudes == 0 ? 0.0f
                                                 : __uint_as_float(magnitude);
      uint32_t code = 0;
      for (uint32_t step = 128; step > 0; step /= 2) code += least > bounds[code + step - 1] ? step : 0u;
      first[i] = static_cast<uint8_t>(code);
    }
    __syncthreads();
  }
  // DynamicMap::nearest for x in [-1, 1]; 0 for NaN.
  __device__ uint8_t nearest(float x) const {
    const uint32_t bits = __float_as_uint(x);
    const int magnitude = min(max(static_cast<int>((bits & 0x7fffffffu) >> 16) - kFirst, 0), kMagnitudes - 1);
    const uint32_t code = first[magnitude + (bits >> 31 != 0 ? kMagnitudes : 0)];
    return x == x ? static_cast<uint8_t>(code + (x > bounds[code] ? 1u : 0u)) : uint8_t{0};
  }

  float values[256], bounds[256];
  uint8_t first[2 * kMagnitudes];
};

constexpr int kEach = kStateBlock / 32;

struct Bit8State {
  uint8_t *m, *v;
  float *m_scales, *v_scales;
};

// Codes of a warp's block; gives the scale.
__device__ inline float narrow(const CodeTable& table, const Pack<float, kEach>& x, Pack<uint8_t, kEach>& codes) {
  float largest = -INFINITY;
#pragma unroll
  for (int k = 0; k < kEach; k++) largest = fmaxf(largest, fabsf(x[k]));  // NaN is passed over
  largest = warp_max(largest);
  const float divisor = largest > 0 ? largest : 1.0f;
#pragma unroll
  for (int k = 0; k < kEach; k++) codes[k] = table.nearest(x[k] / divisor);
  return largest;
}

// Elements 8 l .. 8 l + 7 of the block are lane l's; of the last block fewer may be there.
template <class T>
__device__ Pack<T, kEach> load_part(const T* from, int64_t i, int count) {
  if (count == kEach) return load<kEach>(from + i);
  Pack<T, kEach> values{};
  for (int k = 0; k < count; k++) values[k] = from[i + k];
  return values;
}
template <class T>
__device__ void save_part(T* to, int64_t i, int count, const Pack<T, kEach>& values) {
  if (count == kEach) return save<kEach>(to + i, values);
  for (int k = 0; k < count; k++) to[i + k] = values[k];
}

template <class W, class G>
__global__ void __launch_bounds__(kThreads)
    adamw_bit8_kernel(Scalars scalars, DeviceRandom random, uint64_t place, const G* g, int64_t n, const float* clip,
                      W* w, Bit8State state) {
  __shared__ CodeTable tables[2];
  if (clip[2] == 0.0f) return;
  tables[0].fill(signed_map);
  tables[1].fill(unsigned_map);
  const int64_t blocks = (n + kStateBlock - 1) / kStateBlock, warps = int64_t{gridDim.x} * (kThreads / 32);
  for (int64_t block = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32; block < blocks; block += warps) {
    const int64_t i = block * kStateBlock + threadIdx.x % 32 * kEach;
    const int count = static_cast<int>(min(int64_t{kEach}, max(int64_t{0}, n - i)));
    uint32_t bits[kEach] = {};
    if constexpr (sizeof(W) == 2) random.bits<kEach>(place + static_cast<uint64_t>(i), bits);

    const auto gradient = load_part(g, i, count);
    const auto weight = load_part(w, i, count);
    auto means = load_part(state.m, i, count), squares = load_part(state.v, i, count);
    const float m_scale = state.m_scales[block], v_scale = state.v_scales[block];
    Pack<float, kEach> mean, square, g_floats, x;
#pragma unroll
    for (int k = 0; k < kEach; k++) {
      mean[k] = tables[0].values[means[k]] * m_scale;
      square[k] = tables[1].values[squares[k]] * v_scale;
      g_floats[k] = to_float(gradient[k]);
      x[k] = to_float(weight[k]);
    }
    step<kEach>(scalars, x, g_floats, clip[1], mean, square);
    Pack<W, kEach> result;
#pragma unroll
    for (int k = 0; k < kEach; k++) {
      if (k >= count) mean[k] = square[k] = 0;  // no elements
      if constexpr (sizeof(W) == 2)
        store_stochastic(result[k], x[k], bits[k] & 0xffffu);
      else
        result[k] = x[k];
    }
    save_part(w, i, count, result);
    const float m_largest = narrow(tables[0], mean, means);
    const float v_largest = narrow(tables[1], square, squares);
    save_part(state.m, i, count, means);
    save_part(state.v, i, count, squares);
    if (threadIdx.x % 32 != 0) continue;
    state.m_scales[block] = m_largest;
    state.v_scales[block] = v_largest;
  }
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

template <class G, class Weight, class State>
Launch update(const Bound& bound, Weight weight, State state) {
  return [=](const PassFacts& facts) {
    launch_elements(bound.stream, Extent{bound.gradient}, bound.wide_views(),
                    UpdateBody<Weight, State, G>{Scalars(bound.adamw, facts), bound.random(), bound.place(facts),
                                                 bound.gradient.as<G>(), bound.clip, weight, state});
  };
}

template <class G, class W>
Launch update_bit8(const Bound& bound, const Bit8State& state) {
  const int64_t n = bound.gradient.count();
  bool aligned = true;
  for (const TensorView& view : {bound.gradient, bound.weight, bound.m, bound.v})
    aligned = aligned && reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
  check(aligned, "adamw: 8-bit state or its weights start at an address that is no multiple of 16");
  return [=](const PassFacts& facts) {
    constexpr unsigned kMostBlocks = 1024;  // each fills its tables first
    const unsigned blocks = std::min(kMostBlocks, blocks_of(n, kThreads / 32 * kStateBlock));
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
    if (adamw.format == StateFormat::Fp32) return with_state(PlainState{bound.m.as<float>(), bound.v.as<float>()});
    if (adamw.format == StateFormat::Bf16) return with_state(Bf16State{bound.m.as<BFloat16>(), bound.v.as<BFloat16>()});
    const Bit8State state{bound.m.as<uint8_t>(), bound.v.as<uint8_t>(), m_scales, v_scales};
    if (bound.weight.dtype == DType::F32) return update_bit8<G, float>(bound, state);
    return update_bit8<G, BFloat16>(bound, state);
  });
}

}  // namespace snug::cuda
