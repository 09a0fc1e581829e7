// Rows picked by index from a table, and gradients brought back to it.
#include "backend/cuda/device.cuh"

namespace snug::cuda {
namespace {

constexpr DTypes kIndex{DType::I32};

__device__ inline float not_a_number() { return __int_as_float(0x7fffffff); }

template <class S, class T>
struct EmbeddingBody {
  const int32_t* ids;
  Rows<S> table;
  int64_t table_rows;
  Rows<T> x;
  bool none_is_zero;  // rows below 0 are zeros
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    const int64_t id = ids[row];
    Pack<float, N> values;
    if (0 <= id && id < table_rows) {
      values = load_floats<N>(table.at(id, col));
    } else {
#pragma unroll
      for (int k = 0; k < N; k++) values[k] = id < 0 && none_is_zero ? 0.0f : not_a_number();
    }
    save_floats<N>(x.at(row, col), values);
  }
};

template <class T>
struct ScatterBody {
  Rows<T> y;
  const int32_t* rows;
  Rows<T> x;
  int64_t x_rows;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    const int64_t target = rows[row];
    if (0 <= target && target < x_rows) save<N>(x.at(target, col), load<N>(y.at(row, col)));
  }
};

// By run of equal ids: the sum over its tokens, in order.
template <class X, class D>
struct EmbeddingBackwardBody {
  Rows<X> dx;
  const int32_t *order, *starts, *ids;
  Rows<D> dtable;
  int64_t tokens, table_rows;
  bool accumulate;
  template <int N>
  __device__ void operator()(int64_t segment, int64_t col) const {
    const int64_t id = ids[segment], begin = max(starts[segment], 0);
    const int64_t end = min(static_cast<int64_t>(starts[segment + 1]), tokens);
    if (id < 0 || id >= table_rows) return;
    Pack<float, N> total{};
#pragma unroll 4
    for (int64_t i = begin; i < end; i++) {
      const int64_t place = order[i];
      if (place < 0 || place >= tokens) continue;
      const auto gradient = load_floats<N>(dx.at(place, col));
#pragma unroll
      for (int k = 0; k < N; k++) total[k] += gradient[k];
    }
    Pack<float, N> before{};
    if (accumulate) before = load_floats<N>(dtable.at(id, col));
#pragma unroll
    for (int k = 0; k < N; k++) total[k] = before[k] + total[k];
    save_floats<N>(dtable.at(id, col), total);
  }
};

void clear(const TensorView& view, cudaStream_t stream) {
  const size_t size = element_bytes(view.dtype);
  const auto rows = static_cast<size_t>(view.rows()), cols = static_cast<size_t>(view.cols());
  if (view.dense())
    check_cuda(cudaMemsetAsync(view.data, 0, rows * cols * size, stream), "clearing rows");
  else
    check_cuda(cudaMemset2DAsync(view.data, static_cast<size_t>(view.row_stride) * size, 0, cols * size, rows, stream),
               "clearing rows");
}

}  // namespace

Launch bind_embedding(Operands operands, cudaStream_t stream) {
  const TensorView ids = operands.dense("ids", kIndex);
  const TensorView table = operands.take("table", kActivation);
  const TensorView x = operands.matrix("x", kActivation, ids.count(), table.cols());
  operands.done();
  return dispatch_activation(table.dtype, [&]<class S>() {
    return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
      return [=](const PassFacts&) {
        launch_elements(stream, Extent(x.rows(), x.cols()), wide({table, x}),
                        EmbeddingBody<S, T>{ids.as<int32_t>(), Rows<S>(table), table.rows(), Rows<T>(x), false});
      };
    });
  });
}

Launch bind_embedding_backward(const EmbeddingBackward& embedding, Operands operands, cudaStream_t stream) {
  const TensorView dx = operands.take("dx", kActivation);
  const int64_t tokens = dx.rows(), cols = dx.cols();
  const int32_t* const order = operands.vector("token_order", kIndex, tokens).as<int32_t>();
  const int32_t* const starts = operands.vector("segment_starts", kIndex, tokens + 1).as<int32_t>();
  const int32_t* const ids = operands.vector("segment_ids", kIndex, tokens).as<int32_t>();
  const TensorView dtable = operands.take("dtable", kActivation);
  operands.expect(dtable.cols() == cols, "'dtable' is {}, expected {} columns", to_string(dtable.shape), cols);
  operands.done();
  return dispatch_activation(dx.dtype, [&]<class X>() {
    return dispatch_activation(dtable.dtype, [&]<class D>() -> Launch {
      return [=, accumulate = embedding.accumulate](const PassFacts& facts) {
        check(0 <= facts.segments && facts.segments <= tokens, "embedding_backward: {} segments of {} tokens",
              facts.segments, tokens);
        if (!accumulate) clear(dtable, stream);
        launch_elements(stream, Extent(facts.segments, cols), wide({dx, dtable}),
                        EmbeddingBackwardBody<X, D>{Rows<X>(dx), order, starts, ids, Rows<D>(dtable), tokens,
                                                    dtable.rows(), accumulate});
      };
    });
  });
}

Launch bind_gather_rows(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView rows = operands.dense("rows", kIndex);
  const TensorView y = operands.matrix("y", {x.dtype}, rows.count(), x.cols());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=](const PassFacts&) {
      launch_elements(stream, Extent(y.rows(), y.cols()), wide({x, y}),
                      EmbeddingBody<T, T>{rows.as<int32_t>(), Rows<T>(x), x.rows(), Rows<T>(y), true});
    };
  });
}

Launch bind_scatter_rows(Operands operands, cudaStream_t stream) {
  const TensorView y = operands.take("y", kActivation);
  const int32_t* const rows = operands.vector("rows", kIndex, y.rows()).as<int32_t>();
  const TensorView x = operands.take("x", {y.dtype});
  operands.expect(x.cols() == y.cols(), "'x' is {}, expected {} columns", to_string(x.shape), y.cols());
  operands.done();
  return dispatch_activation(y.dtype, [&]<class T>() -> Launch {
    return [=](const PassFacts&) {
      clear(x, stream);
      launch_elements(stream, Extent(y.rows(), y.cols()), wide({x, y}),
                      ScatterBody<T>{Rows<T>(y), rows, Rows<T>(x), x.rows()});
    };
  });
}

}  // namespace snug::cuda
