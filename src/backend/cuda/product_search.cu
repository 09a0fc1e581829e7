#include "backend/cuda/product_search.h"

#include "backend/cuda/device.cuh"

namespace snug::cuda {
namespace {

constexpr unsigned kBlocks = 1024;

template <class T>
struct FillBody {
  Rows<T> to;
  DeviceRandom random;
  template <int>
  __device__ void operator()(int64_t row, int64_t col) const {
    const uint32_t bits = random.bits(static_cast<uint64_t>(row * to.stride + col));
    store(*to.at(row, col), static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-32f);
  }
};

// Fills with fp8 codes, except those of NaN.
struct FillCodesBody {
  Rows<uint8_t> to;
  DeviceRandom random;
  template <int>
  __device__ void operator()(int64_t row, int64_t col) const {
    const uint32_t code = random.bits(static_cast<uint64_t>(row * to.stride + col)) & 0xffu;
    *to.at(row, col) = static_cast<uint8_t>((code & 0x7fu) == 0x7fu ? code - 1 : code);
  }
};

// Adds integers, whose sum does not depend on order.
template <class Bits>
__global__ void __launch_bounds__(kThreads)
    digest_kernel(const Bits* data, int64_t stride, int64_t rows, int64_t cols, unsigned long long* digest) {
  unsigned long long sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < rows * cols; i += int64_t{kBlocks} * kThreads)
    sum += static_cast<unsigned long long>(data[i / cols * stride + i % cols]) *
           (2 * static_cast<unsigned long long>(i) + 1);
  atomicAdd(digest, sum);
}

}  // namespace

void fill_with_numbers(const TensorView& view, uint32_t stream_number, cudaStream_t stream) {
  const DeviceRandom random(0, RandomPurpose::Initialisation, stream_number);
  const Extent extent(view.rows(), view.cols());
  if (view.dtype == DType::U8)
    return launch_elements(stream, extent, false, FillCodesBody{Rows<uint8_t>(view), random});
  dispatch_activation(view.dtype, [&]<class T>() {
    launch_elements(stream, extent, false, FillBody<T>{Rows<T>(view), random});
  });
}

uint64_t digest_of(const TensorView& view, std::byte* scratch, cudaStream_t stream) {
  auto* const digest = reinterpret_cast<unsigned long long*>(scratch);
  check_cuda(cudaMemsetAsync(digest, 0, sizeof(*digest), stream), "a product's digest");
  const auto start = [&]<class Bits>(const Bits* data) {
    digest_kernel<<<kBlocks, kThreads, 0, stream>>>(data, view.row_stride, view.rows(), view.cols(), digest);
  };
  if (view.dtype == DType::F32)
    start(reinterpret_cast<const uint32_t*>(view.data));
  else
    start(reinterpret_cast<const uint16_t*>(view.data));
  check_launch("a product's digest");
  unsigned long long value = 0;
  check_cuda(cudaMemcpyAsync(&value, digest, sizeof(value), cudaMemcpyDefault, stream), "a product's digest");
  check_cuda(cudaStreamSynchronize(stream), "a product's digest");
  return value;
}

double seconds_of(cudaStream_t stream, int times, const std::function<void()>& launch) {
  cudaEvent_t begin{}, end{};
  check_cuda(cudaEventCreate(&begin), "an event");
  check_cuda(cudaEventCreate(&end), "an event");
  check_cuda(cudaEventRecord(begin, stream), "an event");
  for (int i = 0; i < times; i++) launch();
  check_cuda(cudaEventRecord(end, stream), "an event");
  check_cuda(cudaEventSynchronize(end), "a product");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "an event");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return 1e-3 * milliseconds / times;
}

}  // namespace snug::cuda
