// Computes AdamW (Loshchilov and Hutter, arXiv:1711.05101), with every operation and rounding of torch.optim.AdamW on
// one tensor at a time, so that a run here can be compared with torch:
//   w *= 1 - lr decay;   m += (1 - beta1) (g - m);   v = beta2 v + (1 - beta2) g g
//   w += (-lr / (1 - beta1^t) m) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon) Smaller formats of m and v are widened to
// fp32 for the step, which uses the unrounded results, and are rounded after it. With 8-bit state the order of
// operations differs: adamw_scalars.h.
#include "backend/adamw_scalars.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"
#include "backend/cpu/weights.h"
#include "backend/update_operands.h"
#include "base/rng.h"
#include "base/rounding.h"
#include "tensor/codebook.h"

namespace snug::cpu {
namespace {

// Returns start + weight (end - start), from the nearer end (torch.lerp).
inline float lerp(float start, float end, float weight) {
  return weight < 0.5f ? std::fma(weight, end - start, start) : std::fma(weight - 1.0f, end - start, end);
}

// Returns the weight after a step; m and v are updated.
inline float step(const AdamWScalars& s, float w, float g, float& m, float& v) {
  m = lerp(m, g, s.mean_share);
  v = std::fma(s.square_share * g, g, v * s.square_keep);
  const float root = std::sqrt(v) / s.root_correction + s.epsilon;
  return w * s.keep + s.rate_of_mean * m / root;
}

// Gives a tensor's weights as fp32, and stores them rounded by the random bits of an element.
struct RoundedWeight {
  static constexpr bool kRandom = true;
  BFloat16* w;
  float load(int64_t i) const { return to_float(w[i]); }
  void store(int64_t i, float x, uint32_t random) const { store_stochastic(w[i], x, random & 0xffffu); }
};

// Holds a block of m and v in fp32, in place or in its own memory, and the random bits of its elements.
struct StateBlock {
  float m_values[kStateBlock], v_values[kStateBlock];
  float *m = m_values, *v = v_values;
  float m_scale = 1, v_scale = 1;  // of the values that m and v hold
  uint32_t random[kStateBlock] = {};
};

// Gives a tensor's m and v: `count` elements from `first`, which starts a block, widened and stored again.
struct PlainState {
  static constexpr bool kRandom = false;
  float *m, *v;
  void load(int64_t first, int64_t, StateBlock& block) const {
    block.m = m + first;
    block.v = v + first;
  }
  void store(int64_t, int64_t, const StateBlock&) const {}
};

struct Bf16State {
  static constexpr bool kRandom = true;
  BFloat16 *m, *v;
  void load(int64_t first, int64_t count, StateBlock& block) const {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
      block.m[i] = to_float(m[first + i]);
      block.v[i] = to_float(v[first + i]);
    }
  }
  void store(int64_t first, int64_t count, const StateBlock& block) const {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
      store_stochastic(m[first + i], block.m[i], block.random[i] & 0xffffu);
      store_stochastic(v[first + i], block.v[i], block.random[i] >> 16);
    }
  }
};

struct Bit8State {
  static constexpr bool kRandom = false;
  uint8_t *m, *v;
  float *m_scales, *v_scales;
  void load(int64_t first, int64_t count, StateBlock& block) const {
    block.m_scale = m_scales[first / kStateBlock];
    block.v_scale = v_scales[first / kStateBlock];
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
      block.m[i] = kSignedMap[m[first + i]];
      block.v[i] = kUnsignedMap[v[first + i]];
    }
  }
  void store(int64_t first, int64_t count, const StateBlock& block) const {
    const float m_inverse = 1.0f / (m_scales[first / kStateBlock] = scale(block.m, count, kMeanRise));
    const float v_inverse = 1.0f / (v_scales[first / kStateBlock] = scale(block.v, count, 1.0f));
    for (int64_t i = 0; i < count; i++) {
      const uint8_t code = kMeanBins.of(std::abs(block.m[i] * m_inverse) + CodeBins::kLeast);
      m[first + i] = block.m[i] < 0 ? static_cast<uint8_t>(kMeanMost - code) : code;
      v[first + i] = kSquareBins.of(std::fma(block.v[i], v_inverse, CodeBins::kLeast));
    }
  }

 private:
  static float scale(const float* x, int64_t count, float rise) {
    return state_scale(maximum(count, [=](int64_t i) { return std::abs(x[i]); }), rise);
  }
};

// Updates the weights, m and v of a block.
template <class G, class Weight, class State>
void update_block(const AdamWScalars& s, const Weight& weight, const State&, const G* g, float factor, int64_t begin,
                  int64_t count, StateBlock& block) {
  float *const m = block.m, *const v = block.v;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    weight.store(begin + i, step(s, weight.load(begin + i), to_float(g[begin + i]) * factor, m[i], v[i]),
                 block.random[i]);
}

template <class G, class Weight>
void update_block(const AdamWScalars& s, const Weight& weight, const Bit8State&, const G* g, float factor,
                  int64_t begin, int64_t count, StateBlock& block) {
  const float mean_factor = factor * s.mean_share, square_factor = factor * s.root_of_square_share;
  const float m_scale = block.m_scale * s.mean_keep, v_scale = block.v_scale * s.square_keep;
  float *const m = block.m, *const v = block.v;
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    const float gradient = to_float(g[begin + i]), change = gradient * square_factor;
    m[i] = std::fma(m[i], m_scale, gradient * mean_factor);
    v[i] = std::fma(change, change, std::fma(v[i], v_scale, AdamWScalars::kLeastSquare));
    const float root = std::fma(std::sqrt(v[i]), s.root_over_rate, s.epsilon_over_rate);
    weight.store(begin + i, std::fma(m[i], 1.0f / root, weight.load(begin + i) * s.keep), block.random[i]);
  }
}

template <class G, class Weight, class State>
Launch update(const AdamW& adamw, const TensorView& gradient, Weight weight, State state, const StepScalars* step) {
  return [=, g = gradient.as<G>()](const RuntimeScalars& runtime) {
    if (step->finite == 0.0f) return;
    const AdamWScalars scalars(adamw, runtime);
    const float factor = step->factor;
    const Random random(adamw.seed, RandomPurpose::Rounding, adamw.stream);
    share_runs(Extent{gradient}, [&](int64_t, int64_t first, int64_t last) {
      StateBlock block;
      for (int64_t begin = first; begin < last; begin += kStateBlock) {
        const int64_t count = std::min(kStateBlock, last - begin);
        const uint64_t place = adamw.first + static_cast<uint64_t>(begin);
        if constexpr (State::kRandom) {
          random.bits(at_step(runtime.step, place), {block.random, static_cast<size_t>(count)});
        } else if constexpr (Weight::kRandom) {
          uint32_t words[kStateBlock / 2];
          random.bits(at_step(runtime.step, place / 2), {words, static_cast<size_t>(count + 1) / 2});
          for (int64_t i = 0; i < count; i++) block.random[i] = words[i / 2] >> (i % 2 * 16);
        }
        state.load(begin, count, block);
        update_block(scalars, weight, state, g, factor, begin, count, block);
        state.store(begin, count, block);
      }
    });
  };
}

}  // namespace

Launch bind_adamw(const AdamW& adamw, Operands operands) {
  const TensorView gradient = operands.dense("g", kActivation);
  const int64_t n = gradient.count(), blocks = ceil_div(n, kStateBlock);
  const bool bit8 = adamw.format == StateFormat::Bit8;
  operands.expect(!bit8 || !adamw.split, "8-bit state has no 'lo'");
  operands.expect(adamw.first % kStateBlock == 0, "element {} starts no block of {}", adamw.first, kStateBlock);
  const TensorView weight = adamw.split ? operands.vector("w", {DType::BF16}, n)
                            : bit8      ? operands.vector("w", kActivation, n)
                                        : operands.vector("w", {DType::F32}, n);
  int16_t* const lo = adamw.split ? operands.vector("lo", {DType::I16}, n).as<int16_t>() : nullptr;
  const DType kept = bit8 ? DType::U8 : adamw.format == StateFormat::Bf16 ? DType::BF16 : DType::F32;
  const TensorView m = operands.vector("m", {kept}, n), v = operands.vector("v", {kept}, n);
  float* const m_scales = bit8 ? operands.vector("m_scales", {DType::F32}, blocks).as<float>() : nullptr;
  float* const v_scales = bit8 ? operands.vector("v_scales", {DType::F32}, blocks).as<float>() : nullptr;
  const StepScalars* const step = take_step_scalars(operands);
  operands.done();
  return dispatch_activation(gradient.dtype, [&]<class G>() {
    const auto with_state = [&](auto state) {
      if (adamw.split) return update<G>(adamw, gradient, SplitWeight{weight.as<BFloat16>(), lo}, state, step);
      return update<G>(adamw, gradient, PlainWeight{weight.as<float>()}, state, step);
    };
    if (adamw.format == StateFormat::Fp32) return with_state(PlainState{m.as<float>(), v.as<float>()});
    if (adamw.format == StateFormat::Bf16) return with_state(Bf16State{m.as<BFloat16>(), v.as<BFloat16>()});
    const Bit8State state{m.as<uint8_t>(), v.as<uint8_t>(), m_scales, v_scales};
    if (weight.dtype == DType::F32) return with_state(state);
    return update<G>(adamw, gradient, RoundedWeight{weight.as<BFloat16>()}, state, step);
  });
}

}  // namespace snug::cpu
