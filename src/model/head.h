// The head follows the last layer: final norm, projection to the vocabulary, and cross-entropy, in chunks of rows, so
// that the logits of a pass never exist together. Rows without a loss target are dropped before the norm; chunks
// beyond a pass's loss rows are skipped. It is no layer: each chunk's gradient is made beside its loss.
#pragma once

#include "model/builder.h"

namespace snug {

// Says how a row is set against a teacher's, as Distillation (program/loss_ops.h) has it.
struct DistanceParams {
  float temperature = 1, beta = 0, share = 1;
};

struct HeadParams {
  Norm norm;
  ParamId projection = kNoParam;
  float logits_factor = 1, logits_cap = 0;
  bool fp32_logits = false;   // else they are of the products' dtype
  int64_t chunk_rows = 1024;  // decides results, as a weight gradient is summed chunk by chunk and rounded after each
  bool scores = false;        // the projection has one row: a loss row has a score instead of logits
  float smoothing = 0, z_loss = 0;  // CrossEntropy's, of what is trained on; what head_losses() returns has neither
  DistanceParams distance{};
};

// Returns the cross-entropy of each of the pass's loss rows, [T] fp32: what its log-probability is with its sign
// changed, times the batch's weight; or the score of each.
Operand head_losses(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch);

// Holds what an objective makes of the cross-entropies of rows: the weight of each row's gradient, and its part of the
// loss, both [T] fp32.
struct RowWeights {
  Operand weights, losses;
};

// Writes the sum of the pass's losses to `loss` [1] fp32 (adding to what is there if `accumulate`), and emits the
// gradients of norm and projection, where they are trained, and of x. With `weigh` the logits are made twice: it gets
// what head_losses() returns, and says what rows weigh when their gradient is made. Of scores a row's weight is the
// derivative of the step's loss by its score.
void head_loss_and_gradient(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch, const Operand& loss,
                            bool accumulate, const std::function<RowWeights(const Operand& losses)>& weigh = {});

// Returns the k most likely tokens of each of the pass's loss rows: [T, k] int32, and [T, k + 1] fp32.
TeacherRows head_top_tokens(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch, int64_t k);

// Returns the loss of each of the pass's loss rows that are set against a teacher's, its divergence from that and
// whether both have one most likely token, [3, T] fp32. Logits are in fp32.
Operand head_distances(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch,
                       const TeacherRows& teacher);

// Returns the same, and writes the losses' sum and emits their gradients as head_loss_and_gradient() does.
Operand head_distances_and_gradient(Builder& b, Value x, const HeadParams& head, const BatchBuffers& batch,
                                    const TeacherRows& teacher, const Operand& loss, bool accumulate);

// Returns the logits of one token, [1, V] fp32; `row` [1] int32 says which.
Operand head_logits(Builder& b, Value x, const HeadParams& head, const Operand& row);

}  // namespace snug
