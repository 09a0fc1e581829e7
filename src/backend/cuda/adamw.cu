// Computes AdamW, element by element with the operations and roundings of cpu/adamw.cpp, so that both give equal bits.
#include "backend/cuda/adamw.cuh"

namespace snug::cuda {
namespace {

// Returns start + weight (end - start), from the nearer end (torch.lerp).
__device__ inline float lerp(float start, float end, float weight) {
  return weight < 0.5f ? fmaf(weight, end - start, start) : fmaf(weight - 1.0f, end - start, end);
}

// Says what a thread's numbers are together. Normal: |m| is from 2^-100 to 2^100, and v from 2^-100 to 2^40. Zero: v
// and the change are zeros, as in an embedding's rows whose tokens never came; then m is finite.
enum class Numbers : uint8_t { Normal, Zero, Any };

// Brings w, m and v forward by a step, and returns what the numbers are. It takes the full root and division only if
// they are neither normal nor zero.
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
  const bool fast = s.fast && least >= kLeast && most <= kMost && farthest_change <= kMostChange - kLeastChange;
  if (fast) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float root = quotient(fast_normal_root(v[k]), s.root_correction, s.inverse_correction) + s.epsilon;
      w[k] = w[k] * s.keep + fast_normal_quotient(change[k], root);
    }
    return Numbers::Normal;
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

// Loads a tensor's m and v, and stores them from fp32 with the random bits of an element. `finite` says that all are.
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
      save_stochastic(
          m + i, mean, [&](int k) { return lower_half(random[k]); }, finite);
      save_stochastic(
          v + i, square, [&](int k) { return upper_half(random[k]); }, finite);
    } else {
      save<N>(m + i, mean);
      save<N>(v + i, square);
    }
  }
};

// Updates N elements in each thread, which requests its operands first, so that random numbers are made while these
// come.
template <int N, class Weight, class X, class G>
__global__ void __launch_bounds__(kThreads, State<X>::kRandom ? 4 : 5)
    adamw_kernel(Scalars scalars, DeviceRandom random, uint64_t place, const G* g, int64_t n,
                 const StepScalars* step_scalars, Weight weight, State<X> state) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N;
  if (i >= n) return;
  const float factor = step_scalars->factor, finite = step_scalars->finite;
  Raw<G, N> gradient;
  gradient.fetch(g + i);
  const auto weights = weight.template fetch<N>(i);
  const auto both = state.template fetch<N>(i);
  uint32_t bits[N] = {};
  if constexpr (State<X>::kRandom) random.bits<N>(place + static_cast<uint64_t>(i), bits);
  Pack<float, N> w = weights.floats(), mean = both.mean.floats(), square = both.square.floats();
  const Numbers numbers = step<N>(scalars, w, gradient.floats(), factor, mean, square);
  if (finite == 0.0f) return;  // only here, as the compiler would otherwise request nothing before it
  weight.template store<N>(i, w);
  state.template store<N>(i, mean, square, bits, numbers != Numbers::Any);
}

template <class G, class Weight, class X>
Launch update(const BoundAdamW& bound, Weight weight, State<X> state) {
  const bool views_are_wide =
      wide({bound.gradient, bound.weight, bound.m, bound.v}) && (!bound.adamw.split || wide({bound.lo}));
  return dispatch_wide(views_are_wide, [&]<int N>() -> Launch {
    return [=, n = bound.gradient.count()](const RuntimeScalars& runtime) {
      if (n == 0) return;
      adamw_kernel<N><<<blocks_of(n, N * kThreads), kThreads, 0, bound.stream>>>(
          Scalars(bound.adamw, runtime), bound.random(), at_step(runtime.step, bound.adamw.first),
          bound.gradient.as<G>(), n, bound.step, weight, state);
      check_launch("adamw");
    };
  });
}

}  // namespace

Launch bind_adamw(const AdamW& adamw, Operands operands, cudaStream_t stream) {
  BoundAdamW bound{adamw, operands.dense("g", kActivation), {}, {}, {}, {}, nullptr, nullptr, nullptr, stream};
  const int64_t n = bound.gradient.count(), blocks = ceil_div(n, kStateBlock);
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
  bound.m_scales = bit8 ? operands.vector("m_scales", {DType::F32}, blocks).as<float>() : nullptr;
  bound.v_scales = bit8 ? operands.vector("v_scales", {DType::F32}, blocks).as<float>() : nullptr;
  bound.step = take_step_scalars(operands);
  operands.done();
  if (bit8) return bit8_launch(bound);
  return dispatch_activation(bound.gradient.dtype, [&]<class G>() {
    const auto with_state = [&](auto state) {
      if (adamw.split) return update<G>(bound, SplitWeight{bound.weight.as<BFloat16>(), bound.lo.as<int16_t>()}, state);
      return update<G>(bound, PlainWeight{bound.weight.as<float>()}, state);
    };
    if (adamw.format == StateFormat::Fp32) return with_state(State<float>{bound.m.as<float>(), bound.v.as<float>()});
    return with_state(State<BFloat16>{bound.m.as<BFloat16>(), bound.v.as<BFloat16>()});
  });
}

}  // namespace snug::cuda
