#include "backend/cuda/check.h"

#include "backend/shortage.h"

namespace snug::cuda {

void fail(cudaError_t status, std::string_view what) {
  if (status != cudaErrorMemoryAllocation)
    device_error("{}: CUDA says {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
  cudaGetLastError();  // or a launch would report it
  size_t free = 0, total = 0;
  const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;  // unknown if there is no room for a context
  refuse_shortage(what, known ? std::optional<uint64_t>(free) : std::nullopt, "device_memory");
}

}  // namespace snug::cuda
