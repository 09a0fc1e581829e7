// LinearNode is a linear with its low-rank adapter.
#pragma once

#include "model/builder.h"

namespace snug {

// Says of what a product is made: of all that the linear has, or of all but its bias or its adapter. AdapterLeftOut
// rounds as Whole does with an adapter of zeros: before the addend.
enum class LinearForm : uint8_t { Whole, WithoutBias, WithoutAdapter, AdapterLeftOut };

// Computes y = x W^T + bias (+ the adapter's term) (+ addend).
class LinearNode : public Node {
 public:
  // Holds the operands that a composite op reads of the adapter: AdaptedGemm's u and v. If parts differ there is u
  // alone.
  struct AdapterTerm {
    Operand u;
    std::optional<Operand> v;
  };

  // `dropped` is the adapter's input, where that is not x; `xa` is scale x A^T, where there is an adapter.
  LinearNode(const Linear& linear, LinearForm form, Value x, std::optional<Value> addend, std::optional<Value> dropped,
             std::optional<Value> xa)
      : linear_(linear), form_(form), x_(x), addend_(addend), dropped_(dropped), xa_(xa) {}

  void compute(Builder& b, std::span<const Operand> outputs) override;
  void forward(Builder& b) override;
  void backward(Builder& b) override;
  bool trains(const Builder& b) const override;
  // Returns whether any of its weights are trained, but for the adapter's.
  bool trains_weights(const Builder& b) const;

  Value x() const { return x_; }
  const Linear& linear() const { return linear_; }
  // Returns whether its adapter drops some of x.
  bool drops() const { return dropped_.has_value(); }

  // ---- As a part of composite ops ----

  bool fuses_with_swiglu() const { return linear_.bias == kNoParam && !addend_ && linear_.lora.even(); }
  // Makes the product a SwiGluGemm, which the SwiGLU's node emits in the forward.
  void become_gated(Activation activation) { gated_ = activation; }
  // Emits the product and, into h, SwiGLU of its result; without h it emits the product alone, with equal bits.
  void compute_gated(Builder& b, const Operand& gate_up, const std::optional<Operand>& h);
  // Makes this node allocate x's gradient and leave the writing to the node that produces x.
  void leave_input_gradient() { input_gradient_left_ = true; }
  // Returns the factors of x's gradient: dy, W and, where there is an adapter, AdaptedGemm's u and v.
  std::vector<Operand> input_gradient_factors(Builder& b);

  // ---- Codes that the nodes beside it write, where products are in fp8 ----

  // Holds the weight, the codes of the result's gradient times the scales of the weight's rows, and the scales of that
  // gradient's columns, where the weight is trained.
  struct GradientCodes {
    Fp8Rows weight;
    std::optional<Fp8Rows> rows;
    std::optional<Operand> column_scales;
  };
  // Returns room for the codes of x, which the product takes when it is emitted next.
  Fp8Rows codes_of_x(Builder& b);
  // Returns the place of the scales of x's columns, where they are wanted.
  std::optional<Operand> column_scales_of_x(Builder& b);
  // Returns room for the codes of the result's gradient, from which that of x is computed.
  GradientCodes& codes_of_gradient(Builder& b);

  // Emits the gradients of the parameters, but for the adapter's B, which is emitted with the gradient of xa.
  void parameter_gradients(Builder& b);

 private:
  // Returns the rows of the weights, or of the biases, that are the linear's own.
  Operand own_rows(const Operand& parameters) const;
  std::optional<AdapterTerm> adapter_term(Builder& b) const;
  // Emits y = a W^T (or, with `backward`, a W) + the adapter's term + bias + addend.
  void multiply(Builder& b, std::string_view site, const Operand& a, bool backward,
                const std::optional<AdapterTerm>& adapter, std::optional<Operand> addend, const Operand& y);
  // Return the operands of a product in fp8: of x and the weight, and of dy and the weight's transpose.
  std::vector<Operand> fp8_factors(Builder& b, std::string_view site, const Operand& x);
  std::vector<Operand> fp8_gradient_factors(Builder& b, std::string_view site, const Operand& dy);
  // Returns the codes of the result's gradient, which are still to be written, with the weight that they are for.
  GradientCodes& begin_gradient_codes(Builder& b);
  // Emits the adapter's term by plain products; y holds it and nothing else.
  void multiply_adapter(Builder& b, const std::string& site, bool backward, const AdapterTerm& adapter,
                        const Operand& y) const;
  void input_gradient(Builder& b, const Operand& dx);
  // Emits the gradients of `count` weights and their biases, from the first-th on, which have these columns of dy.
  void weight_gradient(Builder& b, int first, int count, const Operand& dy, int64_t begin, int64_t end);
  // Returns the gradient of xa, to be read. It is emitted, and B's with it, where it is first asked for.
  Operand adapter_gradient(Builder& b);
  // Emits the gradients of the adapter's halves A.
  void adapter_a_gradient(Builder& b);

  const Linear& linear_;
  LinearForm form_;
  Value x_;
  std::optional<Value> addend_, dropped_, xa_;
  std::optional<Activation> gated_;
  bool input_gradient_left_ = false;
  std::optional<Operand> dxa_;
  std::optional<Fp8Rows> x_codes_;
  std::optional<Operand> x_scales_;
  std::optional<GradientCodes> gradient_codes_;
};

// Returns where the parts of a linear's adapter lie.
AdaptedParts parts_of(const Linear& linear);

// Returns the biases of a linear that has some, zeros where rows have none.
Operand bias_of(Builder& b, const Linear& linear);

}  // namespace snug
