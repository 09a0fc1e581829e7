// Draws weights and dropout (Srivastava et al., JMLR 15, 2014) from counted streams, with the CPU's bits.
#include <numbers>

#include "backend/cuda/device.cuh"

namespace snug::cuda {
namespace {

template <class T>
struct RandomFillBody {
  T* x;
  DeviceRandom random;
  Distribution distribution;
  float scale;
  uint64_t first;

  __device__ float normal(uint64_t index) const {
    const uint64_t even = index & ~uint64_t{1};
    const double radius = sqrt(-2.0 * log((static_cast<double>(random.bits(even)) + 0.5) * 0x1p-32));
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(random.bits(even + 1)) * 0x1p-32;
    return static_cast<float>(radius * (index % 2 == 0 ? cos(angle) : sin(angle)));
  }
  template <int N>
  __device__ void operator()(int64_t, int64_t i) const {
    const uint64_t place = first + static_cast<uint64_t>(i);
    float value = scale;
    if (distribution == Distribution::Normal) value = scale * normal(place);
    if (distribution == Distribution::Uniform)
      value = scale * (2.0f * (static_cast<float>(random.bits(place) >> 8) * 0x1p-24f) - 1.0f);
    store(x[i], value);
  }
};

template <class T>
struct DropoutBody {
  Rows<T> x, y;
  DeviceRandom random;
  uint64_t place;  // in the stream, of the first element
  int64_t cols;
  uint32_t least;
  float scale;
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    uint32_t bits[N];
    random.bits<N>(place + static_cast<uint64_t>(row * cols + col), bits);
    auto values = load_floats<N>(x.at(row, col));
#pragma unroll
    for (int k = 0; k < N; k++) values[k] = (bits[k] >> 8) >= least ? values[k] * scale : 0.0f;
    save_floats<N>(y.at(row, col), values);
  }
};

}  // namespace

Launch bind_random_fill(const RandomFill& fill, Operands operands, cudaStream_t stream) {
  const TensorView x = operands.dense("x", kActivation);
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=](const RuntimeScalars&) {
      const DeviceRandom random(fill.seed, RandomPurpose::Initialisation, fill.stream);
      launch_elements(stream, Extent{x}, false,
                      RandomFillBody<T>{x.as<T>(), random, fill.distribution, fill.scale, fill.first});
    };
  });
}

Launch bind_dropout(const Dropout& dropout, Operands operands, cudaStream_t stream) {
  const auto of = dropout_operands(dropout, operands);
  const TensorView x = of.x, y = of.y;
  const uint32_t least = of.least;
  const float scale = of.scale;
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=](const RuntimeScalars& runtime) {
      const DeviceRandom random(dropout.seed, RandomPurpose::Dropout, dropout.stream);
      const uint64_t place = at_step(runtime.step, static_cast<uint64_t>(runtime.first_token * x.cols()));
      launch_elements(stream, Extent{x, y}, wide({x, y}),
                      DropoutBody<T>{Rows<T>(x), Rows<T>(y), random, place, x.cols(), least, scale});
    };
  });
}

}  // namespace snug::cuda
