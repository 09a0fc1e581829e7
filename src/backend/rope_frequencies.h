// Angles a position that rotary embedding turns by: computed on the host, for every backend.
#pragma once

#include <vector>

#include "program/ops.h"

namespace snug {

// f_i for i < dim / 2, each step rounded to fp32: the models were trained with frequencies rounded so (transformers'
// rope utilities compute in fp32), and a long position turns a rounding into a visible angle.
std::vector<float> rope_frequencies(const RopeTable& table, int64_t dim);

}  // namespace snug
