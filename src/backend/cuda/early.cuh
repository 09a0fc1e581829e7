// Kernels that begin before the one ahead of them in their stream has ended (CUDA Programming Guide, "Programmatic
// Dependent Launch"; on cards of 9.0 and newer).
#pragma once

#include "backend/cuda/bulk.cuh"
#include "backend/cuda/device.cuh"

namespace snug::cuda {

// The kernel that comes next may begin as soon as all blocks have called it, if it is one that was launched early.
__device__ inline void let_next_begin() { SNUG_BULK("griddepcontrol.launch_dependents;" ::: "memory"); }
// In a kernel that was launched early: until the one before it has ended, and what it wrote is seen.
__device__ inline void await_kernel_before() { SNUG_BULK("griddepcontrol.wait;" ::: "memory"); }

// Launches a kernel that needs nothing of the one before it, which lets it begin, and that awaits that one in every
// block: what comes after it in the stream would not otherwise.
template <class... Args>
void launch_early(void (*kernel)(Args...), unsigned blocks, int threads, int shared_bytes, cudaStream_t stream,
                  const char* what, const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), what);
}

}  // namespace snug::cuda
