#include "model/swiglu.h"

namespace snug {

Value Builder::swiglu(Value gate_up, Activation activation) {
  const Shape wide = shape(gate_up);
  return record(std::make_unique<SwiGluNode>(activation), {gate_up},
                {{"swiglu", {wide.rows(), wide.cols() / 2}, compute_, ActivationClass::AlwaysRecompute}});
}

void SwiGluNode::compute(Builder& b, std::span<const Operand> outputs) {
  const Operand gate_up = b.use(inputs[0]);
  b.emitter().op("swiglu", SwiGlu{activation_}, {read(gate_up), write(outputs[0])});
}

void SwiGluNode::forward(Builder& b) {
  if (!before_) return Node::forward(b);
  before_->compute_gated(b, b.home(inputs[0]), b.home(outputs[0]));
}

void SwiGluNode::backward(Builder& b) {
  const Value gate_up = inputs[0], h = outputs[0];
  const Operand dh = b.gradient_in_place(h);
  const Operand kept = read(b.use(gate_up));
  b.give_gradient(gate_up, [&](const Operand& dgate_up) {
    const bool restored = b.awaited(h);
    if (after_) {
      const std::vector<Operand> factors = after_->input_gradient_factors(b);
      std::vector<Operand> operands = factors;
      operands.insert(operands.end(), {kept, write(dgate_up), write(dh)});
      b.emitter().op(after_->linear().site + ".dx", SwiGluGemmBackward{factors.size() > 2, restored, activation_},
                     operands);
    } else {
      b.emitter().op("swiglu.backward", SwiGluBackward{restored, activation_},
                     {restored ? update(dh) : read(dh), kept, write(dgate_up)});
    }
    if (restored) b.set_current(h, read(dh));
  });
}

}  // namespace snug
