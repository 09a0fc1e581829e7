#include "model/norm.h"

namespace snug {
namespace {

// Outputs: the norm, and the factors of its rows.
class RmsNormNode : public Node {
 public:
  explicit RmsNormNode(const Norm& norm) : norm_(norm) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    const Operand x = b.use(inputs[0]);
    b.emitter().op("rms_norm", RmsNorm{static_cast<float>(norm_.epsilon)},
                   {read(x), read(b.placement().weight(norm_.gain, 1)), write(outputs[0]), write(outputs[1])});
  }

  void backward(Builder& b) override {
    const Value x = inputs[0], y = outputs[0];
    const bool accumulate = b.has_gradient(x);
    const Operand dx = b.gradient_to_add(x, "dx");
    const bool restored = b.awaited(y);
    const Operand dy = restored ? b.gradient_in_place(y) : b.gradient(y);
    const Operand input = read(b.use(x)), gain = read(b.placement().weight(norm_.gain, 1)),
                  rstd = read(b.use(outputs[1]));
    norm_backward(b, {.accumulate = accumulate, .restore = restored}, norm_.gain, {dy, input, gain, rstd, dx});
    if (restored) b.restore(y, dy);
  }

  bool trains(const Builder& b) const override { return b.trainable(norm_.gain); }
  bool restores() const override { return true; }

 private:
  const Norm& norm_;
};

}  // namespace

Value Builder::rms_norm(Value x, const Norm& norm) {
  return record(std::make_unique<RmsNormNode>(norm), {x},
                {{"norm", shape(x), compute_, ActivationClass::AlwaysRecompute},
                 {"rstd", {shape(x).rows()}, DType::F32, ActivationClass::Tiny}});
}

void norm_backward(Builder& b, RmsNormBackward op, ParamId gain, std::vector<Operand> operands) {
  op.gain_gradient = b.trainable(gain);
  if (!op.gain_gradient) return static_cast<void>(b.emitter().op("rms_norm.backward", op, operands));
  b.write_gradient(gain, 1, [&](const Operand& dgain) {
    operands.push_back(write(dgain));
    b.emitter().op("rms_norm.backward", op, operands);
  });
}

}  // namespace snug
