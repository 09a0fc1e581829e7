// Computes gated linear units (Shazeer, arXiv:2002.05202) and sums of tensors.   s = sigmoid(z), SwiGLU: z = gate
//   h = gate s up       dgate = dh up s (1 + gate (1 - s) dz/dgate)       dup = dh gate s
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
namespace {

// Calls f.template operator()<kGelu>().
template <class F>
decltype(auto) dispatch_gate(GateActivation activation, const F& f) {
  return activation == GateActivation::GeluTanh ? f.template operator()<true>() : f.template operator()<false>();
}

}  // namespace

Launch bind_swiglu(const SwiGlu& swiglu, Operands operands) {
  const TensorView gate_up = operands.take("gate_up", kActivation);
  const int64_t rows = gate_up.rows(), n = gate_up.cols() / 2;
  operands.expect(gate_up.cols() % 2 == 0, "'gate_up' has {} columns, expected an even number", gate_up.cols());
  const TensorView h = operands.matrix("h", {gate_up.dtype}, rows, n);
  operands.done();
  return dispatch_activation(h.dtype, [&]<class T>() {
    return dispatch_gate(swiglu.activation, [&]<bool kGelu>() -> Launch {
      return [=, from = Rows<T>(gate_up), to = Rows<T>(h)](const RuntimeScalars&) {
        share_rows(rows, n, [&](int64_t row) {
          const T *gate = from[row], *up = gate + n;
          T* out = to[row];
#pragma omp simd
          for (int64_t i = 0; i < n; i++) {
            const float g = to_float(gate[i]);
            store(out[i], g * gate_sigmoid<kGelu>(g).s * to_float(up[i]));
          }
        });
      };
    });
  });
}

Launch bind_swiglu_backward(const SwiGluBackward& swiglu, Operands operands) {
  const TensorView dh = operands.take("dh", kActivation);
  const int64_t rows = dh.rows(), n = dh.cols();
  const TensorView gate_up = operands.matrix("gate_up", {dh.dtype}, rows, 2 * n);
  const TensorView dgate_up = operands.matrix("dgate_up", {dh.dtype}, rows, 2 * n);
  operands.done();
  return dispatch_activation(dh.dtype, [&]<class T>() {
    return dispatch_gate(swiglu.activation, [&]<bool kGelu>() -> Launch {
      return [=, gradient = Rows<T>(dh), from = Rows<T>(gate_up), to = Rows<T>(dgate_up),
              restore = swiglu.restore](const RuntimeScalars&) {
        share_rows(rows, n, [&](int64_t row) {
          const T *gate = from[row], *up = gate + n;
          T *dout = gradient[row], *dgate = to[row], *dup = dgate + n;
#pragma omp simd
          for (int64_t i = 0; i < n; i++) {
            const float d = to_float(dout[i]), g = to_float(gate[i]), u = to_float(up[i]);
            const auto [s, slope] = gate_sigmoid<kGelu>(g);
            store(dgate[i], d * u * (s * (1.0f + g * (1.0f - s) * slope)));
            store(dup[i], d * (g * s));
            if (restore) store(dout[i], g * s * u);
          }
        });
      };
    });
  });
}

Launch bind_accumulate(Operands operands) {
  const TensorView x = operands.take("x", kFloat);
  const TensorView y = operands.matrix("sum", kFloat, x.rows(), x.cols());
  operands.done();
  return dispatch_float(x.dtype, [&]<class X>() {
    return dispatch_float(y.dtype, [&]<class Y>() -> Launch {
      return [from = Rows<X>(x), to = Rows<Y>(y), extent = Extent{x, y}](const RuntimeScalars&) {
        share_runs(extent, [&](int64_t row, int64_t begin, int64_t end) {
          const X* source = from[row];
          Y* target = to[row];
#pragma omp simd
          for (int64_t i = begin; i < end; i++) store(target[i], to_float(target[i]) + to_float(source[i]));
        });
      };
    });
  });
}

Launch bind_rescale(const Rescale& rescale, Operands operands) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView c = rescale.addend ? operands.matrix("c", {x.dtype}, x.rows(), x.cols()) : x;
  const TensorView y = operands.matrix("y", {x.dtype}, x.rows(), x.cols());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [from = Rows<T>(x), added = Rows<T>(c), to = Rows<T>(y), extent = Extent{x, c, y},
            rescale](const RuntimeScalars&) {
      share_runs(extent, [&](int64_t row, int64_t begin, int64_t end) {
        const T *source = from[row], *addend = added[row];
        T* target = to[row];
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
          store(target[i], rescale.factor * to_float(source[i]) + (rescale.addend ? to_float(addend[i]) : 0.0f));
      });
    };
  });
}

}  // namespace snug::cpu
