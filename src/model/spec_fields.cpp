#include "model/spec_fields.h"

namespace snug {

void add_fields(Fields& fields, std::string_view group, const ModelSpec& model) {
  add_fields<ModelSpec>(fields, group, model, ModelSpec{});
  const size_t first = fields.size();
  const LayerSpec plain;
  visit_fields(plain, [&](std::string_view name, const auto& usual) {
    fields.push_back({std::string(group), std::string(name), "", field_text(usual)});
  });
  std::vector<std::vector<std::string>> texts(fields.size() - first);  // by field and layer
  for (const LayerSpec& layer : model.layers) {
    size_t next = 0;
    visit_fields(layer, [&](std::string_view, const auto& field) { texts[next++].push_back(field_text(field)); });
  }
  for (size_t i = 0; i < texts.size(); i++) fields[first + i].value = field_text(texts[i]);
}

}  // namespace snug
