// Launches of blocks in clusters, which reach into each other's shared memory (CUDA Programming Guide, "Thread Block
// Clusters"; on cards of 9.0 and newer).
#pragma once

#include "backend/cuda/device.cuh"

namespace snug::cuda {

template <class... Args>
class ClusterKernel {
 public:
  // `cluster`: in blocks. Until it was made, the kernel may not have so much shared memory.
  ClusterKernel(void (*kernel)(Args...), const dim3& cluster, int threads, int shared_bytes)
      : kernel_(kernel), cluster_(cluster), threads_(threads), shared_bytes_(shared_bytes) {
    allow_shared(kernel, shared_bytes);
  }

  // Clusters that the device runs at the same time.
  int at_once() const {
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = configured(cluster_, nullptr, attribute);
    int clusters = 0;
    check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel_, &config), "a kernel's clusters");
    return clusters;
  }

  // `grid`: in blocks.
  void launch(const dim3& grid, cudaStream_t stream, const char* what, const Args&... args) const {
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = configured(grid, stream, attribute);
    check_cuda(cudaLaunchKernelEx(&config, kernel_, args...), what);
  }

 private:
  // `attribute` must outlive the result.
  cudaLaunchConfig_t configured(const dim3& grid, cudaStream_t stream, cudaLaunchAttribute& attribute) const {
    attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {cluster_.x, cluster_.y, cluster_.z};
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = static_cast<unsigned>(threads_);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes_);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return config;
  }

  void (*kernel_)(Args...);
  dim3 cluster_;
  int threads_, shared_bytes_;
};

}  // namespace snug::cuda
