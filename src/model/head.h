// The head follows the last layer: final norm, projection to the vocabulary, and cross-entropy, in chunks of rows, so
// that the logits of a pass never exist together. Rows without a loss target are dropped before the norm; chunks
// beyond a pass's loss rows are skipped. It is no layer: each chunk's gradient is made beside its loss.
#pragma once

#include "model/builder.h"

namespace snug {

struct HeadParams {
  Norm norm;
  ParamId projection = kNoParam;
  float logits_factor = 1, logits_cap = 0;
  int64_t chunk_rows = 1024;  // decides results, as a weight gradient is summed chunk by chunk and rounded after each
};

// Writes the sum of the pass's losses to `loss` [1] fp32 (adding to what is there if `accumulate`).
void head_loss(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch, const Operand& loss,
               bool accumulate);

// Does what head_loss() does, and emits the gradients of norm and projection, where they are trained, and of x.
void head_loss_and_gradient(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch, const Operand& loss,
                            bool accumulate);

// Returns the logits of one token, [1, V] fp32; `row` [1] int32 says which.
Operand head_logits(Builder& b, Value x, const HeadParams& head, const Operand& row);

}  // namespace snug
