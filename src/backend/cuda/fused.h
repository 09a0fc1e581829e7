// Kernels for ops that are made of others (program/op_call.h), which would write and read large matrices once more. For
// bf16, with sums in fp32 that are rounded once, in an order that shapes alone decide: the same bits in every run.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <span>

#include "backend/backend.h"

namespace snug::cuda {

// Of operands that expect.h found right. Nothing where there is no kernel for them on this device. A launch enqueues on
// its stream, allocates nothing and waits for nothing; errors as in check.h.
using MaybeLaunch = std::optional<Launch>;
MaybeLaunch bind_kernel(const AdaptedGemm& op, std::span<const TensorView> views, cudaStream_t stream);
MaybeLaunch bind_kernel(const AdapterBackward& op, std::span<const TensorView> views, cudaStream_t stream);
// What SwiGLU makes of the rounded products has its own kernels' bits.
MaybeLaunch bind_kernel(const SwiGluGemm& op, std::span<const TensorView> views, cudaStream_t stream);
MaybeLaunch bind_kernel(const SwiGluGemmBackward& op, std::span<const TensorView> views, cudaStream_t stream);

}  // namespace snug::cuda
