// Computes what Muon does element by element, with the operations and roundings of cpu/muon.cpp, so that both give
// equal bits.
#include "backend/cuda/adamw.cuh"
#include "backend/muon_scalars.h"

namespace snug::cuda {
namespace {

template <class G>
struct MomentumBody {
  MomentumScalars s;
  const G* g;
  float* m;
  G* d;
  const StepScalars* scalars;
  template <int N>
  __device__ void operator()(int64_t, int64_t i) const {
    const float factor = scalars->factor;
    if (scalars->finite == 0.0f) return save_floats<N>(d + i, Pack<float, N>{});
    Pack<float, N> values = load_floats<N>(g + i), kept = load_floats<N>(m + i);
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float change = s.share * (values[k] * factor);
      kept[k] = fmaf(s.keep, kept[k], change);
      values[k] = fmaf(s.keep, kept[k], change);
    }
    save<N>(m + i, kept);
    save_floats<N>(d + i, values);
  }
};

template <class T>
struct NormalizeBody {
  const T* x;
  const float* sum;
  T* y;
  template <int N>
  __device__ void operator()(int64_t, int64_t i) const {
    const float norm = fmaxf(sqrtf(*sum), kLeastNorm);
    Pack<float, N> values = load_floats<N>(x + i);
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = values[k] / norm;
    save_floats<N>(y + i, values);
  }
};

template <class U, class Weight>
struct DescendBody {
  DescendScalars s;
  const U* u;
  Weight weight;
  const StepScalars* scalars;
  template <int N>
  __device__ void operator()(int64_t, int64_t i) const {
    if (scalars->finite == 0.0f) return;
    const Pack<float, N> change = load_floats<N>(u + i);
    const auto stored = weight.template fetch<N>(i);
    Pack<float, N> w = stored.floats();
#pragma unroll
    for (int k = 0; k < N; k++) w[k] = fmaf(s.rate, change[k], w[k] * s.keep);
    weight.template store<N>(i, w);
  }
};

}  // namespace

Launch bind_momentum(const Momentum& momentum, Operands operands, cudaStream_t stream) {
  const TensorView g = operands.dense("g", kActivation);
  const TensorView m = operands.vector("m", {DType::F32}, g.count()), d = operands.vector("d", {g.dtype}, g.count());
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  return dispatch_activation(g.dtype, [&]<class G>() -> Launch {
    return [=, s = MomentumScalars(momentum)](const RuntimeScalars&) {
      launch_elements(stream, Extent{g}, wide({g, m, d}),
                      MomentumBody<G>{s, g.as<G>(), m.as<float>(), d.as<G>(), scalars});
    };
  });
}

Launch bind_normalize(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.dense("x", kActivation);
  const float* const sum = operands.vector("sum", {DType::F32}, 1).as<float>();
  const TensorView y = operands.vector("y", {x.dtype}, x.count());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=](const RuntimeScalars&) {
      launch_elements(stream, Extent{x}, wide({x, y}), NormalizeBody<T>{x.as<T>(), sum, y.as<T>()});
    };
  });
}

Launch bind_descend(const Descend& descend, Operands operands, cudaStream_t stream) {
  const TensorView u = operands.dense("u", kActivation);
  const UpdatedWeight updated = updated_weight(operands, descend.split, u.count());
  const StepScalars* const scalars = take_step_scalars(operands);
  operands.done();
  const bool is_wide = wide({u}) && wide(updated);
  return dispatch_activation(u.dtype, [&]<class U>() {
    return with_weight<PlainWeight, SplitWeight>(updated, [&](auto weight) -> Launch {
      return [=](const RuntimeScalars& runtime) {
        launch_elements(stream, Extent{u}, is_wide,
                        DescendBody<U, decltype(weight)>{DescendScalars(descend, runtime), u.as<U>(), weight, scalars});
      };
    });
  });
}

}  // namespace snug::cuda
