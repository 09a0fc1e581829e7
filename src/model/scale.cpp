// ScaledSumNode adds a value times a number to another value.
#include "model/builder.h"

namespace snug {
namespace {

class ScaledSumNode : public Node {
 public:
  explicit ScaledSumNode(float factor) : factor_(factor) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    const Operand x = read(b.use(inputs[0])), addend = read(b.use(inputs[1]));
    b.emitter().op("scaled_sum", Rescale{factor_, true}, {x, addend, write(outputs[0])});
  }
  void backward(Builder& b) override {
    if (b.wants_gradient(inputs[0]))
      b.give_gradient(inputs[0], [&](const Operand& dx) {
        b.emitter().op("scaled_sum.backward", Rescale{factor_}, {b.gradient(outputs[0]), dx});
      });
    b.pass_gradient(outputs[0], inputs[1]);
  }

 private:
  float factor_;
};

}  // namespace

Value Builder::scaled_sum(Value x, double factor, Value addend, ActivationClass kind) {
  return record(std::make_unique<ScaledSumNode>(static_cast<float>(factor)), {x, addend},
                {{"scaled_sum", shape(x), compute_, kind}});
}

}  // namespace snug
