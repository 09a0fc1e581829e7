#include "model/linear.h"

#include <algorithm>
#include <utility>

#include "base/rounding.h"
#include "program/adapter.h"

namespace snug {
namespace {

// Kernels of adapters take ranks that this divides: products read rows in groups of 16 bytes.
constexpr int64_t kRankMultiple = 8;

// Names parts of an adapter that are one product: all of them where they are even, else each by itself.
struct Run {
  size_t first = 0, count = 0;              // parts
  int64_t held = 0, width = 0, column = 0;  // of a part, of a part in products; the first of x A^T
  int64_t end() const { return column + static_cast<int64_t>(count) * width; }
  bool padded() const { return width > held; }
};

// Returns an adapter's runs in products of so many rows. The rank is rounded up there: A gets rows of zeros and B gets
// columns of zeros, which add nothing, and whose gradients are left out. Nothing else knows of them. A product of fewer
// rows, such as a new token's, reads A and B once, and copies of them would take as long as it does.
std::vector<Run> runs_of(const Lora& lora, int64_t rows) {
  std::vector<Run> runs;
  for (size_t i = 0; i < lora.parts.size(); i += runs.back().count) {
    const int64_t held = lora.width(lora.parts[i]), column = runs.empty() ? 0 : runs.back().end();
    runs.push_back({i, lora.even() ? lora.parts.size() : 1, held,
                    rows < kRankMultiple ? held : round_up(held, kRankMultiple), column});
  }
  return runs;
}

// Return the adapter's halves in some runs, one after the other, to be read: with what is taken off of them below each
// A, and beside each B.
Operand lora_a(Builder& b, const Lora& lora, std::span<const Run> runs) {
  const auto weight = [&](size_t first, size_t count) {
    return read(b.placement().weight(lora.a_of(first), static_cast<int>(count) * lora.pieces()));
  };
  const size_t first = runs.front().first, count = runs.back().first + runs.back().count - first;
  if (std::ranges::none_of(runs, &Run::padded)) return weight(first, count);
  const int64_t begin = runs.front().column;
  std::optional<Operand> all;
  for (const Run& run : runs) {
    const Operand own = weight(run.first, run.count);
    if (!all)
      all = b.emitter().tensor("lora_a.padded", own.dtype, {runs.back().end() - begin, own.shape.cols()}, Role::Weight);
    const Operand part = rows(*all, run.column - begin, run.end() - begin);
    const auto parts = static_cast<int64_t>(run.count);
    b.emitter().op("lora_a.pad", FitColumns{}, {in_rows(own, parts), write(in_rows(part, parts))});
  }
  return read(*all);
}
Operand lora_b(Builder& b, const Lora& lora, const Run& run) {
  Emitter& e = b.emitter();
  const auto weight = [&](ParamId id) { return read(b.placement().weight(id, static_cast<int>(run.count))); };
  const Operand own = weight(lora.parts[run.first].b);
  const int64_t rank = own.shape.cols();
  if (run.width == rank) return own;
  const Operand all = e.tensor("lora_b.both", own.dtype, {own.shape.rows(), run.width}, Role::Weight);
  if (lora.initial_b == kNoParam) {
    e.op("lora_b.pad", FitColumns{}, {own, write(all)});
    return read(all);
  }
  e.op("lora_b.own", Copy{}, {own, write(columns(all, 0, rank))});
  e.op("lora_b.initial", FitColumns{},
       {weight(lora.initial_b + static_cast<ParamId>(run.first)), write(columns(all, rank, run.width))});
  return read(all);
}

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
    const Operand x = read(b.use(inputs[0]));
    const Lora& lora = linear_.lora;
    for (const Run& run : runs_of(lora, x.shape.rows()))
      b.emitter().op(linear_.site + ".lora_a", Gemm{.transpose_b = true, .alpha = lora.parts[run.first].scale},
                     {x, lora_a(b, lora, {&run, 1}), columns(write(outputs[0]), run.column, run.end())});
  }

 private:
  const Linear& linear_;
};

}  // namespace

Operand bias_of(Builder& b, const Linear& linear) {
  if (linear.biases.empty()) return b.placement().weight(linear.bias, linear.count);
  const Operand bias = b.emitter().tensor(linear.site + ".bias", b.compute(), {linear.out}, Role::Weight);
  b.emitter().op(linear.site + ".bias", Fill{}, {write(bias)});
  for (const auto& [id, begin, end] : linear.biases)
    b.emitter().op(linear.site + ".bias", Copy{},
                   {read(b.placement().weight(id, 1)), write(elements(bias, begin, end))});
  return read(bias);
}

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
                  {rows, runs_of(linear.lora, rows).back().end()},
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
bool LinearNode::trains(const Builder& b) const {
  return trains_weights(b) || (xa_ && b.trainable(linear_.lora.a)) ||
         std::ranges::any_of(linear_.biases, [&](const Linear::Bias& bias) { return b.trainable(bias.id); });
}

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
  if (linear_.lora.even()) term.v = lora_b(b, linear_.lora, runs_of(linear_.lora, term.u.shape.rows())[0]);
  return term;
}

Operand LinearNode::own_rows(const Operand& parameters) const {
  if (!linear_.first_row) return parameters;
  const int64_t begin = *linear_.first_row, end = begin + linear_.out;
  return parameters.shape.rank == 1 ? elements(parameters, begin, end) : rows(parameters, begin, end);
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
    if (bias) operands.push_back(read(bias_of(b, linear_)));
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
    operands = {read(a), read(own_rows(placement.weight(linear_.weight, linear_.count)))};
  if (addend) operands.push_back(read(*addend));
  if (bias) operands.push_back(read(own_rows(bias_of(b, linear_))));
  operands.push_back(write(y));
  if (fp8)
    e.op(site, Fp8Gemm{addend.has_value(), bias}, operands);
  else
    e.op(site, Gemm{.transpose_b = backward == linear_.transposed, .addend = addend.has_value(), .bias = bias},
         operands);
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
  int64_t row = 0;
  const auto clear_to = [&](int64_t end) {
    if (end > row) e.op(site, Fill{}, {write(columns(y, row, end))});
  };
  for (const Run& run : runs_of(lora, y.shape.rows())) {
    const LoraPart& part = lora.parts[run.first];
    clear_to(part.row_begin);
    e.op(site, Gemm{.transpose_b = true},
         {columns(adapter.u, run.column, run.end()), lora_b(b, lora, run),
          write(columns(y, part.row_begin, part.row_end))});
    row = part.row_end;
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
  if (xa_) adapter = {adapter_gradient(b), lora_a(b, linear_.lora, runs_of(linear_.lora, dx.shape.rows()))};
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
  if (xa_)
    factors.insert(factors.end(),
                   {adapter_gradient(b), lora_a(b, linear_.lora, runs_of(linear_.lora, dy.shape.rows()))});
  return factors;
}

Operand LinearNode::adapter_gradient(Builder& b) {
  if (dxa_) return *dxa_;
  const Lora& lora = linear_.lora;
  const Operand xa = read(b.use(*xa_)), dy = b.gradient(outputs[0]);
  const Operand dxa = b.emitter().tensor("d" + linear_.site + ".xa", b.compute(), xa.shape);
  for (const Run& run : runs_of(lora, xa.shape.rows())) {
    const LoraPart& part = lora.parts[run.first];
    AdaptedParts parts = parts_of(linear_);
    if (run.count < lora.parts.size()) parts = {{part.row_begin}, {part.row_end}};
    const AdapterBackward attributes{part.scale, parts};
    const Operand v = lora_b(b, lora, run), db = b.placement().gradient(part.b, static_cast<int>(run.count)),
                  xa_of_run = columns(xa, run.column, run.end()),
                  dxa_of_run = columns(write(dxa), run.column, run.end());
    const std::string site = linear_.site + ".lora.backward";
    const auto emit = [&](const Operand& to) {
      b.emitter().op(site, attributes, {dy, v, xa_of_run, dxa_of_run, write(to)});
    };
    if (v.shape == db.shape) {
      emit(db);
      continue;
    }
    const Operand all = b.emitter().tensor("d" + linear_.site + ".lora_b", db.dtype, v.shape, Role::Gradient);
    emit(all);
    b.emitter().op(site + ".own", FitColumns{}, {read(all), write(db)});
  }
  return dxa_.emplace(read(dxa));
}

void LinearNode::adapter_a_gradient(Builder& b) {
  const Lora& lora = linear_.lora;
  const Operand x = read(b.use(dropped_.value_or(x_))), dxa = adapter_gradient(b);
  const std::string site = linear_.site + ".lora_da";
  const auto gradient = [&](size_t first, size_t count) {
    return write(b.placement().gradient(lora.a_of(first), static_cast<int>(count)));
  };
  const auto multiply = [&](const Operand& d, const Operand& da) {
    b.emitter().op(site, Gemm{.transpose_a = true}, {d, x, da});
  };
  const std::vector<Run> runs = runs_of(lora, x.shape.rows());
  const bool began = lora.initial_b != kNoParam,
             some_odd = x.shape.rows() >= kRankMultiple && std::ranges::any_of(lora.parts, [](const LoraPart&part) {
                          return part.rank % kRankMultiple != 0;
                        });
  if (!began && !some_odd) return multiply(dxa, gradient(0, lora.parts.size()));
  std::optional<Operand> all;  // with rows of padding, and those of what was taken off
  if (some_odd) {
    all = b.emitter().tensor(site + ".padded", b.compute(), {dxa.shape.cols(), x.shape.cols()}, Role::Gradient);
    multiply(dxa, write(*all));
  }
  for (const Run& run : runs)
    // A as it began lies between one part's A and the next one's.
    for (size_t i = 0, count = began ? 1 : run.count; i < run.count; i += count) {
      const int64_t column = run.column + static_cast<int64_t>(i) * run.width;
      const Operand da = gradient(run.first + i, count);
      if (!all) {
        multiply(columns(dxa, column, column + da.shape.rows()), da);
        continue;
      }
      const auto parts = static_cast<int64_t>(count);
      const Operand own = read(rows(*all, column, column + parts * run.width));
      b.emitter().op(site + ".fit", FitColumns{}, {in_rows(own, parts), in_rows(da, parts)});
    }
}

void LinearNode::parameter_gradients(Builder& b) {
  const Operand dy = b.gradient(outputs[0]);
  if (xa_) adapter_a_gradient(b);
  int64_t row = 0;
  for (int first = 0, end = 0; first < linear_.count; first = end) {
    const int64_t begin = row;
    const bool trained = b.trainable(linear_.weight + first);
    for (; end < linear_.count && b.trainable(linear_.weight + end) == trained; end++)
      row += b.table()[linear_.weight + end].shape.rows();
    if (linear_.count == 1) row = linear_.out;  // of the weight it may take some rows, or columns
    if (trained) weight_gradient(b, first, end - first, dy, begin, row);
  }
  // Such biases are no module's of the linear, and may be trained without its weight.
  for (const Linear::Bias& bias : linear_.biases)
    if (b.trainable(bias.id))
      b.write_gradient(bias.id, 1, [&](const Operand& db) {
        b.emitter().op(linear_.site + ".db", ColumnSum{}, {columns(dy, bias.begin, bias.end), write(db)});
      });
}

void LinearNode::weight_gradient(Builder& b, int first, int count, const Operand& whole, int64_t begin, int64_t end) {
  Emitter& e = b.emitter();
  const Operand dy = columns(whole, begin, end);
  const Operand x = read(b.use(x_)), dw = own_rows(b.placement().gradient(linear_.weight + first, count));
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
    e.op(site, Gemm{.transpose_a = true, .addend = dw.reads()},
         with_result(linear_.transposed ? std::vector{x, dy} : std::vector{dy, x}, dw));
  }
  if (linear_.bias != kNoParam && linear_.biases.empty())
    b.write_gradient(
        linear_.bias + first, count,
        [&](const Operand& db) {
          e.op(linear_.site + ".db", ColumnSum{}, {dy, write(db)});
        },
        [&](const Operand& db) { return own_rows(db); });
}

}  // namespace snug
