// Draws weights, dropout (Srivastava et al., JMLR 15, 2014) and noise on embeddings (NEFTune) from counted streams,
// with the CPU's bits.
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

template <class T>
struct EmbeddingNoiseBody {
  Rows<T> x;
  const int32_t* documents;
  int64_t count;  // of documents
  DeviceRandom random;
  uint64_t place;  // in the stream, of the first element
  int64_t cols;
  float alpha;  // over the root of cols
  template <int N>
  __device__ void operator()(int64_t row, int64_t col) const {
    const int64_t element = row * cols + col, token = element / cols;
    int64_t first = 0, end = count + 1;  // the first that begins behind the token
    while (first < end) {
      const int64_t middle = (first + end) / 2;
      if (documents[middle] <= token)
        first = middle + 1;
      else
        end = middle;
    }
    if (first == 0 || first > count) return;
    const float most = alpha / sqrtf(static_cast<float>(documents[first] - documents[first - 1]));
    uint32_t bits[N];
    random.bits<N>(place + static_cast<uint64_t>(element), bits);
    auto values = load_floats<N>(x.at(row, col));
#pragma unroll
    for (int k = 0; k < N; k++) values[k] += (static_cast<float>(bits[k] >> 8) * 0x1p-23f - 1.0f) * most;
    save_floats<N>(x.at(row, col), values);
  }
};

}  // namespace

Launch bind_random_fill(const RandomFill& fill, Operands operands, cudaStream_t stream) {
  const TensorView x = operands.dense("x", kActivation);
  operands.done();
  return dispatch_activation(x.dtype, [&]<class T>() -> Launch {
    return [=](const RuntimeScalars& runtime) {
      const DeviceRandom random(fill.seed, RandomPurpose::Initialisation, fill.stream);
      launch_elements(stream, Extent{x}, false,
                      RandomFillBody<T>{x.as<T>(), random, fill.distribution, fill.scale, fill.place(runtime.step)});
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

Launch bind_embedding_noise(const EmbeddingNoise& noise, Operands operands, cudaStream_t stream) {
  const auto of = embedding_noise_operands(operands);
  const int64_t cols = of.x.cols();
  const auto alpha = static_cast<float>(noise.alpha / std::sqrt(static_cast<double>(cols)));
  return dispatch_activation(of.x.dtype, [&]<class T>() -> Launch {
    return [=](const RuntimeScalars& runtime) {
      const DeviceRandom random(noise.seed, RandomPurpose::EmbeddingNoise, 0);
      const uint64_t place = at_step(runtime.step, static_cast<uint64_t>(runtime.tokens_before * cols));
      launch_elements(
          stream, Extent{of.x}, wide({of.x}),
          EmbeddingNoiseBody<T>{Rows<T>(of.x), of.documents, documents_of(runtime, of), random, place, cols, alpha});
    };
  });
}

}  // namespace snug::cuda
