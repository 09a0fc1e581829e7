// What follows the last layer: final norm, projection to the vocabulary, and cross-entropy, in chunks of rows so
// that the logits of a pass are never held at once. Rows without a loss target are dropped before the norm; chunks
// beyond a pass's loss rows are skipped. It is no layer: each chunk's gradient is made beside its loss.
#pragma once

#include "model/builder.h"

namespace snug {

struct HeadParams {
  Norm norm;
  ParamId projection = kNoParam;
  float logits_factor = 1, logits_cap = 0;
  int64_t chunk_rows = 1024;  // numerics: a weight gradient is summed chunk by chunk, and rounded after each
};

// Writes the sum of the pass's losses to `loss` [1] fp32 (adding to what is there if `accumulate`).
void head_loss(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch, const Operand& loss,
               bool accumulate);

// The same with the gradients of norm and projection, where trained, and of x.
void head_loss_and_gradient(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch, const Operand& loss,
                            bool accumulate);

// Logits of one token, [1, V] fp32; `row` [1] int32: which.
Operand head_logits(Builder& b, Value x, const HeadParams& head, const Operand& row);

}  // namespace snug
