#include "model/fusion.h"

#include <algorithm>

#include "model/linear.h"
#include "model/swiglu.h"

namespace snug {
namespace {

// The linear that reads the value as its x, if it is alone to give it a gradient.
LinearNode* only_reader(std::span<const std::unique_ptr<Node>> tape, Value value) {
  LinearNode* reader = nullptr;
  for (const auto& node : tape) {
    if (!node->differentiable() || std::ranges::find(node->inputs, value) == node->inputs.end()) continue;
    auto* linear = dynamic_cast<LinearNode*>(node.get());
    if (reader || !linear || linear->x() != value) return nullptr;
    reader = linear;
  }
  return reader;
}

LinearNode* maker(std::span<const std::unique_ptr<Node>> tape, Value value) {
  for (const auto& node : tape)
    if (auto* linear = dynamic_cast<LinearNode*>(node.get()); linear && linear->outputs[0] == value) return linear;
  return nullptr;
}

}  // namespace

void fuse(std::span<const std::unique_ptr<Node>> tape, const Builder& b) {
  if (b.placement().fp8_products()) return;
  for (const auto& node : tape) {
    auto* swiglu = dynamic_cast<SwiGluNode*>(node.get());
    if (!swiglu) continue;
    if (LinearNode* before = maker(tape, swiglu->inputs[0]); before && before->fuses_with_swiglu())
      swiglu->fuse_forward(*before);
    if (LinearNode* after = only_reader(tape, swiglu->outputs[0]); after && !after->drops(b))
      swiglu->fuse_backward(*after);
  }
}

}  // namespace snug
