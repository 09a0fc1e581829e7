#include "plan/spec/initial_file.h"

namespace snug {

InitialFile initial_file(const ParamTable& table) {
  InitialFile file;
  file.tensor_of.assign(table.params.size(), -1);
  for (size_t i = 0; i < table.params.size(); i++) {
    const ParamSpec& param = table.params[i];
    if (!param.adapter) continue;
    // What is taken off of A is A as it began, which stands before it.
    const bool is_a = param.taken_off && param.name.ends_with(".lora_A.initial");
    if (!is_a) file.tensors.push_back({param.name, DType::F32, param.shape});
    file.tensor_of[i] = static_cast<int>(file.tensors.size()) - 1;
  }
  file.layout = layout_safetensors(file.tensors);
  return file;
}

InitialFile rows_file(const ParamTable& table, int64_t rows) {
  InitialFile file;
  file.tensor_of.assign(table.params.size(), -1);
  for (size_t i = 0; i < table.params.size(); i++) {
    if (!table.has_row_per_token(static_cast<ParamId>(i))) continue;
    file.tensor_of[i] = static_cast<int>(file.tensors.size());
    file.tensors.push_back({table.params[i].name, DType::F32, {rows, table.params[i].shape.cols()}});
  }
  file.layout = layout_safetensors(file.tensors);
  return file;
}

}  // namespace snug
