// Computes rotary position embedding (Su et al., arXiv:2104.09864) over halves of a head:
//   x1, x2 -> x1 cos - x2 sin, x2 cos + x1 sin
#include "backend/cuda/device.cuh"

namespace snug::cuda {
namespace {

constexpr int kMaxHalf = 256;

struct Frequencies {
  float f[kMaxHalf];
};

__global__ void rope_table_kernel(Rows<float> table, int64_t positions, int64_t half,
                                  const __grid_constant__ Frequencies frequencies, float magnitude) {
  const int64_t position = blockIdx.x;
  if (position >= positions) return;
  for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
    const double angle = static_cast<double>(static_cast<float>(position) * frequencies.f[i]);
    *table.at(position, i) = static_cast<float>(cos(angle)) * magnitude;
    *table.at(position, i + half) = static_cast<float>(sin(angle)) * magnitude;
  }
}

// Rotates a token in a block: a thread takes a group of N pairs, in every few heads.
template <int N, class T>
__global__ void rope_kernel(Rows<T> x, const int32_t* positions, Rows<float> table, int64_t table_rows, int heads,
                            int half, float sign) {
  const int64_t token = blockIdx.x;
  const int groups = half / N, together = static_cast<int>(blockDim.x) / groups;
  const int col = static_cast<int>(threadIdx.x) % groups * N, first = static_cast<int>(threadIdx.x) / groups;
  if (first >= together) return;
  const int32_t position = positions[token];
  Pack<float, N> cosine, sine;
  if (position >= 0 && position < table_rows) {
    cosine = load<N>(table.at(position, col));
    sine = load<N>(table.at(position, col + half));
  } else {
#pragma unroll
    for (int k = 0; k < N; k++) cosine[k] = sine[k] = __int_as_float(0x7fffffff);
  }
#pragma unroll 4
  for (int head = first; head < heads; head += together) {
    T* const pairs = x.at(token, int64_t{2} * head * half + col);
    auto one = load_floats<N>(pairs), two = load_floats<N>(pairs + half);
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float a = one[k], b = two[k], s = sign * sine[k];
      one[k] = a * cosine[k] - b * s;
      two[k] = b * cosine[k] + a * s;
    }
    save_floats<N>(pairs, one);
    save_floats<N>(pairs + half, two);
  }
}

}  // namespace

Launch bind_rope_table(const RopeTable& attrs, Operands operands, cudaStream_t stream) {
  const TensorView table = operands.take("table", {DType::F32});
  operands.expect(table.cols() == 2 * std::ssize(attrs.frequencies), "'table' has {} columns, expected {}",
                  table.cols(), 2 * std::ssize(attrs.frequencies));
  operands.expect(table.cols() <= 2 * kMaxHalf, "'table' has {} columns, at most {} are supported", table.cols(),
                  2 * kMaxHalf);
  operands.done();
  Frequencies frequencies{};
  std::ranges::copy(attrs.frequencies, frequencies.f);
  return [table, frequencies, magnitude = attrs.magnitude, stream](const RuntimeScalars&) {
    rope_table_kernel<<<static_cast<unsigned>(table.rows()), 64, 0, stream>>>(Rows<float>(table), table.rows(),
                                                                              table.cols() / 2, frequencies, magnitude);
    check_launch("rope_table");
  };
}

Launch bind_rope(const Rope& rope, Operands operands, cudaStream_t stream) {
  const int64_t dim = rope.dim;
  const TensorView x = operands.take("x", kActivation);
  operands.expect(dim > 0 && dim % 2 == 0, "heads of {} elements, expected an even number", dim);
  operands.expect(x.cols() % dim == 0, "'x' is {}, expected columns of heads of {}", to_string(x.shape), dim);
  const int32_t* const positions = operands.vector("positions", {DType::I32}, x.rows()).as<int32_t>();
  const TensorView table = operands.take("table", {DType::F32});
  operands.expect(table.cols() == dim, "'table' is {}, expected {} columns", to_string(table.shape), dim);
  operands.expect(dim <= 2 * kMaxHalf, "heads of {} elements, at most {} are supported", dim, 2 * kMaxHalf);
  operands.done();
  const bool groups = wide({x, table}) && dim / 2 % kWide == 0;
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_wide(groups, [&]<int N>() -> Launch {
      return [=](const RuntimeScalars&) {
        rope_kernel<N><<<static_cast<unsigned>(x.rows()), kThreads, 0, stream>>>(
            Rows<T>(x), positions, Rows<float>(table), table.rows(), static_cast<int>(x.cols() / dim),
            static_cast<int>(dim / 2), rope.backward ? -1.0f : 1.0f);
        check_launch("rope");
      };
    });
  });
}

}  // namespace snug::cuda
