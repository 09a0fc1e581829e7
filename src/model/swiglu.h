// SwiGluNode computes SwiGLU or its variants with another activation, alone or fused with the products beside it.
#pragma once

#include "model/linear.h"

namespace snug {

class SwiGluNode : public Node {
 public:
  explicit SwiGluNode(Activation activation) : activation_(activation) {}

  void compute(Builder& b, std::span<const Operand> outputs) override;
  void forward(Builder& b) override;
  void backward(Builder& b) override;
  bool restores() const override { return true; }

  // Fuses the forward with that of the linear that produces gate and up.
  void fuse_forward(LinearNode& linear) {
    linear.become_gated(activation_);
    before_ = &linear;
  }
  // Fuses the backward with the input's gradient of the linear that is the result's only reader.
  void fuse_backward(LinearNode& linear) {
    linear.leave_input_gradient();
    after_ = &linear;
  }
  // Makes the op of the forward write the codes of its result for the linear that reads it, and the op of the backward
  // those of its gradient for the linear that made gate and up, where products are in fp8.
  void write_codes_for(LinearNode& reader) { reader_ = &reader; }
  void write_gradient_codes_for(LinearNode& maker) { maker_ = &maker; }

 private:
  void forward_with_codes(Builder& b);
  void backward_with_codes(Builder& b, bool restored, const Operand& dh, const Operand& gate_up,
                           const Operand& dgate_up);

  Activation activation_;
  LinearNode *before_ = nullptr, *after_ = nullptr, *reader_ = nullptr, *maker_ = nullptr;
};

}  // namespace snug
