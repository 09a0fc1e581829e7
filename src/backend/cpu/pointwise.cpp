// Computes activations, gated linear units (Shazeer, arXiv:2002.05202) and sums of tensors.
//   h = activation(gate) up       dgate = dh up activation'(gate)       dup = dh activation(gate)
#include "backend/cpu/kernels.h"
#include "backend/cpu/math.h"
#include "backend/cpu/runs.h"

namespace snug::cpu {
Launch bind_activate(const Activate& attrs, Operands operands) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView h = operands.matrix("h", {x.dtype}, x.rows(), x.cols());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_kind(attrs.activation, [&]<Activation kind>() -> Launch {
      return [from = Rows<T>(x), to = Rows<T>(h), extent = Extent{x, h}](const RuntimeScalars&) {
        share_runs(extent, [&](int64_t row, int64_t begin, int64_t end) {
          const T* source = from[row];
          T* target = to[row];
#pragma omp simd
          for (int64_t i = begin; i < end; i++) store(target[i], activated<kind>(to_float(source[i])).value);
        });
      };
    });
  });
}

Launch bind_activate_backward(const ActivateBackward& attrs, Operands operands) {
  const auto of = activate_backward_operands(operands);
  const TensorView dh = of.dh, x = of.x, dx = of.dx;
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_kind(attrs.activation, [&]<Activation kind>() -> Launch {
      return [gradient = Rows<T>(dh), from = Rows<T>(x), to = Rows<T>(dx), extent = Extent{dh, x, dx},
              restore = attrs.restore](const RuntimeScalars&) {
        share_runs(extent, [&](int64_t row, int64_t begin, int64_t end) {
          const T* source = from[row];
          T *dout = gradient[row], *target = to[row];
#pragma omp simd
          for (int64_t i = begin; i < end; i++) {
            const auto [value, slope] = activated<kind>(to_float(source[i]));
            store(target[i], to_float(dout[i]) * slope);
            if (restore) store(dout[i], value);
          }
        });
      };
    });
  });
}

Launch bind_swiglu(const SwiGlu& swiglu, Operands operands) {
  const auto of = swiglu_operands(operands);
  const TensorView gate_up = of.gate_up, h = of.h;
  const int64_t rows = h.rows(), n = h.cols();
  return dispatch_activation(h.dtype, [&]<class T>() {
    return dispatch_kind(swiglu.activation, [&]<Activation kind>() -> Launch {
      return [=, from = Rows<T>(gate_up), to = Rows<T>(h)](const RuntimeScalars&) {
        share_rows(rows, n, [&](int64_t row) {
          const T *gate = from[row], *up = gate + n;
          T* out = to[row];
#pragma omp simd
          for (int64_t i = 0; i < n; i++) store(out[i], activated<kind>(to_float(gate[i])).value * to_float(up[i]));
        });
      };
    });
  });
}

Launch bind_swiglu_backward(const SwiGluBackward& swiglu, Operands operands) {
  const auto of = swiglu_backward_operands(operands);
  const TensorView dh = of.dh, gate_up = of.gate_up, dgate_up = of.dgate_up;
  const int64_t rows = dh.rows(), n = dh.cols();
  return dispatch_activation(dh.dtype, [&]<class T>() {
    return dispatch_kind(swiglu.activation, [&]<Activation kind>() -> Launch {
      return [=, gradient = Rows<T>(dh), from = Rows<T>(gate_up), to = Rows<T>(dgate_up),
              restore = swiglu.restore](const RuntimeScalars&) {
        share_rows(rows, n, [&](int64_t row) {
          const T *gate = from[row], *up = gate + n;
          T *dout = gradient[row], *dgate = to[row], *dup = dgate + n;
#pragma omp simd
          for (int64_t i = 0; i < n; i++) {
            const float d = to_float(dout[i]), u = to_float(up[i]);
            const auto [value, slope] = activated<kind>(to_float(gate[i]));
            store(dgate[i], d * u * slope);
            store(dup[i], d * value);
            if (restore) store(dout[i], value * u);
          }
        });
      };
    });
  });
}

Launch bind_accumulate(Operands operands) {
  const TensorView x = operands.take("x", kFloat);
  const TensorView y = sum_operand(operands, x);
  operands.done();
  // Where x is added repeatedly, rows are those of the sum.
  const Extent extent = x.rows() == y.rows() ? Extent{x, y} : Extent(y.rows(), y.cols());
  return dispatch_float(x.dtype, [&]<class X>() {
    return dispatch_float(y.dtype, [&]<class Y>() -> Launch {
      return [from = Rows<X>(x), to = Rows<Y>(y), extent, repeated = x.rows()](const RuntimeScalars&) {
        share_runs(extent, [&](int64_t row, int64_t begin, int64_t end) {
          const X* source = from[row % repeated];
          Y* target = to[row];
#pragma omp simd
          for (int64_t i = begin; i < end; i++) store(target[i], to_float(target[i]) + to_float(source[i]));
        });
      };
    });
  });
}

Launch bind_rescale(const Rescale& rescale, Operands operands) {
  const auto of = rescale_operands(rescale, operands);
  const TensorView x = of.x, c = of.c, y = of.y;
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
