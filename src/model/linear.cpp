#include "model/linear.h"

#include <utility>

#include "program/adapter.h"

namespace snug {
namespace {

// Return the adapter's halves of `count` parts from the first on, to be read: with what is taken off of them below
// each A, and beside each B.
Operand lora_a(Builder& b, const Lora& lora, size_t first, size_t count) {
  return read(b.placement().weight(lora.a_of(first), static_cast<int>(count) * lora.pieces()));
}
Operand lora_b(Builder& b, const Lora& lora, size_t first, size_t count) {
  const Operand own = read(b.placement().weight(lora.parts[first].b, static_cast<int>(count)));
  if (lora.initial_b == kNoParam) return own;
  const ParamId initial = lora.initial_b + static_cast<ParamId>(first);
  const int64_t rank = own.shape.cols();
  const Operand both = b.emitter().tensor("lora_b.both", b.compute(), {own.shape.rows(), 2 * rank}, Role::Weight);
  b.emitter().op("lora_b.own", Copy{}, {own, write(columns(both, 0, rank))});
  b.emitter().op("lora_b.initial", Copy{},
                 {read(b.placement().weight(initial, static_cast<int>(count))), write(columns(both, rank, 2 * rank))});
  return read(both);
}
Operand lora_a(Builder& b, const Linear& linear) { return lora_a(b, linear.lora, 0, linear.lora.parts.size()); }
Operand lora_b(Builder& b, const Linear& linear) { return lora_b(b, linear.lora, 0, linear.lora.parts.size()); }

bool drops_input(const Builder& b, const Linear& linear) { return b.dropout_seed() && linear.lora.dropout > 0; }
Dropout dropout_of(const Builder& b, const Linear& linear) {
  return {linear.lora.dropout, *b.dropout_seed(), static_cast<uint32_t>(linear.lora.a)};
}

// Computes an adapter's input where dropout makes it differ from x.
class AdapterDropoutNode : public Node {
 public:
  explicit AdapterDropoutNode(const Linear& linear) : linear_(linear) {}
  bool differentiable() const override { return false; }
  void compute(Builder& b, std::span<const Operand> outputs) override {
    const Operand input = read(b.use(inputs[0]));
    b.emitter().op(linear_.site + ".dropout", dropout_of(b, linear_), {input, write(outputs[0])});
  }

 private:
  const Linear& linear_;
};

// Computes scale x A^T of all parts, side by side.
class AdapterInputNode : public Node {
 public:
  explicit AdapterInputNode(const Linear& linear) : linear_(linear) {}
  bool differentiable() const override { return false; }
  void compute(Builder& b, std::span<const Operand> outputs) override {
    const Operand x = read(b.use(inputs[0])), xa = write(outputs[0]);
    const std::string site = linear_.site + ".lora_a";
    const Lora& lora = linear_.lora;
    if (lora.even()) {
      b.emitter().op(site, Gemm{.transpose_b = true, .alpha = lora.parts[0].scale}, {x, lora_a(b, linear_), xa});
      return;
    }
    int64_t column = 0;
    for (size_t i = 0; i < lora.parts.size(); i++) {
      const LoraPart& part = lora.parts[i];
      b.emitter().op(site, Gemm{.transpose_b = true, .alpha = part.scale},
                     {x, lora_a(b, lora, i, 1), columns(xa, column, column + lora.width(part))});
      column += lora.width(part);
    }
  }

 private:
  const Linear& linear_;
};

}  // namespace

AdaptedParts parts_of(const Linear& linear) {
  AdaptedParts parts;
  check(linear.lora.parts.size() <= parts.begin.size(), "{}: {} adapted parts, at most {} are supported", linear.site,
        linear.lora.parts.size(), parts.begin.size());
  for (size_t i = 0; i < linear.lora.parts.size(); i++) {
    parts.begin[i] = linear.lora.parts[i].row_begin;
    parts.end[i] = linear.lora.parts[i].row_end;
  }
  return parts;
}

Fp8Rows fp8_rows(Emitter& e, std::string_view site, const Shape& shape, Role role) {
  return {e.tensor(fmt::format("{}.codes", site), DType::U8, shape, role),
          e.tensor(fmt::format("{}.scales", site), DType::F32, {shape.rows()}, role)};
}

Fp8Rows in_fp8(Emitter& e, std::string_view site, const Operand& x, const Fp8Extras& extras) {
  const Fp8Rows result = fp8_rows(e, site, {x.shape.rows(), x.shape.cols()}, extras.role);
  std::vector<Operand> operands{read(x)};
  if (extras.factors) operands.push_back(read(*extras.factors));
  operands.insert(operands.end(), {write(result.codes), write(result.scales)});
  if (extras.column_scales) operands.push_back(write(*extras.column_scales));
  e.op(fmt::format("{}.quantize", site),
       Quantize{BaseFormat::Fp8, extras.factors.has_value(), false, extras.column_scales.has_value()}, operands);
  return result;
}

Fp8Rows columns_in_fp8(Emitter& e, std::string_view site, const Operand& x,
                       const std::optional<Operand>& column_scales) {
  const Shape shape{x.shape.cols(), x.shape.rows()};
  Fp8Rows result;
  if (column_scales)
    result = {e.tensor(fmt::format("{}.codes", site), DType::U8, shape), read(*column_scales)};
  else
    result = fp8_rows(e, site, shape);
  e.op(fmt::format("{}.quantize", site), Quantize{BaseFormat::Fp8, false, true, column_scales.has_value()},
       {read(x), write(result.codes), column_scales ? result.scales : write(result.scales)});
  return result;
}

Value Builder::linear(Value x, const Linear& linear, ActivationClass kind, std::optional<Value> addend) {
  if (!linear.lora.parts.empty() && !adapters_) return product(x, linear, LinearForm::AdapterLeftOut, kind, addend);
  if (linear.lora.scales_rows()) return scaled_linear(x, linear, kind, addend);
  return product(x, linear, LinearForm::Whole, kind, addend);
}

Value Builder::product(Value x, const Linear& linear, LinearForm form, ActivationClass kind,
                       std::optional<Value> addend) {
  const int64_t rows = shape(x).rows();
  std::vector<Value> inputs{x};
  std::optional<Value> dropped, xa;
  const bool adapted = form == LinearForm::Whole || form == LinearForm::WithoutBias;
  if (!linear.lora.parts.empty() && adapted) {
    if (drops_input(*this, linear) && form == LinearForm::Whole)
      dropped = record(std::make_unique<AdapterDropoutNode>(linear), {x},
                       {{linear.site + ".dropped", shape(x), compute_, ActivationClass::AlwaysRecompute}});
    // The layer's last linear is not recomputed, and its x is there only after its backward has begun.
    xa = record(std::make_unique<AdapterInputNode>(linear), {dropped.value_or(x)},
                {{linear.site + ".xa",
                  {rows, linear.lora.columns()},
                  compute_,
                  kind == ActivationClass::LayerBoundary ? ActivationClass::Tiny : ActivationClass::Adapter}});
  }
  if (addend) inputs.push_back(*addend);
  auto node = std::make_unique<LinearNode>(linear, form, x, addend, dropped, xa);
  std::vector<Output> outputs{{linear.site, {rows, linear.out}, compute_, kind}};
  if (trains() && placement_.fp8_products() && node->trains_weights(*this))
    outputs.push_back({linear.site + ".x_scales", {shape(x).cols()}, DType::F32, ActivationClass::Tiny});
  return record(std::move(node), std::move(inputs), std::move(outputs));
}

// ---- Forward --------------------------------------------------------------------------------------------------------

bool LinearNode::trains_weights(const Builder& b) const {
  for (int part = 0; part < linear_.count; part++)
    if (b.trainable(linear_.weight + part)) return true;
  return false;
}
bool LinearNode::trains(const Builder& b) const { return trains_weights(b) || (xa_ && b.trainable(linear_.lora.a)); }

void LinearNode::forward(Builder& b) {
  if (!gated_) return Node::forward(b);
  b.home(outputs[0]);
}

void LinearNode::compute(Builder& b, std::span<const Operand> outputs) {
  if (gated_) return compute_gated(b, outputs[0], std::nullopt);
  std::optional<Operand> addend;
  if (addend_) addend = b.use(*addend_);
  const std::optional<AdapterTerm> adapter = adapter_term(b);
  if (outputs.size() > 1) x_scales_ = outputs[1];
  multiply(b, linear_.site, b.use(x_), false, adapter, addend, outputs[0]);
}

void LinearNode::compute_gated(Builder& b, const Operand& gate_up, const std::optional<Operand>& h) {
  const std::optional<AdapterTerm> adapter = adapter_term(b);
  std::vector<Operand> operands{read(b.use(x_)), read(b.placement().weight(linear_.weight, linear_.count))};
  if (adapter) operands.insert(operands.end(), {adapter->u, *adapter->v});
  operands.push_back(write(gate_up));
  if (h) operands.push_back(write(*h));
  const AdaptedParts parts = adapter ? parts_of(linear_) : AdaptedParts{};
  b.emitter().op(linear_.site, SwiGluGemm{parts, h.has_value(), gated_.value()}, operands);
}

std::optional<LinearNode::AdapterTerm> LinearNode::adapter_term(Builder& b) const {
  if (!xa_) return std::nullopt;
  AdapterTerm term{read(b.use(*xa_)), std::nullopt};
  if (linear_.lora.even()) term.v = lora_b(b, linear_);
  return term;
}

void LinearNode::multiply(Builder& b, std::string_view site, const Operand& a, bool backward,
                          const std::optional<AdapterTerm>& adapter, std::optional<Operand> addend, const Operand& y) {
  Emitter& e = b.emitter();
  Placement& placement = b.placement();
  const bool bias = !backward && linear_.bias != kNoParam && form_ != LinearForm::WithoutBias,
             fp8 = placement.fp8_products();
  if (adapter && !fp8 && linear_.lora.even()) {
    std::vector<Operand> operands{read(a), read(placement.weight(linear_.weight, linear_.count)), adapter->u,
                                  *adapter->v};
    if (addend) operands.push_back(read(*addend));
    if (bias) operands.push_back(read(placement.weight(linear_.bias, linear_.count)));
    operands.push_back(write(y));
    e.op(site, AdaptedGemm{!backward, backward ? AdaptedParts{} : parts_of(linear_), addend.has_value(), bias},
         operands);
    return;
  }
  // These are the ops that AdaptedGemm is made of: y takes the adapter's term, to which the product is added, then the
  // addend.
  std::optional<Operand> last;
  if (adapter) {
    multiply_adapter(b, fmt::format("{}.lora", site), backward, *adapter, y);
    last = addend;
    addend = y;
  } else if (form_ == LinearForm::AdapterLeftOut) {
    last = std::exchange(addend, std::nullopt);
  }
  std::vector<Operand> operands;
  if (fp8)
    operands = backward ? fp8_gradient_factors(b, site, a) : fp8_factors(b, site, a);
  else
    operands = {read(a), read(placement.weight(linear_.weight, linear_.count))};
  if (addend) operands.push_back(read(*addend));
  if (bias) operands.push_back(read(placement.weight(linear_.bias, linear_.count)));
  operands.push_back(write(y));
  if (fp8)
    e.op(site, Fp8Gemm{addend.has_value(), bias}, operands);
  else
    e.op(site, Gemm{.transpose_b = !backward, .addend = addend.has_value(), .bias = bias}, operands);
  if (last) e.op(fmt::format("{}.addend", site), Accumulate{}, {read(*last), update(y)});
}

std::vector<Operand> LinearNode::fp8_factors(Builder& b, std::string_view site, const Operand& x) {
  const Fp8Rows weight = b.placement().fp8_weight(linear_.weight, linear_.count);
  const std::optional<Fp8Rows> written = std::exchange(x_codes_, std::nullopt);
  const Fp8Rows codes = written ? *written : in_fp8(b.emitter(), site, x, {.column_scales = x_scales_});
  return {read(codes.codes), read(codes.scales), read(weight.codes), read(weight.scales)};
}

Fp8Rows LinearNode::codes_of_x(Builder& b) {
  return x_codes_.emplace(fp8_rows(b.emitter(), linear_.site, b.shape(x_)));
}

std::optional<Operand> LinearNode::column_scales_of_x(Builder& b) {
  if (outputs.size() < 2) return std::nullopt;
  return b.home(outputs[1]);
}

LinearNode::GradientCodes& LinearNode::codes_of_gradient(Builder& b) {
  GradientCodes& codes = begin_gradient_codes(b);
  codes.rows = fp8_rows(b.emitter(), linear_.site + ".dx", b.shape(outputs[0]));
  return codes;
}

LinearNode::GradientCodes& LinearNode::begin_gradient_codes(Builder& b) {
  if (gradient_codes_) return *gradient_codes_;
  GradientCodes& codes = gradient_codes_.emplace();
  codes.weight = b.placement().fp8_weight(linear_.weight, linear_.count);
  if (trains_weights(b))
    codes.column_scales = b.emitter().tensor(linear_.site + ".dy_scales", DType::F32, {linear_.out});
  return codes;
}

std::vector<Operand> LinearNode::fp8_gradient_factors(Builder& b, std::string_view site, const Operand& dy) {
  GradientCodes& left = begin_gradient_codes(b);
  const Fp8Rows right = b.placement().fp8_transposed(linear_.weight, left.weight);
  if (!left.rows) left.rows = in_fp8(b.emitter(), site, dy, {left.weight.scales, left.column_scales});
  return {read(left.rows->codes), read(left.rows->scales), read(right.codes), read(right.scales)};
}

void LinearNode::multiply_adapter(Builder& b, const std::string& site, bool backward, const AdapterTerm& adapter,
                                  const Operand& y) const {
  Emitter& e = b.emitter();
  const Lora& lora = linear_.lora;
  if (backward || lora.even()) {
    const AdaptedParts parts = backward ? AdaptedParts{} : parts_of(linear_);
    for (OpCall<Operand>& call : adapter_products(!backward, parts, adapter.u, *adapter.v, write(y)))
      e.op(site, call.attrs, std::move(call.operands));
    return;
  }
  int64_t row = 0, column = 0;
  const auto clear_to = [&](int64_t end) {
    if (end > row) e.op(site, Fill{}, {write(columns(y, row, end))});
  };
  for (size_t i = 0; i < lora.parts.size(); i++) {
    const LoraPart& part = lora.parts[i];
    clear_to(part.row_begin);
    e.op(site, Gemm{.transpose_b = true},
         {columns(adapter.u, column, column + lora.width(part)), lora_b(b, lora, i, 1),
          write(columns(y, part.row_begin, part.row_end))});
    row = part.row_end;
    column += lora.width(part);
  }
  clear_to(y.shape.cols());
}

// ---- Backward -------------------------------------------------------------------------------------------------------

void LinearNode::backward(Builder& b) {
  if (b.wants_gradient(x_) && input_gradient_left_)
    b.gradient_to_add(x_);
  else if (b.wants_gradient(x_))
    b.give_gradient(x_, [&](const Operand& dx) { input_gradient(b, dx); });
  if (trains(b)) b.weight_gradients(*this);
  if (addend_) b.pass_gradient(outputs[0], *addend_);
}

void LinearNode::input_gradient(Builder& b, const Operand& dx) {
  const Operand dy = b.gradient(outputs[0]);
  std::optional<AdapterTerm> adapter;
  if (xa_) adapter = {adapter_gradient(b), lora_a(b, linear_)};
  std::optional<Operand> addend;
  if (adapter && drops()) {
    Emitter& e = b.emitter();
    const Operand product = e.tensor("d" + linear_.site + ".dropped", b.compute(), dx.shape);
    e.op(linear_.site + ".lora_dx", Gemm{}, {adapter->u, *adapter->v, write(product)});
    e.op(linear_.site + ".dropout.backward", dropout_of(b, linear_), {read(product), write(dx)});
    adapter.reset();
    addend = dx;
  }
  multiply(b, linear_.site + ".dx", dy, true, adapter, addend, dx);
}

std::vector<Operand> LinearNode::input_gradient_factors(Builder& b) {
  const Operand dy = b.gradient(outputs[0]);
  std::vector<Operand> factors{dy, read(b.placement().weight(linear_.weight, linear_.count))};
  if (xa_) factors.insert(factors.end(), {adapter_gradient(b), lora_a(b, linear_)});
  return factors;
}

Operand LinearNode::adapter_gradient(Builder& b) {
  if (dxa_) return *dxa_;
  const Lora& lora = linear_.lora;
  const Operand xa = read(b.use(*xa_)), dy = b.gradient(outputs[0]);
  const Operand dxa = b.emitter().tensor("d" + linear_.site + ".xa", b.compute(), xa.shape);
  if (lora.even()) {
    emit_adapter_backward(b, 0, lora.parts.size(), parts_of(linear_), dy, xa, write(dxa));
    return dxa_.emplace(read(dxa));
  }
  int64_t column = 0;
  for (size_t i = 0; i < lora.parts.size(); i++) {
    const int64_t end = column + lora.width(lora.parts[i]);
    AdaptedParts rows;
    rows.begin[0] = lora.parts[i].row_begin, rows.end[0] = lora.parts[i].row_end;
    emit_adapter_backward(b, i, 1, rows, dy, read(columns(xa, column, end)), write(columns(dxa, column, end)));
    column = end;
  }
  return dxa_.emplace(read(dxa));
}

void LinearNode::emit_adapter_backward(Builder& b, size_t first, size_t count, const AdaptedParts& parts,
                                       const Operand& dy, const Operand& xa, const Operand& dxa) const {
  Emitter& e = b.emitter();
  const Lora& lora = linear_.lora;
  const std::string site = linear_.site + ".lora.backward";
  const AdapterBackward attributes{lora.parts[first].scale, parts};
  const Operand v = lora_b(b, lora, first, count),
                db = b.placement().gradient(lora.parts[first].b, static_cast<int>(count));
  if (lora.initial_b == kNoParam) {
    e.op(site, attributes, {dy, v, xa, dxa, write(db)});
    return;
  }
  const Operand both = e.tensor("d" + linear_.site + ".lora_b", b.compute(), v.shape, Role::Gradient);
  e.op(site, attributes, {dy, v, xa, dxa, write(both)});
  e.op(site + ".own", Copy{}, {read(columns(both, 0, db.shape.cols())), write(db)});
}

void LinearNode::parameter_gradients(Builder& b) {
  Emitter& e = b.emitter();
  const Operand dy = b.gradient(outputs[0]);
  if (const Lora& lora = linear_.lora; xa_) {
    const Operand x = read(b.use(dropped_.value_or(x_))), dxa = adapter_gradient(b);
    const std::string site = linear_.site + ".lora_da";
    if (lora.initial_b == kNoParam)
      e.op(site, Gemm{.transpose_a = true},
           {dxa, x, write(b.placement().gradient(lora.a, static_cast<int>(lora.parts.size())))});
    int64_t column = 0;
    for (size_t i = 0; lora.initial_b != kNoParam && i < lora.parts.size(); i++) {
      e.op(site, Gemm{.transpose_a = true},
           {columns(dxa, column, column + lora.parts[i].rank), x, write(b.placement().gradient(lora.a_of(i), 1))});
      column += lora.width(lora.parts[i]);
    }
  }
  int64_t row = 0;
  for (int first = 0, end = 0; first < linear_.count; first = end) {
    const int64_t begin = row;
    const bool trained = b.trainable(linear_.weight + first);
    for (; end < linear_.count && b.trainable(linear_.weight + end) == trained; end++)
      row += b.table()[linear_.weight + end].shape.rows();
    if (trained) weight_gradient(b, first, end - first, dy, begin, row);
  }
}

void LinearNode::weight_gradient(Builder& b, int first, int count, const Operand& whole, int64_t begin, int64_t end) {
  Emitter& e = b.emitter();
  const Operand dy = columns(whole, begin, end);
  const Operand x = read(b.use(x_)), dw = b.placement().gradient(linear_.weight + first, count);
  const std::string site = linear_.site + ".dw";
  if (b.placement().fp8_products()) {
    std::optional<Operand> dy_scales, x_scales;
    if (gradient_codes_ && gradient_codes_->column_scales)
      dy_scales = elements(*gradient_codes_->column_scales, begin, end);
    if (outputs.size() > 1) x_scales = b.use(outputs[1]);
    const Fp8Rows left = columns_in_fp8(e, site + ".dy", dy, dy_scales),
                  right = columns_in_fp8(e, site + ".x", x, x_scales);
    e.op(site, Fp8Gemm{.addend = dw.reads()},
         with_result({read(left.codes), read(left.scales), read(right.codes), read(right.scales)}, dw));
  } else {
    e.op(site, Gemm{.transpose_a = true, .addend = dw.reads()}, with_result({dy, x}, dw));
  }
  if (linear_.bias != kNoParam)
    b.write_gradient(linear_.bias + first, count, [&](const Operand& db) {
      e.op(linear_.site + ".db", ColumnSum{}, {dy, write(db)});
    });
}

}  // namespace snug
