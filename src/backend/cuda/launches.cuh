// Launches kernels in ways that a grid and a block alone do not say, on cards of 9.0 and newer: blocks in clusters,
// which reach into each other's shared memory (CUDA Programming Guide, "Thread Block Clusters"), and kernels that begin
// before the one ahead of them in their stream has ended ("Programmatic Dependent Launch").
#pragma once

#include "backend/cuda/bulk.cuh"
#include "backend/cuda/device.cuh"

namespace snug::cuda {

// Returns the configuration of a launch; `attribute` must outlive it.
inline cudaLaunchConfig_t launch_config(const dim3& grid, int threads, int shared_bytes, cudaStream_t stream,
                                        cudaLaunchAttribute& attribute) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return config;
}

template <class... Args>
class ClusterKernel {
 public:
  // `cluster` is in blocks. Until this object is made, the kernel may not have that much shared memory.
  ClusterKernel(void (*kernel)(Args...), const dim3& cluster, int threads, int shared_bytes)
      : kernel_(kernel), cluster_(cluster), threads_(threads), shared_bytes_(shared_bytes) {
    allow_shared(kernel, shared_bytes);
  }

  // Returns how many clusters the device holds at a time.
  int resident_clusters() const {
    cudaLaunchAttribute attribute = in_clusters();
    const cudaLaunchConfig_t config = launch_config(cluster_, threads_, shared_bytes_, nullptr, attribute);
    int clusters = 0;
    check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel_, &config), "a kernel's clusters");
    return clusters;
  }

  // Launches the kernel; `grid` is in blocks.
  void launch(const dim3& grid, cudaStream_t stream, const char* what, const Args&... args) const {
    cudaLaunchAttribute attribute = in_clusters();
    const cudaLaunchConfig_t config = launch_config(grid, threads_, shared_bytes_, stream, attribute);
    check_cuda(cudaLaunchKernelEx(&config, kernel_, args...), what);
  }

 private:
  cudaLaunchAttribute in_clusters() const {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster_.x, cluster_.y, cluster_.z};
    return attribute;
  }

  void (*kernel_)(Args...);
  dim3 cluster_;
  int threads_, shared_bytes_;
};

// Lets the next kernel begin as soon as all blocks have called this, if it was launched early.
__device__ inline void let_next_begin() { SNUG_BULK("griddepcontrol.launch_dependents;" ::: "memory"); }
// Waits, in a kernel that was launched early, until the one before it has ended, and its writes are seen.
__device__ inline void await_kernel_before() { SNUG_BULK("griddepcontrol.wait;" ::: "memory"); }

// Launches a kernel that the one before it lets begin, and that awaits that one in every block before it reads what that
// has written: what comes after it in the stream awaits both by that.
template <class... Args>
void launch_early(void (*kernel)(Args...), const dim3& grid, int threads, int shared_bytes, cudaStream_t stream,
                  const char* what, const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = launch_config(grid, threads, shared_bytes, stream, attribute);
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), what);
}

}  // namespace snug::cuda
