#include "model/norm.h"

#include <algorithm>
#include <array>

namespace snug {
namespace {

// Computes the norm of rows; its outputs are the norm, with the addend, and the factors of its rows.
class RmsNormNode : public Node {
 public:
  RmsNormNode(const Norm& norm, std::optional<Value> addend) : norm_(norm), addend_(addend) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    norm_forward(b, "rms_norm", norm_, b.use(inputs[0]), outputs[0], outputs[1]);
    if (addend_) b.emitter().op("rms_norm.addend", Accumulate{}, {read(b.use(*addend_)), update(outputs[0])});
  }

  void backward(Builder& b) override {
    input_gradient(b);
    if (addend_) b.pass_gradient(outputs[0], *addend_);
  }

  bool trains(const Builder& b) const override { return b.trainable(norm_.gain); }
  bool restores() const override { return !addend_; }

 private:
  void input_gradient(Builder& b) const {
    const Value x = inputs[0], y = outputs[0];
    const bool accumulate = b.has_gradient(x);
    const Operand dx = b.gradient_to_add(x);
    const bool restored = restores() && b.awaited(y);
    const Operand dy = restored ? b.gradient_in_place(y) : b.gradient(y);
    const Operand input = read(b.use(x)), gain = read(b.placement().weight(norm_.gain, 1)),
                  rstd = read(b.use(outputs[1]));
    norm_backward(b, {.accumulate = accumulate, .restore = restored}, norm_, {dy, input, gain, rstd, dx});
    if (restored) b.set_current(y, dy);
  }

  const Norm& norm_;
  std::optional<Value> addend_;
};

// Computes the norms of heads; its outputs are queries and keys side by side, and the factors of their heads.
class HeadNormsNode : public Node {
 public:
  HeadNormsNode(const View& q, const Norm& q_norm, const View& k, const Norm& k_norm)
      : halves_{Half{q, q_norm, 0}, Half{k, k_norm, q.end - q.begin}} {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    for (size_t i = 0; i < halves_.size(); i++)
      norm_forward(b, "head_norm", halves_[i].norm, b.use(halves_[i].x), halves_[i].of(outputs[0]), outputs[1 + i]);
  }

  void backward(Builder& b) override {
    const Operand dy = b.gradient(outputs[0]);
    for (size_t i = 0; i < halves_.size(); i++) {
      const auto& [x, norm, begin] = halves_[i];
      norm_backward(b, {}, norm,
                    {halves_[i].of(dy), b.use(x), read(b.placement().weight(norm.gain, 1)), read(b.use(outputs[1 + i])),
                     b.gradient_of_columns(x)});
    }
  }

  bool trains(const Builder& b) const override {
    return std::ranges::any_of(halves_, [&](const Half& half) { return b.trainable(half.norm.gain); });
  }

 private:
  struct Half {
    View x;
    const Norm& norm;
    int64_t begin;  // in the result
    Operand of(const Operand& result) const { return columns(result, begin, begin + x.end - x.begin); }
  };
  std::array<Half, 2> halves_;  // queries and keys
};

}  // namespace

std::pair<View, View> Builder::head_norms(const View& q, const Norm& q_norm, const View& k, const Norm& k_norm) {
  const int64_t dim = table_[q_norm.gain].shape.count(), rows = shape(q.value).rows();
  const int64_t queries = q.end - q.begin, keys = k.end - k.begin;
  const Value normed = record(std::make_unique<HeadNormsNode>(q, q_norm, k, k_norm), {q.value, k.value},
                              {{"qk", {rows, queries + keys}, compute_, ActivationClass::AlwaysRecompute},
                               {"q_rstd", {rows * queries / dim}, DType::F32, ActivationClass::Tiny},
                               {"k_rstd", {rows * keys / dim}, DType::F32, ActivationClass::Tiny}});
  return {{normed, 0, queries}, {normed, queries, queries + keys}};
}

Value Builder::rms_norm(Value x, const Norm& norm, ActivationClass kind, std::optional<Value> addend) {
  std::vector<Value> inputs{x};
  if (addend) inputs.push_back(*addend);
  return record(std::make_unique<RmsNormNode>(norm, addend), std::move(inputs),
                {{"norm", shape(x), compute_, kind}, {"rstd", {shape(x).rows()}, DType::F32, ActivationClass::Tiny}});
}

void norm_forward(Builder& b, std::string_view what, const Norm& norm, const Operand& x, const Operand& y,
                  const Operand& rstd) {
  b.emitter().op(what, RmsNorm{static_cast<float>(norm.epsilon), norm.plus_one},
                 {read(x), read(b.placement().weight(norm.gain, 1)), write(y), write(rstd)});
}

void norm_backward(Builder& b, RmsNormBackward op, const Norm& norm, std::vector<Operand> operands) {
  op.plus_one = norm.plus_one;
  op.gain_gradient = b.trainable(norm.gain);
  if (!op.gain_gradient) return static_cast<void>(b.emitter().op("rms_norm.backward", op, operands));
  b.write_gradient(norm.gain, 1, [&](const Operand& dgain) {
    operands.push_back(write(dgain));
    b.emitter().op("rms_norm.backward", op, operands);
  });
}

}  // namespace snug
