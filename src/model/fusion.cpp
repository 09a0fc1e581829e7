#include "model/fusion.h"

#include <algorithm>

#include "model/linear.h"
#include "model/swiglu.h"

namespace snug {
namespace {

using Tape = std::span<const std::unique_ptr<Node>>;

// Returns the linear just before the SwiGLU, if it makes gate and up: the op of both is emitted where the SwiGLU
// stands.
LinearNode* maker(Tape tape, size_t swiglu) {
  auto* const linear = swiglu > 0 ? dynamic_cast<LinearNode*>(tape[swiglu - 1].get()) : nullptr;
  return linear && linear->outputs[0] == tape[swiglu]->inputs[0] ? linear : nullptr;
}

// Returns the linear that comes next after the SwiGLU and reads its result as x, if nothing else gives that a gradient.
// The gradient of x is then emitted where the SwiGLU stands, and nothing between has changed that of the linear's
// result.
LinearNode* reader(Tape tape, size_t swiglu) {
  const Value h = tape[swiglu]->outputs[0];
  LinearNode* next = nullptr;
  for (const auto& node : tape.subspan(swiglu + 1)) {
    if (!node->differentiable()) continue;
    const auto reads = std::ranges::count(node->inputs, h);
    if (!next) {
      next = dynamic_cast<LinearNode*>(node.get());
      if (!next || next->x() != h || reads != 1) return nullptr;
    } else if (reads > 0) {
      return nullptr;
    }
  }
  return next;
}

}  // namespace

void fuse(std::span<const std::unique_ptr<Node>> tape, const Builder& b) {
  const bool fp8 = b.placement().fp8_products();
  for (size_t i = 0; i < tape.size(); i++) {
    auto* const swiglu = dynamic_cast<SwiGluNode*>(tape[i].get());
    if (!swiglu) continue;
    LinearNode *const before = maker(tape, i), *const after = reader(tape, i);
    if (fp8) {
      if (before) swiglu->write_gradient_codes_for(*before);
      if (after) swiglu->write_codes_for(*after);
      continue;
    }
    if (before && before->fuses_with_swiglu()) swiglu->fuse_forward(*before);
    if (after && !after->drops()) swiglu->fuse_backward(*after);
  }
}

}  // namespace snug
