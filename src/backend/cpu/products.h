// Declares products and attention of the CPU backend: backend.cpp binds them, and facts.cpp sizes their scratch.
//
// Operands are in program/ops.h's order, with the scratch last if the matching *_scratch_bytes is not 0. Results do not
// depend on the number of threads. `bind_*` throw InternalError if the operands are not what the kind says or the
// scratch is smaller than needed; a launch allocates nothing.
#pragma once

#include <span>

#include "backend/backend.h"
#include "backend/operands.h"

namespace snug::cpu {

class MatmulCalls;  // matmul.h

Launch bind_gemm(const Gemm& gemm, std::span<const TensorView> views, MatmulCalls& calls);
Launch bind_fp8_gemm(const Fp8Gemm& gemm, std::span<const TensorView> views, MatmulCalls& calls);
Launch bind_attention(const Attention& attention, Operands operands);
Launch bind_attention_backward(const AttentionBackward& attention, Operands operands);
Launch bind_cache_append(const CacheAppend& append, Operands operands);
Launch bind_cached_attention(const CachedAttention& attention, Operands operands);

// Return bytes of scratch, from the operands without it. They follow from shapes and, for some products, from what the
// library asks for and the number of threads (threads() when asked).
uint64_t gemm_scratch_bytes(const Gemm& gemm, std::span<const Operand> operands);
// Returns the scratch of the product inside another op.
using GemmScratch = std::function<uint64_t(const Gemm& gemm, std::span<const Operand> operands)>;
uint64_t fp8_gemm_scratch_bytes(std::span<const Operand> operands, const GemmScratch& gemm_scratch);
uint64_t attention_scratch_bytes(const Attention& attention, std::span<const Operand> operands);
uint64_t attention_backward_scratch_bytes(const AttentionBackward& attention, std::span<const Operand> operands);
uint64_t cache_append_scratch_bytes(const CacheAppend& append, std::span<const Operand> operands);
uint64_t cached_attention_scratch_bytes(const CachedAttention& attention, std::span<const Operand> operands);

}  // namespace snug::cpu
