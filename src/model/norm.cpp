#include "model/norm.h"

#include <algorithm>
#include <array>
#include <functional>

namespace snug {
namespace {

// Computes the norm of rows; its outputs are the norm, with the addend, and the moments of its rows. Several rows of x
// may lie side by side in one of the result, where the op takes them for heads.
class RmsNormNode : public Node {
 public:
  RmsNormNode(const Norm& norm, std::optional<Value> addend, bool joins = false)
      : norm_(norm), addend_(addend), joins_(joins) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    const std::string site(name(norm_.kind));
    norm_forward(b, site, norm_, reshaped(b.use(inputs[0]), outputs[0].shape), outputs[0], outputs[1]);
    if (addend_) b.emitter().op(site + ".addend", Accumulate{}, {read(b.use(*addend_)), update(outputs[0])});
  }

  void backward(Builder& b) override {
    input_gradient(b);
    if (addend_) b.pass_gradient(outputs[0], *addend_);
  }

  bool trains(const Builder& b) const override { return snug::trains(b, norm_); }
  bool restores() const override { return !addend_ && !joins_; }

 private:
  void input_gradient(Builder& b) const {
    const Value x = inputs[0], y = outputs[0];
    const bool accumulate = b.has_gradient(x);
    const Shape& shape = b.shape(y);
    const Operand dx = reshaped(b.gradient_to_add(x), shape);
    const bool restored = restores() && b.awaited(y);
    const Operand dy = restored ? b.gradient_in_place(y) : b.gradient(y);
    const Operand input = reshaped(b.use(x), shape);
    norm_backward(b, {.accumulate = accumulate, .restore = restored}, norm_, dy, input, b.use(outputs[1]), dx);
    if (restored) b.set_current(y, dy);
  }

  const Norm& norm_;
  std::optional<Value> addend_;
  bool joins_;
};

// Computes the norms of heads; its outputs are queries and keys side by side, and the moments of their heads.
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
      const Operand input = b.use(x);
      norm_backward(b, {}, norm, halves_[i].of(dy), input, b.use(outputs[1 + i]), b.gradient_of_columns(x));
    }
  }

  bool trains(const Builder& b) const override {
    return std::ranges::any_of(halves_, [&](const Half& half) { return snug::trains(b, half.norm); });
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

// Returns whether any parameter of the gain is trained.
bool trains_gain(const Builder& b, const Norm& norm) {
  for (ParamId id = norm.gain; id < norm.gain + norm.count; id++)
    if (b.trainable(id)) return true;
  return false;
}

// Returns the gain: a vector, or a row for each head.
Operand gain_of(Builder& b, const Norm& norm) {
  const Operand gain = read(b.placement().weight(norm.gain, norm.count));
  return norm.gains == 1 ? gain : in_rows(gain, norm.gains);
}

// Gives the gain its gradient by an op that writes all of it. Where some heads' gains are trained and others are not,
// the trained ones are copied out of it.
void write_gain_gradient(Builder& b, const Norm& norm, const std::function<void(const Operand& written)>& op) {
  const auto trained = [&](int i) { return b.trainable(norm.gain + i); };
  int first = 0, end = 0;
  const auto next_run = [&] {
    for (first = end; first < norm.count && !trained(first);) first++;
    for (end = first; end < norm.count && trained(end);) end++;
    return first < norm.count;
  };
  next_run();
  if (first == 0 && end == norm.count) return b.write_gradient(norm.gain, norm.count, op);
  const int64_t width = b.table()[norm.gain].shape.count();
  const Operand whole =
      b.emitter().tensor(b.table()[norm.gain].name + ".gradients", b.compute(), {norm.count * width}, Role::Gradient);
  op(whole);
  do {
    b.write_gradient(norm.gain + first, end - first, [&](const Operand& written) {
      b.emitter().op("gradient", Copy{}, {read(elements(whole, first * width, end * width)), write(flat(written))});
    });
  } while (next_run());
}

}  // namespace

std::pair<View, View> Builder::head_norms(const View& q, const Norm& q_norm, const View& k, const Norm& k_norm) {
  const int64_t rows = shape(q.value).rows(), queries = q.end - q.begin, keys = k.end - k.begin;
  const auto count = [&](const Norm& norm, int64_t columns) {
    return rows * columns * norm.gains / (table_[norm.gain].shape.count() * norm.count);
  };
  constexpr ActivationClass tiny = ActivationClass::Tiny;
  const Value normed = record(std::make_unique<HeadNormsNode>(q, q_norm, k, k_norm), {q.value, k.value},
                              {{"qk", {rows, queries + keys}, compute_, ActivationClass::AlwaysRecompute},
                               {"q_rstd", moments_shape(q_norm, count(q_norm, queries)), DType::F32, tiny},
                               {"k_rstd", moments_shape(k_norm, count(k_norm, keys)), DType::F32, tiny}});
  return {{normed, 0, queries}, {normed, queries, queries + keys}};
}

Value Builder::rms_norm(Value x, const Norm& norm, ActivationClass kind, std::optional<Value> addend) {
  std::vector<Value> inputs{x};
  if (addend) inputs.push_back(*addend);
  return record(std::make_unique<RmsNormNode>(norm, addend), std::move(inputs),
                {{"norm", shape(x), compute_, kind},
                 {"rstd", moments_shape(norm, shape(x).rows()), DType::F32, ActivationClass::Tiny}});
}

Value Builder::joined_norm(Value x, const Norm& norm, int64_t count) {
  const int64_t rows = shape(x).rows(), columns = shape(x).cols();
  return record(std::make_unique<RmsNormNode>(norm, std::nullopt, true), {x},
                {{"norm", {rows / count, count * columns}, compute_, ActivationClass::AlwaysRecompute},
                 {"rstd", moments_shape(norm, rows), DType::F32, ActivationClass::Tiny}});
}

bool trains(const Builder& b, const Norm& norm) {
  return trains_gain(b, norm) || (norm.bias != kNoParam && b.trainable(norm.bias));
}

Shape moments_shape(const Norm& norm, int64_t rows) {
  return norm.kind == NormKind::Rms ? Shape{rows} : Shape{2, rows};
}

void norm_forward(Builder& b, std::string_view what, const Norm& norm, const Operand& x, const Operand& y,
                  const Operand& moments) {
  const auto epsilon = static_cast<float>(norm.epsilon);
  const Operand gain = gain_of(b, norm);
  if (norm.kind == NormKind::Rms)
    return static_cast<void>(
        b.emitter().op(what, RmsNorm{epsilon, norm.plus_one}, {read(x), gain, write(y), write(moments)}));
  std::vector<Operand> operands{read(x), gain};
  const bool bias = norm.bias != kNoParam;
  if (bias) operands.push_back(read(b.placement().weight(norm.bias, 1)));
  operands.insert(operands.end(), {write(y), write(moments)});
  b.emitter().op(what, LayerNorm{epsilon, norm.plus_one, bias}, operands);
}

void norm_backward(Builder& b, NormBackward attributes, const Norm& norm, const Operand& dy, const Operand& x,
                   const Operand& moments, const Operand& dx) {
  const bool rms = norm.kind == NormKind::Rms, biased = norm.bias != kNoParam;
  const bool gain = trains_gain(b, norm), bias = biased && b.trainable(norm.bias);
  std::vector<Operand> operands{dy, read(x), gain_of(b, norm)};
  const bool bias_read = biased && attributes.restore;
  if (bias_read) operands.push_back(read(b.placement().weight(norm.bias, 1)));
  operands.insert(operands.end(), {read(moments), dx});
  const std::string site = std::string(name(norm.kind)) + ".backward";
  const auto emit = [&] {
    if (rms)
      b.emitter().op(site, RmsNormBackward{attributes.accumulate, gain, attributes.restore, norm.plus_one}, operands);
    else
      b.emitter().op(site,
                     LayerNormBackward{attributes.accumulate, gain, bias, attributes.restore, norm.plus_one, bias_read},
                     operands);
  };
  const auto with_bias = [&] {
    if (!bias) return emit();
    b.write_gradient(norm.bias, 1, [&](const Operand& dbias) {
      operands.push_back(write(dbias));
      emit();
    });
  };
  if (!gain) return with_bias();
  write_gain_gradient(b, norm, [&](const Operand& dgain) {
    operands.push_back(write(dgain));
    with_bias();
  });
}

}  // namespace snug
