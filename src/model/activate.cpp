// The activation of an MLP without a gate.
#include "model/builder.h"

namespace snug {
namespace {

class ActivateNode : public Node {
 public:
  explicit ActivateNode(Activation activation) : activation_(activation) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    const Operand x = read(b.use(inputs[0]));
    b.emitter().op("activate", Activate{activation_}, {x, write(outputs[0])});
  }
  void backward(Builder& b) override {
    const Value x = inputs[0], h = outputs[0];
    const Operand dh = b.gradient_in_place(h), kept = read(b.use(x));
    b.give_gradient(x, [&](const Operand& dx) {
      const bool restored = b.awaited(h);
      b.emitter().op("activate.backward", ActivateBackward{restored, activation_},
                     {restored ? update(dh) : read(dh), kept, dx});
      if (restored) b.set_current(h, read(dh));
    });
  }
  bool restores() const override { return true; }

 private:
  Activation activation_;
};

}  // namespace

Value Builder::activate(Value x, Activation activation) {
  return record(std::make_unique<ActivateNode>(activation), {x},
                {{"activated", shape(x), compute_, ActivationClass::AlwaysRecompute}});
}

}  // namespace snug
