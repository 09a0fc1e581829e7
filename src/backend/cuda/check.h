// Errors of the CUDA runtime as ours.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/error.h"

namespace snug::cuda {

inline void check_cuda(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) [[unlikely]]
    device_error("{}: CUDA says {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

// After a kernel's launch.
inline void check_launch(std::string_view kernel) { check_cuda(cudaGetLastError(), kernel); }

}  // namespace snug::cuda
