// Computes activations, SwiGLU and sums of tensors.
#include "backend/cuda/swiglu.cuh"

namespace snug::cuda {
namespace {

template <class T, Activation kind>
struct ActivateBody {
  Rows<T> x, h;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    auto values = load_floats<N>(x.at(row, col));
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = activated<T, kind>(values[k]).value;
    save_floats<N>(h.at(row, col), values);
  }
};

template <class T, Activation kind>
struct ActivateBackwardBody {
  Rows<T> dh, x, dx;
  bool restore;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    auto d = load_floats<N>(dh.at(row, col));
    auto h = load_floats<N>(x.at(row, col));
#pragma unroll
    for (int k = 0; k < N; k++) {
      const Activated y = activated<T, kind>(h[k]);
      d[k] *= y.slope;
      h[k] = y.value;
    }
    save_floats<N>(dx.at(row, col), d);
    if (restore) save_floats<N>(dh.at(row, col), h);
  }
};

template <class T, Activation kind>
struct SwiGluBody {
  Rows<T> gate_up, h;
  int64_t n;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    const auto gate = load_floats<N>(gate_up.at(row, col)), up = load_floats<N>(gate_up.at(row, n + col));
    Pack<float, N> out;
#pragma unroll
    for (int k = 0; k < N; k++) out[k] = swiglu(activated<T, kind>(gate[k]), up[k]);
    save_floats<N>(h.at(row, col), out);
  }
};

template <class T, Activation kind>
struct SwiGluBackwardBody {
  Rows<T> dh, gate_up, dgate_up;
  int64_t n;
  bool restore;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    const auto d = load_floats<N>(dh.at(row, col));
    const auto gate = load_floats<N>(gate_up.at(row, col)), up = load_floats<N>(gate_up.at(row, n + col));
    Pack<float, N> dgate, dup, h;
#pragma unroll
    for (int k = 0; k < N; k++) {
      const SwiGluGradient x = swiglu_gradient(d[k], activated<T, kind>(gate[k]), up[k]);
      dgate[k] = x.dgate;
      dup[k] = x.dup;
      h[k] = x.h;
    }
    save_floats<N>(dgate_up.at(row, col), dgate);
    save_floats<N>(dgate_up.at(row, n + col), dup);
    if (restore) save_floats<N>(dh.at(row, col), h);
  }
};

template <class X, class Y>
struct AccumulateBody {
  Rows<X> x;
  Rows<Y> y;
  int64_t x_rows;
  bool repeated;  // x_rows are fewer than y's
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    const auto added = load_floats<N>(x.at(repeated ? row % x_rows : row, col));
    auto sum = load_floats<N>(y.at(row, col));
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] += added[k];
    save_floats<N>(y.at(row, col), sum);
  }
};

template <class T>
struct RescaleBody {
  Rows<T> x, c, y;
  Rescale rescale;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    auto values = load_floats<N>(x.at(row, col));
    Pack<float, N> added{};
    if (rescale.addend) added = load_floats<N>(c.at(row, col));
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = rescale.factor * values[k] + added[k];
    save_floats<N>(y.at(row, col), values);
  }
};

// Returns whether both halves of a row, of n columns each, can be read kWide elements at a time.
bool halves_wide(const TensorView& view, int64_t n) { return wide({view}) && n % kWide == 0; }

}  // namespace

Launch bind_activate(const Activate& attrs, Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView h = operands.matrix("h", {x.dtype}, x.rows(), x.cols());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_kind(attrs.activation, [&]<Activation kind>() -> Launch {
      return [=](const RuntimeScalars&) {
        launch_elements(stream, Extent{x, h}, wide({x, h}), ActivateBody<T, kind>{Rows<T>(x), Rows<T>(h)});
      };
    });
  });
}

Launch bind_activate_backward(const ActivateBackward& attrs, Operands operands, cudaStream_t stream) {
  const auto of = activate_backward_operands(operands);
  const TensorView dh = of.dh, x = of.x, dx = of.dx;
  return dispatch_activation(dh.dtype, [&]<class T>() {
    return dispatch_kind(attrs.activation, [&]<Activation kind>() -> Launch {
      return [=](const RuntimeScalars&) {
        launch_elements(stream, Extent{dh, x, dx}, wide({dh, x, dx}),
                        ActivateBackwardBody<T, kind>{Rows<T>(dh), Rows<T>(x), Rows<T>(dx), attrs.restore});
      };
    });
  });
}

Launch bind_swiglu(const SwiGlu& swiglu, Operands operands, cudaStream_t stream) {
  const auto of = swiglu_operands(operands);
  const TensorView gate_up = of.gate_up, h = of.h;
  const int64_t rows = h.rows(), n = h.cols();
  return dispatch_activation(h.dtype, [&]<class T>() {
    return dispatch_kind(swiglu.activation, [&]<Activation kind>() -> Launch {
      return [=](const RuntimeScalars&) {
        launch_elements(stream, Extent(rows, n), halves_wide(gate_up, n) && wide({h}),
                        SwiGluBody<T, kind>{Rows<T>(gate_up), Rows<T>(h), n});
      };
    });
  });
}

Launch bind_swiglu_backward(const SwiGluBackward& swiglu, Operands operands, cudaStream_t stream) {
  const auto of = swiglu_backward_operands(operands);
  const TensorView dh = of.dh, gate_up = of.gate_up, dgate_up = of.dgate_up;
  const int64_t rows = dh.rows(), n = dh.cols();
  return dispatch_activation(dh.dtype, [&]<class T>() {
    return dispatch_kind(swiglu.activation, [&]<Activation kind>() -> Launch {
      return [=](const RuntimeScalars&) {
        launch_elements(
            stream, Extent(rows, n), halves_wide(gate_up, n) && wide({dh, dgate_up}),
            SwiGluBackwardBody<T, kind>{Rows<T>(dh), Rows<T>(gate_up), Rows<T>(dgate_up), n, swiglu.restore});
      };
    });
  });
}

Launch bind_accumulate(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kFloat);
  const TensorView y = sum_operand(operands, x);
  operands.done();
  const Extent extent = x.rows() == y.rows() ? Extent{x, y} : Extent(y.rows(), y.cols());
  return dispatch_float(x.dtype, [&]<class X>() {
    return dispatch_float(y.dtype, [&]<class Y>() -> Launch {
      return [=](const RuntimeScalars&) {
        launch_elements(stream, extent, wide({x, y}),
                        AccumulateBody<X, Y>{Rows<X>(x), Rows<Y>(y), x.rows(), x.rows() < y.rows()});
      };
    });
  });
}

Launch bind_rescale(const Rescale& rescale, Operands operands, cudaStream_t stream) {
  const auto of = rescale_operands(rescale, operands);
  const TensorView x = of.x, c = of.c, y = of.y;
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=](const RuntimeScalars&) {
      launch_elements(stream, Extent{x, c, y}, wide({x, c, y}),
                      RescaleBody<T>{Rows<T>(x), Rows<T>(c), Rows<T>(y), rescale});
    };
  });
}

}  // namespace snug::cuda
