// Takes the operands of ops of attention, as ops.h lists them, for every backend.
#pragma once

#include "backend/operands.h"

namespace snug {

// Holds the operands of Attention. `key_documents` are those of queries unless keys have their own; `sinks` is empty
// unless there are some.
struct AttentionOperands {
  TensorView q, k, v, documents, key_documents, sinks, out, lse;
};
AttentionOperands attention_operands(const Attention& attention, Operands& operands);

struct AttentionBackwardOperands {
  TensorView dout, q, k, v, out, lse, documents, key_documents, sinks, dq, dk, dv, dsinks;
};
AttentionBackwardOperands attention_backward_operands(const AttentionBackward& attention, Operands& operands);

struct CacheAppendOperands {
  TensorView k, v, cache;
};
CacheAppendOperands cache_append_operands(const CacheAppend& append, Operands& operands);

struct CachedAttentionOperands {
  TensorView q, cache, out;
};
CachedAttentionOperands cached_attention_operands(const CachedAttention& attention, Operands& operands);

// Returns how many documents a run has for this attention. Throws InternalError if they are more than there are bounds
// for.
int64_t documents_of(const Attention& attention, const RuntimeScalars& runtime, const TensorView& documents);

}  // namespace snug
