// Computes the rotary angles of a model's positions.
#pragma once

#include "format/rope.h"
#include "program/ops.h"

namespace snug {

// Returns the table that rotates heads of `dim` elements at positions below `positions`, which is the most tokens that
// a document may have: some types of rope tell long texts from short ones by it. Each step is rounded to fp32: models
// were trained with frequencies rounded so (transformers' rope utilities compute in fp32), and at a long position a
// rounding is a visible angle. The table of `queries` has their growth too.
RopeTable rope_table(const RopeParameters& rope, int64_t dim, int64_t positions, bool queries = false);

// Returns the table of heads whose pairs turn by several axes of positions, each as a head of its pairs alone would.
RopeTable rope_table(const RopeParameters& rope, const RopeAxes& axes);

// Returns whether the type takes `positions` for a long text, whose angles differ from those of a short one.
bool is_long(const RopeParameters& rope, int64_t positions);

}  // namespace snug
