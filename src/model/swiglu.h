// SwiGLU and its kin, by itself or as a part of the products beside it.
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

  // The linear that makes gate and up: one op with it, forward.
  void fuse_forward(LinearNode& linear) {
    linear.become_gated(activation_);
    before_ = &linear;
  }
  // The only reader: one op with its input's gradient, backward.
  void fuse_backward(LinearNode& linear) {
    linear.leave_input_gradient();
    after_ = &linear;
  }

 private:
  Activation activation_;
  LinearNode *before_ = nullptr, *after_ = nullptr;
};

}  // namespace snug
