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
    const Operand dx = b.gradient_to_add(x);
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

// Outputs: queries and keys side by side, and the factors of either's heads.
class HeadNormsNode : public Node {
 public:
  HeadNormsNode(const View& q, const Norm& q_norm, const View& k, const Norm& k_norm)
      : q_(q), k_(k), q_norm_(q_norm), k_norm_(k_norm) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    int64_t begin = 0;
    for (const auto& [x, norm, rstd] : {std::tuple(q_, q_norm_, outputs[1]), std::tuple(k_, k_norm_, outputs[2])}) {
      const int64_t end = begin + x.end - x.begin;
      b.emitter().op(
          "head_norm", RmsNorm{static_cast<float>(norm.epsilon)},
          {b.use(x), read(b.placement().weight(norm.gain, 1)), write(columns(outputs[0], begin, end)), write(rstd)});
      begin = end;
    }
  }

  void backward(Builder& b) override {
    const Operand dy = b.gradient(outputs[0]);
    int64_t begin = 0;
    for (const auto& [x, norm, rstd] : {std::tuple(q_, q_norm_, outputs[1]), std::tuple(k_, k_norm_, outputs[2])}) {
      const int64_t end = begin + x.end - x.begin;
      norm_backward(b, {}, norm.gain,
                    {columns(dy, begin, end), b.use(x), read(b.placement().weight(norm.gain, 1)), read(b.use(rstd)),
                     b.gradient_of_columns(x)});
      begin = end;
    }
  }

  bool trains(const Builder& b) const override { return b.trainable(q_norm_.gain) || b.trainable(k_norm_.gain); }

 private:
  View q_, k_;
  Norm q_norm_, k_norm_;
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
