// Computes rotary position embedding (Su et al., arXiv:2104.09864) of pairs of a head's elements:
//   x1, x2 -> x1 cos - x2 sin, x2 cos + x1 sin
#include "backend/cuda/device.cuh"

namespace snug::cuda {
namespace {

constexpr int kMaxHalf = 256;

struct Frequencies {
  float f[kMaxHalf];
};

// Fills `count` of the cosines of a row, from `first` on, and as many sines, which lie `half` columns further on.
__global__ void rope_table_kernel(Rows<float> table, int64_t positions, int64_t first, int64_t count, int64_t half,
                                  const __grid_constant__ Frequencies frequencies, float attention_factor, float growth,
                                  int64_t growth_length) {
  const int64_t position = blockIdx.x;
  if (position >= positions) return;
  float factor = attention_factor;
  if (growth != 0)
    factor *=
        static_cast<float>(1 + static_cast<double>(growth) * log(1 + static_cast<double>(position / growth_length)));
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const double angle = static_cast<double>(static_cast<float>(position) * frequencies.f[i]);
    *table.at(position, first + i) = static_cast<float>(cos(angle)) * factor;
    *table.at(position, first + i + half) = static_cast<float>(sin(angle)) * factor;
  }
}

// Rotates a token in a block: a thread takes a group of N pairs, in every `together`-th head. The elements of a pair
// are `pairs` apart, or neighbours; those from `ends[axis]` on turn by the next axis's positions.
struct AxisEnds {
  int ends[2];
};
template <bool kInterleaved, int N, class T>
__global__ void rope_kernel(Rows<T> x, const int32_t* positions, AxisEnds axes, Rows<float> table, int64_t table_rows,
                            int heads, int dim, int pairs, float sign) {
  const int64_t token = blockIdx.x;
  const int groups = pairs / N, together = static_cast<int>(blockDim.x) / groups;
  const int pair = static_cast<int>(threadIdx.x) % groups * N, first = static_cast<int>(threadIdx.x) / groups;
  if (first >= together) return;
  const int axis = (pair >= axes.ends[0]) + (pair >= axes.ends[1]);
  const int32_t position = positions[axis * int64_t{gridDim.x} + token];
  Pack<float, N> cosine, sine;
  if (position >= 0 && position < table_rows) {
    cosine = load<N>(table.at(position, pair));
    sine = load<N>(table.at(position, pair + pairs));
  } else {
#pragma unroll
    for (int k = 0; k < N; k++) cosine[k] = sine[k] = __int_as_float(0x7fffffff);
  }
#pragma unroll 4
  for (int head = first; head < heads; head += together) {
    T* const one = x.at(token, int64_t{head} * dim + (kInterleaved ? 2 * pair : pair));
    T* const other = one + (kInterleaved ? N : pairs);
    auto low = load_floats<N>(one), high = load_floats<N>(other);
    // Returns element i of the 2 N that were loaded.
    const auto at = [&](int i) -> float& { return i < N ? low[i] : high[i - N]; };
#pragma unroll
    for (int k = 0; k < N; k++) {
      float &x1 = at(kInterleaved ? 2 * k : k), &x2 = at(kInterleaved ? 2 * k + 1 : k + N);
      const float a = x1, b = x2, s = sign * sine[k];
      x1 = a * cosine[k] - b * s;
      x2 = b * cosine[k] + a * s;
    }
    save_floats<N>(one, low);
    save_floats<N>(other, high);
  }
}

}  // namespace

Launch bind_rope_table(const RopeTable& attrs, Operands operands, cudaStream_t stream) {
  const TensorView table = operands.take("table", {DType::F32});
  operands.expect(table.cols() == 2 * std::ssize(attrs.frequencies), "'table' has {} columns, expected {}",
                  table.cols(), 2 * std::ssize(attrs.frequencies));
  operands.done();
  // A kernel takes as many frequencies as its parameters have room for.
  std::vector<Frequencies> parts(static_cast<size_t>(ceil_div(std::ssize(attrs.frequencies), kMaxHalf)));
  for (size_t i = 0; i < attrs.frequencies.size(); i++) parts[i / kMaxHalf].f[i % kMaxHalf] = attrs.frequencies[i];
  return [table, parts = std::move(parts), attention_factor = attrs.attention_factor, growth = attrs.growth,
          length = attrs.growth_length, stream](const RuntimeScalars&) {
    const int64_t half = table.cols() / 2;
    for (int64_t first = 0; first < half; first += kMaxHalf) {
      rope_table_kernel<<<static_cast<unsigned>(table.rows()), 64, 0, stream>>>(
          Rows<float>(table), table.rows(), first, std::min<int64_t>(kMaxHalf, half - first), half,
          parts[static_cast<size_t>(first / kMaxHalf)], attention_factor, growth, length);
      check_launch("rope_table");
    }
  };
}

Launch bind_rope(const Rope& rope, Operands operands, cudaStream_t stream) {
  const int64_t dim = rope.dim;
  const TensorView x = operands.take("x", kActivation);
  operands.expect(dim > 0 && x.cols() % dim == 0, "'x' is {}, expected columns of heads of {}", to_string(x.shape),
                  dim);
  const int64_t axes = rope.pairs.count();
  const int32_t* const positions = operands.matrix("positions", {DType::I32}, axes, x.rows()).as<int32_t>();
  const TensorView table = operands.take("table", {DType::F32});
  const int64_t most = std::min<int64_t>(dim, 2 * kMaxHalf), pairs = table.cols() / 2;
  operands.expect(table.cols() % 2 == 0 && table.cols() <= most,
                  "'table' is {}, expected an even number up to {} of columns", to_string(table.shape), most);
  const int64_t end = rope.pairs.end_of(static_cast<size_t>(axes) - 1);
  operands.expect(axes == 1 || end == pairs, "'table' is {}, expected columns of {} pairs", to_string(table.shape),
                  end);
  operands.done();
  // Without a further axis no pair is beyond the first one's.
  const AxisEnds ends{static_cast<int>(axes > 1 ? rope.pairs.end_of(0) : pairs),
                      static_cast<int>(axes > 2 ? rope.pairs.end_of(1) : pairs)};
  const bool groups = wide({x, table}) && dim % kWide == 0 && pairs % kWide == 0 && ends.ends[0] % kWide == 0 &&
                      ends.ends[1] % kWide == 0;
  const auto launch = [&]<bool kInterleaved, int N, class T>() -> Launch {
    return [=](const RuntimeScalars&) {
      rope_kernel<kInterleaved, N><<<static_cast<unsigned>(x.rows()), kThreads, 0, stream>>>(
          Rows<T>(x), positions, ends, Rows<float>(table), table.rows(), static_cast<int>(x.cols() / dim),
          static_cast<int>(dim), static_cast<int>(pairs), rope.backward ? -1.0f : 1.0f);
      check_launch("rope");
    };
  };
  return dispatch_activation(x.dtype, [&]<class T>() {
    return dispatch_wide(groups, [&]<int N>() -> Launch {
      return rope.interleaved ? launch.template operator()<true, N, T>() : launch.template operator()<false, N, T>();
    });
  });
}

}  // namespace snug::cuda
