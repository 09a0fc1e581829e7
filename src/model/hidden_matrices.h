// Says which parameters are matrices between a model's layers' values, which some optimizers treat as a whole.
#pragma once

#include <vector>

#include "model/params.h"

namespace snug {

// Returns, by ParamId, whether a parameter is trained and is the weight of a layer's linear, as the model's own code
// has it (q, k and v are three), or a half of its adapter. Embeddings, heads, norms and biases are none.
std::vector<bool> trained_hidden_matrices(const ParamTable& table);

}  // namespace snug
