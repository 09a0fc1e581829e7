// A linear and the SwiGLU after it, or before it on the way back, in one kernel, for what two would write and read once
// more. For bf16; sums as product_tiles.cuh has them, and of what they are rounded to SwiGLU's own kernels' bits.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <span>

#include "backend/backend.h"

namespace snug::cuda {

// Operands in the op's order, scratch (for who computes it otherwise) last. InternalError where they do not fit each
// other; nothing where there is no kernel for them on this device. A launch enqueues on its stream, allocates nothing
// and waits for nothing; errors as in check.h.
std::optional<Launch> bind_swiglu_kernel(const SwiGluGemm& op, std::span<const TensorView> views, cudaStream_t stream);
std::optional<Launch> bind_swiglu_kernel(const SwiGluGemmBackward& op, std::span<const TensorView> views,
                                         cudaStream_t stream);

}  // namespace snug::cuda
