// Rotary angles of a model's positions.
#pragma once

#include "format/rope.h"
#include "program/ops.h"

namespace snug {

// Returns what turns heads of `dim` elements at positions below `positions`: the longest document may have so many
// tokens, which decides where a type tells long texts from short ones. Each step is rounded to fp32: models were
// trained with frequencies rounded so (transformers' rope utilities compute in fp32), and at a long position a rounding
// is a visible angle.
RopeTable rope_table(const RopeParameters& rope, int64_t dim, int64_t positions);

// Whether so many positions are more than the type takes for short: then a longer table turns other angles.
bool is_long(const RopeParameters& rope, int64_t positions);

}  // namespace snug
