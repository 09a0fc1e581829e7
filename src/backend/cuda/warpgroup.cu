#include "backend/cuda/warpgroup.cuh"

namespace snug::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ const bool has_warpgroups = true;
#else
__device__ const bool has_warpgroups = false;
#endif

}  // namespace

bool warpgroups() {
  bool has = false;
  check_cuda(cudaMemcpyFromSymbol(&has, has_warpgroups, sizeof(has)), "warpgroups");
  return has;
}

}  // namespace snug::cuda
