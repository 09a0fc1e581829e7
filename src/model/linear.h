// Linears with their low-rank adapters.
#pragma once

#include "model/builder.h"

namespace snug {

// y = x W^T + bias (+ what comes through the adapter) (+ addend).
class LinearNode : public Node {
 public:
  // What an op that takes in the adapter reads of it: AdaptedGemm's u and v. Of parts that differ there is u alone.
  struct AdapterTerm {
    Operand u;
    std::optional<Operand> v;
  };

  // `dropped`: what the adapter sees of x, where that is not x; `xa`: scale x A^T, where there is an adapter.
  LinearNode(const Linear& linear, Value x, std::optional<Value> addend, std::optional<Value> dropped,
             std::optional<Value> xa)
      : linear_(linear), x_(x), addend_(addend), dropped_(dropped), xa_(xa) {}

  void compute(Builder& b, std::span<const Operand> outputs) override;
  void forward(Builder& b) override;
  void backward(Builder& b) override;
  bool trains(const Builder& b) const override;

  Value x() const { return x_; }
  const Linear& linear() const { return linear_; }
  // Whether its adapter drops some of x.
  bool drops(const Builder& b) const;

  // ---- As a part of composite ops ----

  bool fuses_with_swiglu() const { return linear_.bias == kNoParam && !addend_ && linear_.lora.even(); }
  // From here on the product is SwiGluGemm: the forward's is emitted by the SwiGLU's node.
  void become_gated(Activation activation) { gated_ = activation; }
  // The product and, into h, SwiGLU of its result; or the former alone, with the same bits.
  void compute_gated(Builder& b, const Operand& gate_up, const std::optional<Operand>& h);
  // From here on this node makes room for x's gradient and leaves the writing to the node that makes x.
  void leave_input_gradient() { input_gradient_left_ = true; }
  // The factors of x's gradient: dy, W and, where there is an adapter, AdaptedGemm's u and v.
  std::vector<Operand> input_gradient_factors(Builder& b);

  // The gradients of the parameters, but for the adapter's B, which comes with dx^A.
  void parameter_gradients(Builder& b);

 private:
  std::optional<AdapterTerm> adapter_term(Builder& b) const;
  // y = a W^T + bias, or a W with `backward`, + what comes through the adapter + bias + addend.
  void multiply(Builder& b, std::string_view site, const Operand& a, bool backward,
                const std::optional<AdapterTerm>& adapter, std::optional<Operand> addend, const Operand& y) const;
  // What comes through the adapter, by plain products: y's first value.
  void multiply_adapter(Builder& b, const std::string& site, bool backward, const AdapterTerm& adapter,
                        const Operand& y) const;
  void input_gradient(Builder& b, const Operand& dx);
  // The gradient of xa, to be read, and with it B's: emitted where it is first asked for.
  Operand adapter_gradient(Builder& b);

  const Linear& linear_;
  Value x_;
  std::optional<Value> addend_, dropped_, xa_;
  std::optional<Activation> gated_;
  bool input_gradient_left_ = false;
  std::optional<Operand> dxa_;
};

}  // namespace snug
