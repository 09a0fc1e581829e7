// Lays out files of what parameters begin with where it is computed of a model's files, once, before they are loaded.
#pragma once

#include <vector>

#include "format/safetensors.h"
#include "model/params.h"

namespace snug {

struct InitialFile {
  std::vector<SafetensorsTensor> tensors;
  SafetensorsLayout layout;
  std::vector<int> tensor_of;  // by ParamId; -1 for what the file does not hold
};

// Lays out the halves with which an adapter begins: A and B in fp32, and B with its sign changed.
InitialFile initial_file(const ParamTable& table);

// Lays out the rows with which new tokens begin, in fp32: of the embedding, and of the head if that is another matrix.
InitialFile rows_file(const ParamTable& table, int64_t rows);

}  // namespace snug
