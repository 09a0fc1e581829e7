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
  if (reader_) return forward_with_codes(b);
  if (!before_) return Node::forward(b);
  before_->compute_gated(b, b.home(inputs[0]), b.home(outputs[0]));
}

void SwiGluNode::forward_with_codes(Builder& b) {
  const Fp8Rows codes = reader_->codes_of_x(b);
  const std::optional<Operand> scales = reader_->column_scales_of_x(b);
  std::vector<Operand> operands{read(b.use(inputs[0])), write(b.home(outputs[0])), write(codes.codes),
                                write(codes.scales)};
  if (scales) operands.push_back(write(*scales));
  b.emitter().op("swiglu", SwiGluQuantize{scales.has_value(), activation_}, operands);
}

void SwiGluNode::backward_with_codes(Builder& b, bool restored, const Operand& dh, const Operand& gate_up,
                                     const Operand& dgate_up) {
  const LinearNode::GradientCodes& to = maker_->codes_of_gradient(b);
  std::vector<Operand> operands{restored ? update(dh) : read(dh),
                                gate_up,
                                read(to.weight.scales),
                                dgate_up,
                                write(to.rows->codes),
                                write(to.rows->scales)};
  if (to.column_scales) operands.push_back(write(*to.column_scales));
  b.emitter().op("swiglu.backward", SwiGluBackwardQuantize{restored, to.column_scales.has_value(), activation_},
                 operands);
}

void SwiGluNode::backward(Builder& b) {
  const Value gate_up = inputs[0], h = outputs[0];
  const bool codes = maker_ && !b.has_gradient(gate_up) && b.wants_gradient(maker_->x());
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
    } else if (codes) {
      backward_with_codes(b, restored, dh, kept, dgate_up);
    } else {
      b.emitter().op("swiglu.backward", SwiGluBackward{restored, activation_},
                     {restored ? update(dh) : read(dh), kept, write(dgate_up)});
    }
    if (restored) b.set_current(h, read(dh));
  });
}

}  // namespace snug
