// AdamW (Loshchilov and Hutter, arXiv:1711.05101), every operation and rounding as torch.optim.AdamW has it on one
// tensor at a time, so that a run here can be followed there:
//   w *= 1 - lr decay;   m += (1 - beta1) (g - m);   v = beta2 v + (1 - beta2) g g
//   w += (-lr / (1 - beta1^t) m) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
#include "backend/cpu/kernels.h"
#include "backend/cpu/master.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

// The scalars of one step, computed in fp64 and rounded once.
struct Scalars {
  Scalars(const AdamW& adamw, const PassFacts& facts) {
    const double beta1 = adamw.beta1, beta2 = adamw.beta2, rate = facts.learning_rate;
    const auto step = static_cast<double>(facts.step);
    keep = static_cast<float>(1 - rate * static_cast<double>(adamw.weight_decay));
    mean_share = static_cast<float>(1 - beta1);
    square_keep = static_cast<float>(beta2);
    square_share = static_cast<float>(1 - beta2);
    root_correction = static_cast<float>(std::sqrt(1 - std::pow(beta2, step)));
    epsilon = static_cast<float>(adamw.epsilon);
    rate_of_mean = static_cast<float>(-rate / (1 - std::pow(beta1, step)));
  }
  float keep, mean_share, square_keep, square_share, root_correction, epsilon, rate_of_mean;
};

// start + weight (end - start), from the nearer end (torch.lerp).
inline float lerp(float start, float end, float weight) {
  return weight < 0.5f ? std::fma(weight, end - start, start) : std::fma(weight - 1.0f, end - start, end);
}

// The weight after a step; m and v are brought forward.
inline float step(const Scalars& s, float w, float g, float& m, float& v) {
  m = lerp(m, g, s.mean_share);
  v = std::fma(s.square_share * g, g, v * s.square_keep);
  const float root = std::sqrt(v) / s.root_correction + s.epsilon;
  return w * s.keep + s.rate_of_mean * m / root;
}

}  // namespace

Launch bind_adamw(const AdamW& adamw, Operands operands) {
  const TensorView gradient = operands.dense("g", kActivation);
  const int64_t n = gradient.count();
  const TensorView weight = operands.vector("w", {adamw.split ? DType::BF16 : DType::F32}, n);
  int16_t* const lo = adamw.split ? operands.vector("lo", {DType::I16}, n).as<int16_t>() : nullptr;
  float* const m = operands.vector("m", {DType::F32}, n).as<float>();
  float* const v = operands.vector("v", {DType::F32}, n).as<float>();
  const float* const clip = operands.vector("clip", {DType::F32}, 3).as<float>();
  operands.done();
  return dispatch_activation(gradient.dtype, [&]<class G>() {
    return dispatch_activation(weight.dtype, [&]<class W>() -> Launch {
      return [=, g = gradient.as<G>(), w = weight.as<W>()](const PassFacts& facts) {
        if (clip[2] == 0.0f) return;
        const Scalars scalars(adamw, facts);
        const float factor = clip[1];
        share_runs(Extent{gradient}, [&](int64_t, int64_t begin, int64_t end) {
#pragma omp simd
          for (int64_t i = begin; i < end; i++) {
            if constexpr (std::is_same_v<W, BFloat16>) {
              split(step(scalars, join(w[i], lo[i]), to_float(g[i]) * factor, m[i], v[i]), w[i], lo[i]);
            } else {
              w[i] = step(scalars, w[i], to_float(g[i]) * factor, m[i], v[i]);
            }
          }
        });
      };
    });
  });
}

}  // namespace snug::cpu
