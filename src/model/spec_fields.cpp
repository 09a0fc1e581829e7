#include "model/spec_fields.h"

#include <algorithm>

namespace snug {

ModelSpec without_tower(ModelSpec model) {
  model.layers.erase(model.layers.begin(), model.layers.begin() + model.tower.layers);
  model.tower = {};
  model.rope_axes = {};  // positions of a text are alike on all axes
  return model;
}

void add_fields(Fields& fields, std::string_view group, const ModelSpec& model) {
  add_fields<ModelSpec>(fields, group, model, ModelSpec{});
  fields.push_back({std::string(group), "num_hidden_layers", field_text(model.layers.size()), "0"});
  const size_t first = fields.size();
  const LayerSpec plain;
  visit_leaves(plain, [&](const std::string& name, const auto& value) {
    fields.push_back({std::string(group), name, "", field_text(value)});
  });
  std::vector<std::vector<std::string>> texts(fields.size() - first);  // by field and layer
  for (const LayerSpec& layer : model.layers) {
    size_t next = 0;
    visit_leaves(layer, [&](const std::string&, const auto& field) { texts[next++].push_back(field_text(field)); });
  }
  for (size_t i = 0; i < texts.size(); i++) {
    const bool alike = std::ranges::all_of(texts[i], [&](const std::string& text) { return text == texts[i][0]; });
    if (!texts[i].empty()) fields[first + i].value = alike ? texts[i][0] : field_text(texts[i]);
  }
}

}  // namespace snug
