// Declares kernels for composite ops (program/op_call.h), which would otherwise write and read large matrices once
// more. They are for bf16, with sums in fp32 that are rounded once, in an order that shapes alone decide: equal bits in
// every run.
#pragma once

#include <cuda_runtime_api.h>

#include <optional>
#include <span>

#include "backend/backend.h"

namespace snug::cuda {

// Return a launch for operands that expect.h has accepted; nothing if there is no kernel for them on this device. A
// launch enqueues on its stream, allocates nothing and waits for nothing; errors as in check.h.
using MaybeLaunch = std::optional<Launch>;
MaybeLaunch bind_kernel(const AdaptedGemm& op, std::span<const TensorView> views, cudaStream_t stream);
MaybeLaunch bind_kernel(const AdapterBackward& op, std::span<const TensorView> views, cudaStream_t stream);
// These compute SwiGLU of the rounded products with the bits of SwiGLU's own kernels.
MaybeLaunch bind_kernel(const SwiGluGemm& op, std::span<const TensorView> views, cudaStream_t stream);
MaybeLaunch bind_kernel(const SwiGluGemmBackward& op, std::span<const TensorView> views, cudaStream_t stream);
// These have the bits of SwiGLU's own kernels and of Quantize's.
MaybeLaunch bind_kernel(const SwiGluQuantize& op, std::span<const TensorView> views, cudaStream_t stream);
MaybeLaunch bind_kernel(const SwiGluBackwardQuantize& op, std::span<const TensorView> views, cudaStream_t stream);

}  // namespace snug::cuda
