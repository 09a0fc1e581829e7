// Records linears with weight-decomposed adapters (DoRA, Liu et al., arXiv:2402.09353), whose rows have norms that are
// trained: y = z m / g + bias, z = x (W + scale B A)^T, g the norms of the rows of W + scale B A, which no gradient
// goes through. W + scale B A is never made.
#include "model/linear.h"

namespace snug {
namespace {

// Computes what the columns of z are multiplied by, m / g, and 1 / g.
class AdaptedNormsNode : public Node {
 public:
  explicit AdaptedNormsNode(const Linear& linear) : linear_(linear) {}
  bool differentiable() const override { return false; }
  void compute(Builder& b, std::span<const Operand> outputs) override {
    Emitter& e = b.emitter();
    Placement& placement = b.placement();
    const std::string site = linear_.site + ".norms";
    const Operand weight = read(placement.weight(linear_.weight, linear_.count));
    int64_t done = 0;
    for (size_t i = 0; i < linear_.lora.parts.size(); i++) {
      const LoraPart& part = linear_.lora.parts[i];
      const int64_t n = part.row_end - part.row_begin;
      const auto id = static_cast<ParamId>(i);
      const Operand a = read(placement.weight(linear_.lora.a_of(i), 1)), half = read(placement.weight(part.b, 1));
      const Operand wa = e.tensor(site + ".wa", DType::F32, {n, part.rank}),
                    aa = e.tensor(site + ".aa", DType::F32, {part.rank, part.rank});
      e.op(site + ".wa", Gemm{.transpose_b = true}, {rows(weight, part.row_begin, part.row_end), a, write(wa)});
      e.op(site + ".aa", Gemm{.transpose_b = true}, {a, a, write(aa)});
      e.op(site, AdaptedNorms{part.scale},
           {read(wa), read(aa), half, read(placement.constant(linear_.lora.row_norms + id)),
            read(placement.constant(linear_.lora.initial_magnitude + id)),
            read(placement.weight(linear_.lora.change + id, 1)), write(columns(outputs[0], done, done + n))});
      done += n;
    }
  }

 private:
  const Linear& linear_;
};

// Drops some of what comes into the adapted weight.
class InputDropoutNode : public Node {
 public:
  explicit InputDropoutNode(const Linear& linear) : linear_(linear) {}
  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op(linear_.site + ".dropout", op(b), {read(b.use(inputs[0])), write(outputs[0])});
  }
  void backward(Builder& b) override {
    if (!b.wants_gradient(inputs[0])) return;
    const Operand dy = b.gradient(outputs[0]);
    b.give_gradient(inputs[0], [&](const Operand& dx) {
      b.emitter().op(linear_.site + ".dropout.backward", op(b), {dy, write(dx)});
    });
  }

 private:
  Dropout op(const Builder& b) const {
    return {linear_.lora.dropout, b.dropout_seed().value(), static_cast<uint32_t>(linear_.lora.a)};
  }
  const Linear& linear_;
};

// Computes z m / g + bias (+ addend).
class ScaleColumnsNode : public Node {
 public:
  ScaleColumnsNode(const Linear& linear, bool bias, Value z, Value factors, std::optional<Value> addend)
      : linear_(linear), bias_(bias), z_(z), factors_(factors), addend_(addend) {}
  bool trains(const Builder& b) const override { return b.trainable(linear_.lora.change); }
  void compute(Builder& b, std::span<const Operand> outputs) override {
    std::vector<Operand> operands{read(b.use(z_)), read(b.use(factors_))};
    if (addend_) operands.push_back(read(b.use(*addend_)));
    if (bias_) operands.push_back(read(bias_of(b, linear_)));
    operands.push_back(write(outputs[0]));
    b.emitter().op(linear_.site + ".scale", ScaleColumns{parts_of(linear_), addend_.has_value(), bias_}, operands);
  }
  void backward(Builder& b) override {
    const Operand dy = b.gradient(outputs[0]), z = read(b.use(z_)), factors = read(b.use(factors_));
    const Operand dm = b.placement().gradient(linear_.lora.change, static_cast<int>(linear_.lora.parts.size()));
    b.give_gradient(z_, [&](const Operand& dz) {
      b.emitter().op(linear_.site + ".scale.backward", ScaleColumnsBackward{parts_of(linear_)},
                     {dy, z, factors, write(dz), write(dm)});
    });
    if (addend_) b.pass_gradient(outputs[0], *addend_);
  }

 private:
  const Linear& linear_;
  bool bias_;
  Value z_, factors_;
  std::optional<Value> addend_;
};

}  // namespace

// The gradient of m needs z. Without dropout z stands for y, which is little work to make of it; only the layer's
// output is kept beside its z. PEFT drops of the input of the adapted weight, W included: y = (x - x') W^T + bias + z m
// / g, with x' for x in z.
Value Builder::scaled_linear(Value x, const Linear& linear, ActivationClass kind, std::optional<Value> addend) {
  const Value factors =
      record(std::make_unique<AdaptedNormsNode>(linear), {},
             {{linear.site + ".factors", {2, parts_of(linear).columns()}, DType::F32, ActivationClass::Tiny}});
  const bool drops = dropout_seed_ && linear.lora.dropout > 0;
  const bool planned =
      kind == ActivationClass::Attention || kind == ActivationClass::Residual || kind == ActivationClass::Mlp;
  Value input = x;
  if (drops) {
    input = record(std::make_unique<InputDropoutNode>(linear), {x},
                   {{linear.site + ".dropped", shape(x), compute_, ActivationClass::AlwaysRecompute}});
    const Value rest = scaled_sum(input, -1, x, ActivationClass::AlwaysRecompute);
    addend = product(rest, linear, LinearForm::WithoutAdapter, ActivationClass::AlwaysRecompute, addend);
  }
  const Value z = product(input, linear, LinearForm::WithoutBias, planned && !drops ? kind : ActivationClass::Adapter,
                          std::nullopt);
  std::vector<Value> inputs{z, factors};
  if (addend) inputs.push_back(*addend);
  const bool bias = linear.bias != kNoParam && !drops;
  return record(std::make_unique<ScaleColumnsNode>(linear, bias, z, factors, addend), std::move(inputs),
                {{linear.site + ".scaled",
                  {shape(x).rows(), linear.out},
                  compute_,
                  planned && !drops ? ActivationClass::AlwaysRecompute : kind}});
}

}  // namespace snug
