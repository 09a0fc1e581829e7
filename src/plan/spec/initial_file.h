// Lays out the file of the halves with which an adapter begins: A and B in fp32, and B with its sign changed.
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

InitialFile initial_file(const ParamTable& table);

}  // namespace snug
