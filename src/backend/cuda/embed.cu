// Picks rows by index from a table, and adds their gradients to it.
#include "backend/cuda/device.cuh"

namespace snug::cuda {
namespace {

__device__ inline float not_a_number() { return __int_as_float(0x7fffffff); }

constexpr int kRowsAtOnce = 2;  // rows of a thread, whose reads are under way together

// Computes x = the rows of `table` that `ids` name.
template <class S, class T>
struct Gather {
  const int32_t* ids;
  Rows<S> table;
  int64_t table_rows;
  Rows<T> x;
  int64_t rows, cols;
  bool none_is_zero;  // rows below 0 are zeros
};

template <int N, class S, class T>
__global__ void __launch_bounds__(kThreads) gather_kernel(Gather<S, T> op) {
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (col >= op.cols) return;
  for (int64_t first = int64_t{blockIdx.y} * kRowsAtOnce; first < op.rows; first += int64_t{gridDim.y} * kRowsAtOnce) {
    int64_t ids[kRowsAtOnce];
    Pack<float, N> values[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; i++) ids[i] = op.ids[min(first + i, op.rows - 1)];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; i++) {
      if (0 <= ids[i] && ids[i] < op.table_rows) {
        values[i] = load_floats<N>(op.table.at(ids[i], col));
      } else {
#pragma unroll
        for (int k = 0; k < N; k++) values[i][k] = ids[i] < 0 && op.none_is_zero ? 0.0f : not_a_number();
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; i++)
      if (first + i < op.rows) save_floats<N>(op.x.at(first + i, col), values[i]);
  }
}

// Returns the grid of threads that take kRowsAtOnce rows, and `wide` columns.
dim3 grid_of_rows(int64_t rows, int64_t cols, int wide) {
  return {blocks_of(cols, int64_t{wide} * kThreads), grid_rows(ceil_div(rows, kRowsAtOnce))};
}

template <class S, class T>
Launch gather(const TensorView& ids, const TensorView& table, const TensorView& x, bool none_is_zero,
              cudaStream_t stream) {
  const Gather<S, T> op{ids.as<int32_t>(), Rows<S>(table), table.rows(), Rows<T>(x), x.rows(), x.cols(), none_is_zero};
  return [op, stream, wide = wide({table, x})](const RuntimeScalars&) {
    if (op.rows == 0 || op.cols == 0) return;
    dispatch_wide(wide,
                  [&]<int N>() { gather_kernel<N><<<grid_of_rows(op.rows, op.cols, N), kThreads, 0, stream>>>(op); });
    check_launch("rows picked by index");
  };
}

template <class T>
struct ScatterBody {
  Rows<T> y;
  const int32_t* rows;
  Rows<T> x;
  int64_t x_rows;
  bool add;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    const int64_t target = rows[row];
    if (target < 0 || target >= x_rows) return;
    if (!add) return save<N>(x.at(target, col), load<N>(y.at(row, col)));
    auto sum = load_floats<N>(x.at(target, col));
    const auto added = load_floats<N>(y.at(row, col));
#pragma unroll
    for (int k = 0; k < N; k++) sum[k] += added[k];
    save_floats<N>(x.at(target, col), sum);
  }
};

// Sets dtable, or adds to it, by run of equal ids, of which `segments` begin at `starts`: the sum over its tokens
// (program/ops.h).
template <class X, class D>
struct SumOfRuns {
  Rows<X> dx;
  const int32_t *order, *starts, *ids;
  Rows<D> dtable;
  int64_t segments, tokens, cols, table_rows;
  bool accumulate;

  template <int N>
  __device__ Pack<float, N> gradient(int64_t i, int64_t end, int64_t col) const {
    const int64_t place = i < end ? order[i] : -1;
    return 0 <= place && place < tokens ? load_floats<N>(dx.at(place, col)) : Pack<float, N>{};
  }
  __device__ int64_t begin(int64_t run) const { return max(starts[run], 0); }
  __device__ int64_t end(int64_t run) const { return min(static_cast<int64_t>(starts[run + 1]), tokens); }
  template <int N>
  __device__ void put(int64_t id, int64_t col, Pack<float, N> total) const {
    Pack<float, N> before{};
    if (accumulate) before = load_floats<N>(dtable.at(id, col));
#pragma unroll
    for (int k = 0; k < N; k++) total[k] = before[k] + total[k];
    save_floats<N>(dtable.at(id, col), total);
  }
};

template <int N, class X, class D>
__global__ void __launch_bounds__(kThreads) sum_of_runs_kernel(SumOfRuns<X, D> op) {
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
  if (col >= op.cols) return;
  for (int64_t first = int64_t{blockIdx.y} * kRowsAtOnce; first < op.segments;
       first += int64_t{gridDim.y} * kRowsAtOnce) {
    int64_t ids[kRowsAtOnce], begin[kRowsAtOnce], end[kRowsAtOnce];
    Pack<float, N> of_first[kRowsAtOnce];  // most runs are of one token
#pragma unroll
    for (int s = 0; s < kRowsAtOnce; s++) {
      const int64_t segment = min(first + s, op.segments - 1);
      ids[s] = first + s < op.segments ? op.ids[segment] : -1;
      begin[s] = op.begin(segment);
      end[s] = op.end(segment);
    }
#pragma unroll
    for (int s = 0; s < kRowsAtOnce; s++) of_first[s] = op.template gradient<N>(begin[s], end[s], col);
#pragma unroll
    for (int s = 0; s < kRowsAtOnce; s++) {
      if (ids[s] < 0 || ids[s] >= op.table_rows || end[s] - begin[s] > kLongRun) continue;
      Pack<float, N> total{};
#pragma unroll
      for (int k = 0; k < N; k++) total[k] += of_first[s][k];
#pragma unroll 4
      for (int64_t i = begin[s] + 1; i < end[s]; i++) {
        const auto gradient = op.template gradient<N>(i, end[s], col);
#pragma unroll
        for (int k = 0; k < N; k++) total[k] += gradient[k];
      }
      op.template put<N>(ids[s], col, total);
    }
  }
}

// Takes runs of more than kLongRun tokens, each by blocks of kRunLanes lanes of kLaneGroups groups of columns. A run is
// found by the first multiple of kLongRun among its places, its slot; a block takes every gridDim.y-th slot.
constexpr int kLaneGroups = 8, kLongThreads = kRunLanes * kLaneGroups;
constexpr int64_t kSlotBlocks = 8;

// Returns the long run of a slot, or -1.
template <class X, class D>
__device__ int run_of_slot(const SumOfRuns<X, D>& op, int64_t slot) {
  const int64_t place = slot * kLongRun;
  if (place >= op.starts[op.segments]) return -1;
  int64_t first = 0, last = op.segments - 1;  // the last run that begins at or before the place is among these
  while (first < last) {
    const int64_t middle = (first + last + 1) / 2;
    if (op.starts[middle] <= place)
      first = middle;
    else
      last = middle - 1;
  }
  const int64_t begin = op.begin(first), id = op.ids[first];
  const bool found = op.end(first) - begin > kLongRun && begin <= place && place - begin < kLongRun;
  return found && 0 <= id && id < op.table_rows ? static_cast<int>(first) : -1;
}

template <int N, class X, class D>
__global__ void __launch_bounds__(kLongThreads) sum_of_long_runs_kernel(SumOfRuns<X, D> op, int64_t slots) {
  __shared__ Pack<float, N> sums[kRunLanes][kLaneGroups];
  __shared__ int runs[kLongThreads];  // of slots
  const int group = static_cast<int>(threadIdx.x) % kLaneGroups, lane = static_cast<int>(threadIdx.x) / kLaneGroups;
  const int64_t col = (int64_t{blockIdx.x} * kLaneGroups + group) * N, own = ceil_div(slots, int64_t{gridDim.y});
  for (int64_t first = 0; first < own; first += kLongThreads) {
    __syncthreads();
    const int64_t slot = blockIdx.y + (first + threadIdx.x) * gridDim.y;
    runs[threadIdx.x] = slot < slots ? run_of_slot(op, slot) : -1;
    __syncthreads();
    for (int64_t i = 0; i < min(own - first, int64_t{kLongThreads}); i++) {
      const int run = runs[i];
      if (run < 0) continue;
      const int64_t end = op.end(run);
      Pack<float, N> total{};
      if (col < op.cols) {
#pragma unroll 4
        for (int64_t place = op.begin(run) + lane; place < end; place += kRunLanes) {
          const auto gradient = op.template gradient<N>(place, end, col);
#pragma unroll
          for (int k = 0; k < N; k++) total[k] += gradient[k];
        }
      }
      sums[lane][group] = total;
      for (int half = kRunLanes / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane >= half) continue;
#pragma unroll
        for (int k = 0; k < N; k++) sums[lane][group][k] += sums[lane + half][group][k];
      }
      if (lane == 0 && col < op.cols) op.template put<N>(op.ids[run], col, sums[0][group]);
      __syncthreads();
    }
  }
}

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
    return dispatch_activation(x.dtype,
                               [&]<class T>() -> Launch { return gather<S, T>(ids, table, x, false, stream); });
  });
}

Launch bind_embedding_backward(const EmbeddingBackward& embedding, Operands operands, cudaStream_t stream) {
  const auto of = embedding_backward_operands(operands);
  const TensorView dx = of.dx, dtable = of.dtable;
  const int64_t tokens = dx.rows(), cols = dx.cols();
  const int32_t *const order = of.order, *const starts = of.starts, *const ids = of.ids;
  return dispatch_activation(dx.dtype, [&]<class X>() {
    return dispatch_activation(dtable.dtype, [&]<class D>() -> Launch {
      return [=](const RuntimeScalars& runtime) {
        const int64_t segments = segments_of(embedding, runtime, tokens);
        if (!embedding.accumulate) clear(dtable, stream);
        if (segments == 0 || cols == 0) return;
        const SumOfRuns<X, D> op{Rows<X>(dx), order,  starts, ids,           Rows<D>(dtable),
                                 segments,    tokens, cols,   dtable.rows(), embedding.accumulate};
        dispatch_wide(wide({dx, dtable}), [&]<int N>() {
          sum_of_runs_kernel<N><<<grid_of_rows(op.segments, cols, N), kThreads, 0, stream>>>(op);
          if (tokens <= kLongRun) return;
          const int64_t slots = ceil_div(tokens, kLongRun);
          const dim3 grid(blocks_of(cols, int64_t{kLaneGroups} * N),
                          static_cast<unsigned>(std::min(slots, kSlotBlocks)));
          sum_of_long_runs_kernel<N><<<grid, kLongThreads, 0, stream>>>(op, slots);
        });
        check_launch("an embedding's gradient");
      };
    });
  });
}

Launch bind_gather_rows(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kActivation);
  const TensorView rows = operands.dense("rows", kIndex);
  const TensorView y = operands.matrix("y", {x.dtype}, rows.count(), x.cols());
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch { return gather<T, T>(rows, x, y, true, stream); });
}

Launch bind_scatter_rows(const ScatterRows& scatter, Operands operands, cudaStream_t stream) {
  const auto of = scatter_rows_operands(operands);
  const TensorView y = of.y, x = of.x;
  const int32_t* const rows = of.rows;
  return dispatch_activation(y.dtype, [&]<class T>() -> Launch {
    return [=, how = scatter.how](const RuntimeScalars&) {
      if (how == Scatter::OverZeros) clear(x, stream);
      launch_elements(stream, Extent(y.rows(), y.cols()), wide({x, y}),
                      ScatterBody<T>{Rows<T>(y), rows, Rows<T>(x), x.rows(), how == Scatter::Add});
    };
  });
}

}  // namespace snug::cuda
