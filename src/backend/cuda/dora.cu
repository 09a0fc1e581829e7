// Computes what adapters with trained norms of rows (DoRA) have beside their products.
#include "backend/cuda/device.cuh"

namespace snug::cuda {
namespace {

constexpr int kAcross = 32, kDown = 16;  // a block's threads where sums go down columns

// Returns the norm of a row, in all threads of a block of kThreads: thread t adds elements t, t + kThreads, ..., then
// the threads' sums are added pairwise.
template <class T>
__device__ double norm_of_row(const T* x, int64_t n) {
  __shared__ double sums[kThreads];
  double squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const double value = to_float(x[i]);
    squares += value * value;
  }
  sums[threadIdx.x] = squares;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  const double norm = sqrt(sums[0]);
  __syncthreads();
  return norm;
}

template <class T>
__global__ void __launch_bounds__(kThreads) row_norms_kernel(Rows<T> x, int64_t rows, int64_t n, float* norms) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const double norm = norm_of_row(x.at(row, 0), n);
    if (threadIdx.x == 0) norms[row] = static_cast<float>(norm);
  }
}

__global__ void __launch_bounds__(kThreads)
    set_row_norms_kernel(Rows<float> x, int64_t rows, int64_t n, const float* magnitudes) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const double norm = norm_of_row(x.at(row, 0), n);
    const double factor = norm > 0 ? magnitudes[row] / norm : 1;
    for (int64_t i = threadIdx.x; i < n; i += kThreads)
      *x.at(row, i) = static_cast<float>(static_cast<double>(*x.at(row, i)) * factor);
  }
}

// Gives each row to one thread, which adds in the CPU's order.
template <class B, class C>
__global__ void __launch_bounds__(kThreads)
    adapted_norms_kernel(Rows<float> wa, Rows<float> aa, Rows<B> b, const float* norms, const float* initial,
                         const C* change, Rows<float> factors, int64_t rows, int64_t rank, double scale) {
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= rows) return;
  double along = 0, own = 0;
  for (int64_t i = 0; i < rank; i++) {
    const double left = to_float(*b.at(row, i));
    double inner = 0;
    for (int64_t j = 0; j < rank; j++) inner += static_cast<double>(*aa.at(i, j)) * to_float(*b.at(row, j));
    along += left * *wa.at(row, i);
    own += left * inner;
  }
  const double norm = norms[row];
  const double square = norm * norm + 2 * scale * along + scale * scale * own;
  const double m = static_cast<double>(initial[row]) + static_cast<double>(to_float(change[row]));
  *factors.at(0, row) = square > 0 ? static_cast<float>(m / sqrt(square)) : 1.0f;
  *factors.at(1, row) = square > 0 ? static_cast<float>(1 / sqrt(square)) : 0.0f;
}

// Says where in the factors a column's stand.
struct FactorOf {
  int64_t begin[3], end[3];
  // Returns -1 for a column of no part.
  __device__ int64_t operator()(int64_t col) const {
    int64_t row = 0;
#pragma unroll
    for (int i = 0; i < 3; i++) {
      if (col >= begin[i] && col < end[i]) return row + col - begin[i];
      row += end[i] - begin[i];
    }
    return -1;
  }
};
FactorOf factor_of(const AdaptedParts& parts) {
  FactorOf of{};
  for (size_t i = 0; i < parts.begin.size(); i++)
    if (parts.end[i] > parts.begin[i]) of.begin[i] = parts.begin[i], of.end[i] = parts.end[i];
  return of;
}

template <class T>
struct ScaleColumnsBody {
  Rows<T> z, c, y;
  const float* factors;
  const T* bias;  // null for none
  FactorOf factor_of;
  bool addend;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    auto values = load_floats<N>(z.at(row, col));
    Pack<float, N> added{};
    if (addend) added = load_floats<N>(c.at(row, col));
#pragma unroll
    for (int k = 0; k < N; k++) {
      const int64_t at = factor_of(col + k);
      if (at >= 0) values[k] *= factors[at];
      if (bias) values[k] += to_float(bias[col + k]);
      if (addend) values[k] += added[k];
    }
    save_floats<N>(y.at(row, col), values);
  }
};

// Gives 32 columns to a block: thread (l, r) takes rows r, r + kDown, ... of column l, then the threads' sums are added
// in their order.
template <class T, class D>
__global__ void __launch_bounds__(kAcross* kDown)
    scale_columns_backward_kernel(Rows<T> dy, Rows<T> z, Rows<float> factors, Rows<T> dz, D* dm, int64_t rows,
                                  int64_t cols, FactorOf factor_of) {
  __shared__ double sums[kDown][kAcross];
  const int lane = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
  const int64_t col = int64_t{blockIdx.x} * kAcross + lane, at = col < cols ? factor_of(col) : -1;
  double sum = 0;
  if (col < cols) {
    const float factor = at >= 0 ? *factors.at(0, at) : 1.0f;
    for (int64_t row = down; row < rows; row += kDown) {
      const float d = to_float(*dy.at(row, col));
      sum += static_cast<double>(d) * static_cast<double>(to_float(*z.at(row, col)));
      store(*dz.at(row, col), d * factor);
    }
  }
  sums[down][lane] = sum;
  __syncthreads();
  if (down > 0 || at < 0) return;
  for (int i = 1; i < kDown; i++) sum += sums[i][lane];
  store(dm[at], static_cast<float>(sum * static_cast<double>(*factors.at(1, at))));
}

}  // namespace

Launch bind_row_norms(Operands operands, cudaStream_t stream) {
  const TensorView x = operands.take("x", kActivation);
  float* const norms = operands.vector("norms", {DType::F32}, x.rows()).as<float>();
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=](const RuntimeScalars&) {
      if (x.rows() == 0) return;
      row_norms_kernel<<<grid_rows(x.rows()), kThreads, 0, stream>>>(Rows<T>(x), x.rows(), x.cols(), norms);
      check_launch("row_norms");
    };
  });
}

Launch bind_set_row_norms(Operands operands, cudaStream_t stream) {
  const auto of = set_row_norms_operands(operands);
  return [=](const RuntimeScalars&) {
    if (of.x.rows() == 0) return;
    set_row_norms_kernel<<<grid_rows(of.x.rows()), kThreads, 0, stream>>>(Rows<float>(of.x), of.x.rows(), of.x.cols(),
                                                                          of.magnitudes);
    check_launch("set_row_norms");
  };
}

Launch bind_adapted_norms(const AdaptedNorms& attrs, Operands operands, cudaStream_t stream) {
  const auto of = adapted_norms_operands(operands);
  return dispatch_activation(of.b.dtype, [&]<class B>() {
    return dispatch_activation(of.change.dtype, [&]<class C>() -> Launch {
      return [=, scale = static_cast<double>(attrs.scale)](const RuntimeScalars&) {
        const int64_t rows = of.b.rows();
        if (rows == 0) return;
        adapted_norms_kernel<<<blocks_of(rows, kThreads), kThreads, 0, stream>>>(
            Rows<float>(of.wa), Rows<float>(of.aa), Rows<B>(of.b), of.norms, of.initial, of.change.template as<C>(),
            Rows<float>(of.factors), rows, of.b.cols(), scale);
        check_launch("adapted_norms");
      };
    });
  });
}

Launch bind_scale_columns(const ScaleColumns& scale, Operands operands, cudaStream_t stream) {
  const auto of = scale_columns_operands(scale, operands);
  const TensorView z = of.z, c = scale.addend ? of.c : of.z, y = of.y;
  return dispatch_activation(z.dtype, [&]<class T>() -> Launch {
    const ScaleColumnsBody<T> body{Rows<T>(z),
                                   Rows<T>(c),
                                   Rows<T>(y),
                                   of.factors.as<float>(),
                                   scale.bias ? of.bias.as<T>() : nullptr,
                                   factor_of(scale.parts),
                                   scale.addend};
    return [=](const RuntimeScalars&) { launch_elements(stream, Extent(z.rows(), z.cols()), wide({z, c, y}), body); };
  });
}

Launch bind_scale_columns_backward(const ScaleColumnsBackward& scale, Operands operands, cudaStream_t stream) {
  const auto of = scale_columns_backward_operands(scale, operands);
  return dispatch_activation(of.dy.dtype, [&]<class T>() {
    return dispatch_activation(of.dm.dtype, [&]<class D>() -> Launch {
      return [=, at = factor_of(scale.parts)](const RuntimeScalars&) {
        const int64_t rows = of.dy.rows(), cols = of.dy.cols();
        if (cols == 0) return;
        scale_columns_backward_kernel<<<blocks_of(cols, kAcross), kAcross * kDown, 0, stream>>>(
            Rows<T>(of.dy), Rows<T>(of.z), Rows<float>(of.factors), Rows<T>(of.dz), of.dm.template as<D>(), rows, cols,
            at);
        check_launch("scale_columns_backward");
      };
    });
  });
}

}  // namespace snug::cuda
