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

 private:
  Activation activation_;
  LinearNode *before_ = nullptr, *after_ = nullptr;
};

}  // namespace snug
