// Turns errors of the CUDA runtime into snug's.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/error.h"

namespace snug::cuda {

// Throws CapacityError if the card has no memory left, DeviceError for everything else. After most of the latter the
// context is lost: every later call fails in this way, and returns at once.
[[noreturn]] void fail(cudaError_t status, std::string_view what);

inline void check_cuda(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) [[unlikely]]
    fail(status, what);
}

// Checks a kernel's launch.
inline void check_launch(std::string_view kernel) { check_cuda(cudaGetLastError(), kernel); }

}  // namespace snug::cuda
