#include "model/hidden_matrices.h"

namespace snug {

std::vector<bool> trained_hidden_matrices(const ParamTable& table) {
  std::vector<bool> matrices(table.params.size());
  const auto note = [&](ParamId id) {
    if (id != kNoParam) matrices[static_cast<size_t>(id)] = table[id].trainable;
  };
  for (const LayerParams& layer : table.layers)
    for (const Linear* const linear : layer.linears()) {
      if (linear->weight != kNoParam)
        for (ParamId id = linear->weight; id < linear->weight + linear->count; id++) note(id);
      for (size_t i = 0; i < linear->lora.parts.size(); i++) {
        note(linear->lora.a_of(i));
        note(linear->lora.parts[i].b);
      }
    }
  return matrices;
}

}  // namespace snug
