// Kernels for low-rank adapters (Hu et al., arXiv:2106.09685), for what products by the library would read or write
// once more. For bf16, with sums in fp32 that are rounded once, in an order that shapes alone decide: the same bits in
// every run.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <span>

#include "backend/backend.h"

namespace snug::cuda {

// Operands in the op's order, scratch last: adapter_backward_scratch_bytes() (facts.h), for a product none that is
// used. Their shapes fit each other. Nothing where there is no kernel for them on this device. A launch enqueues on its
// stream, allocates nothing and waits for nothing; errors as in check.h.
std::optional<Launch> bind_adapter_kernel(const AdaptedGemm& op, std::span<const TensorView> views,
                                          cudaStream_t stream);
std::optional<Launch> bind_adapter_kernel(const AdapterBackward& op, std::span<const TensorView> views,
                                          cudaStream_t stream);

}  // namespace snug::cuda
