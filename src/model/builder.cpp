#include "model/builder.h"

#include <array>
#include <cmath>
#include <utility>

#include "program/adapter.h"

namespace snug {
namespace {

// A window through which every token sees all there may be is none.
int64_t narrowing(int64_t window, int64_t tokens) { return window < tokens ? window : 0; }

}  // namespace

Fp8Rows in_fp8(Emitter& e, std::string_view site, const Operand& x, bool columns, const std::optional<Operand>& factors,
               Role role) {
  const int64_t rows = x.shape.rows(), cols = x.shape.cols();
  const Shape shape = columns ? Shape{cols, rows} : Shape{rows, cols};
  const Fp8Rows made{e.tensor(fmt::format("{}.codes", site), DType::U8, shape, role),
                     e.tensor(fmt::format("{}.scales", site), DType::F32, {shape.rows()}, role)};
  std::vector<Operand> operands{read(x)};
  if (factors) operands.push_back(read(*factors));
  operands.insert(operands.end(), {write(made.codes), write(made.scales)});
  e.op(fmt::format("{}.quantize", site), Quantize{BaseFormat::Fp8, factors.has_value(), columns}, operands);
  return made;
}

std::vector<Operand> with_result(std::vector<Operand> operands, const Operand& result) {
  if (result.reads()) operands.push_back(read(result));
  operands.push_back(write(result));
  return operands;
}

void Builder::begin_block(int block, std::string_view site) {
  block_ = block;
  site_ = site;
  emitter_.scope(site_);
}

Operand Builder::fresh(const State& state) { return emitter_.tensor(state.what, state.dtype, state.shape); }

Value Builder::make(std::string_view what, const Shape& shape, DType dtype) {
  values_.push_back({.what = std::string(what), .shape = shape, .dtype = dtype, .keep = Keep::Input});
  values_.back().home = fresh(values_.back());
  return {static_cast<int32_t>(values_.size() - 1)};
}

std::vector<Value> Builder::declare(std::vector<Output> outputs, Step step) {
  std::vector<Value> made;
  const auto node = static_cast<int32_t>(nodes_.size());
  nodes_.push_back(
      {.block = block_, .site = site_, .keep = outputs.front().keep, .outputs = {}, .steps = {std::move(step)}});
  for (const Output& output : outputs) {
    const Value value = make(output.what, output.shape, output.dtype);
    state(value).keep = output.keep;
    state(value).node = node;
    nodes_.back().outputs.push_back(value.id);
    made.push_back(value);
  }
  return made;
}

std::vector<Value> Builder::produce(std::vector<Output> outputs, Step step) {
  std::vector<Value> made = declare(std::move(outputs), step);
  std::vector<Operand> operands;
  for (const Value value : made) operands.push_back(state(value).home);
  step(operands);
  return made;
}

Operand Builder::use(Value value) {
  if (state(value).again) return *state(value).again;
  const int32_t node_id = state(value).node;
  if (!backward_ || node_id < 0) return state(value).home;
  const Node node = nodes_[static_cast<size_t>(node_id)];
  if (placement_.keeps(node.block, state(value).keep)) return state(value).home;
  const std::string before = emitter_.scope();
  emitter_.scope(node.site + ".again");
  std::vector<Operand> outputs;
  for (const int32_t output : node.outputs) {
    State& made = values_[static_cast<size_t>(output)];
    made.again = fresh(made);
    outputs.push_back(*made.again);
  }
  for (const Step& step : node.steps) step(outputs);
  emitter_.scope(before);
  return *state(value).again;
}

std::vector<Value> Builder::made(int block, Keep keep) const {
  std::vector<Value> found;
  for (const Node& node : nodes_)
    if (node.block == block && node.keep == keep)
      for (const int32_t output : node.outputs) found.push_back({output});
  return found;
}

void Builder::restore(Value value, const Operand& bytes) { state(value).again = bytes; }

// ---- Forward --------------------------------------------------------------------------------------------------------

Value Builder::embedding(const Operand& ids, ParamId table) {
  return produce({{"embedding", {tokens_, table_[table].shape.cols()}, compute_, Keep::Input}},
                 [=, this](std::span<const Operand> out) {
                   emitter_.op("embedding", Embedding{}, {read(ids), read(placement_.stored(table)), write(out[0])});
                 })[0];
}

Value Builder::rms_norm(Value x, const Norm& norm) {
  const Shape shape = state(x).shape;
  return produce({{"norm", shape, compute_, Keep::Cheap}, {"rstd", {shape.rows()}, DType::F32, Keep::Few}},
                 [=, this](std::span<const Operand> out) {
                   const Operand input = use(x);
                   emitter_.op("rms_norm", RmsNorm{static_cast<float>(norm.epsilon)},
                               {read(input), read(placement_.weight(norm.gain, 1)), write(out[0]), write(out[1])});
                 })[0];
}

Value Builder::linear(Value x, const Linear& linear, Keep keep, std::optional<Value> residual) {
  const int64_t rows = state(x).shape.rows();
  // The block's last linear is not computed again, and its x is there only after the way back through it has begun.
  const std::optional<Value> xa = lora_input(x, linear, keep == Keep::Input ? Keep::Few : Keep::Adapter);
  return produce({{linear.site, {rows, linear.out}, compute_, keep}}, [=, this](std::span<const Operand> out) {
    std::optional<Operand> addend;
    if (residual) addend = use(*residual);
    const std::optional<AdapterTerm> adapter = lora_term(xa, linear);
    multiply(linear.site, use(x), linear, false, adapter, addend, out[0]);
  })[0];
}

Builder::Gated Builder::linear_swiglu(Value x, const Linear& linear) {
  const int64_t rows = state(x).shape.rows();
  const Output h{"swiglu", {rows, linear.out / 2}, compute_, Keep::Cheap};
  const auto swiglu = [this](Value gate_up) -> Step {
    return [=, this](std::span<const Operand> out) {
      const Operand input = use(gate_up);
      emitter_.op("swiglu", SwiGlu{}, {read(input), write(out[0])});
    };
  };
  if (placement_.fp8_products() || linear.bias != kNoParam || !linear.lora.even()) {
    const Value gate_up = this->linear(x, linear, Keep::Mlp);
    return {gate_up, produce({h}, swiglu(gate_up))[0]};
  }
  const std::optional<Value> xa = lora_input(x, linear, Keep::Adapter);
  const Value gate_up =
      declare({{linear.site, {rows, linear.out}, compute_, Keep::Mlp}},
              [=, this](std::span<const Operand> out) { multiply_gated(x, linear, xa, out[0], std::nullopt); })[0];
  const Gated gated{gate_up, declare({h}, swiglu(gate_up))[0]};
  multiply_gated(x, linear, xa, use(gated.gate_up), use(gated.h));
  return gated;
}

void Builder::multiply_gated(Value x, const Linear& linear, std::optional<Value> xa, const Operand& gate_up,
                             const std::optional<Operand>& h) {
  const std::optional<AdapterTerm> adapter = lora_term(xa, linear);
  std::vector<Operand> operands{read(use(x)), read(placement_.weight(linear.weight, linear.count))};
  if (adapter) operands.insert(operands.end(), {adapter->u, *adapter->v});
  operands.push_back(write(gate_up));
  if (h) operands.push_back(write(*h));
  emitter_.op(linear.site, SwiGluGemm{parts_of(linear), h.has_value()}, operands);
}

void Builder::multiply(std::string_view site, const Operand& x, const Linear& linear, bool backward,
                       const std::optional<AdapterTerm>& adapter, std::optional<Operand> addend, const Operand& y) {
  const bool bias = !backward && linear.bias != kNoParam, fp8 = placement_.fp8_products();
  if (adapter && !fp8 && linear.lora.even()) {
    std::vector<Operand> operands{read(x), read(placement_.weight(linear.weight, linear.count)), adapter->u,
                                  *adapter->v};
    if (addend) operands.push_back(read(*addend));
    if (bias) operands.push_back(read(placement_.weight(linear.bias, linear.count)));
    operands.push_back(write(y));
    emitter_.op(site, AdaptedGemm{!backward, backward ? AdaptedParts{} : parts_of(linear), addend.has_value(), bias},
                operands);
    return;
  }
  // As AdaptedGemm is computed from other ops.
  std::optional<Operand> last;
  if (adapter) {
    emit_adapter(fmt::format("{}.lora", site), linear, backward, *adapter, y);
    last = std::exchange(addend, y);
  }
  std::vector<Operand> operands;
  if (fp8) {
    const Fp8Factor right = placement_.fp8_weight(linear.weight, linear.count, backward);
    const Fp8Rows left = in_fp8(emitter_, site, x, false, right.factors);
    operands = {read(left.codes), read(left.scales), read(right.rows.codes), read(right.rows.scales)};
  } else {
    operands = {read(x), read(placement_.weight(linear.weight, linear.count))};
  }
  if (addend) operands.push_back(read(*addend));
  if (bias) operands.push_back(read(placement_.weight(linear.bias, linear.count)));
  operands.push_back(write(y));
  if (fp8)
    emitter_.op(site, Fp8Gemm{addend.has_value(), bias}, operands);
  else
    emitter_.op(site, Gemm{.transpose_b = !backward, .addend = addend.has_value(), .bias = bias}, operands);
  if (last) emitter_.op(fmt::format("{}.addend", site), Accumulate{}, {read(*last), update(y)});
}

void Builder::emit_adapter(const std::string& site, const Linear& linear, bool backward, const AdapterTerm& adapter,
                           const Operand& y) {
  const Lora& lora = linear.lora;
  if (backward || lora.even()) {
    const AdaptedParts parts = backward ? AdaptedParts{} : parts_of(linear);
    for (OpCall<Operand>& call : adapter_products(!backward, parts, adapter.u, *adapter.v, write(y)))
      emitter_.op(site, call.attrs, std::move(call.operands));
    return;
  }
  int64_t row = 0, column = 0;
  const auto clear_to = [&](int64_t end) {
    if (end > row) emitter_.op(site, Fill{}, {write(columns(y, row, end))});
  };
  for (const LoraPart& part : lora.parts) {
    clear_to(part.row_begin);
    emitter_.op(site, Gemm{.transpose_b = true},
                {columns(adapter.u, column, column + part.rank), read(placement_.weight(part.b, 1)),
                 write(columns(y, part.row_begin, part.row_end))});
    row = part.row_end;
    column += part.rank;
  }
  clear_to(y.shape.cols());
}

AdaptedParts Builder::parts_of(const Linear& linear) const {
  AdaptedParts parts;
  for (size_t i = 0; i < linear.lora.parts.size(); i++) {
    parts.begin[i] = linear.lora.parts[i].row_begin;
    parts.end[i] = linear.lora.parts[i].row_end;
  }
  return parts;
}

Operand Builder::lora_a(const Linear& linear) {
  return read(placement_.weight(linear.lora.a, static_cast<int>(linear.lora.parts.size())));
}

Operand Builder::lora_b(const Linear& linear) {
  return read(placement_.weight(linear.lora.parts[0].b, static_cast<int>(linear.lora.parts.size())));
}

Dropout Builder::dropout_of(const Linear& linear) const {
  return {linear.lora.dropout, *dropout_seed_, static_cast<uint32_t>(linear.lora.a)};
}

std::optional<Value> Builder::lora_input(Value x, const Linear& linear, Keep keep) {
  if (linear.lora.parts.empty()) return std::nullopt;
  if (drops(linear)) {
    const Value whole = x;
    x = produce({{linear.site + ".dropped", state(whole).shape, compute_, Keep::Cheap}},
                [=, this](std::span<const Operand> out) {
                  const Operand input = read(use(whole));
                  emitter_.op(linear.site + ".dropout", dropout_of(linear), {input, write(out[0])});
                })[0];
    dropped_[linear.weight] = x;
  }
  const Value xa =
      produce({{linear.site + ".xa", {state(x).shape.rows(), linear.lora.columns()}, compute_, keep}},
              [=, this](std::span<const Operand> out) { emit_lora_input(read(use(x)), linear, write(out[0])); })[0];
  adapter_inputs_[linear.weight] = xa;
  return xa;
}

void Builder::emit_lora_input(const Operand& x, const Linear& linear, const Operand& xa) {
  const std::string site = linear.site + ".lora_a";
  const Lora& lora = linear.lora;
  if (lora.even()) {
    emitter_.op(site, Gemm{.transpose_b = true, .alpha = lora.parts[0].scale}, {x, lora_a(linear), xa});
    return;
  }
  int64_t column = 0;
  for (size_t i = 0; i < lora.parts.size(); i++) {
    const LoraPart& part = lora.parts[i];
    emitter_.op(
        site, Gemm{.transpose_b = true, .alpha = part.scale},
        {x, read(placement_.weight(lora.a + static_cast<ParamId>(i), 1)), columns(xa, column, column + part.rank)});
    column += part.rank;
  }
}

std::optional<Builder::AdapterTerm> Builder::lora_term(std::optional<Value> xa, const Linear& linear) {
  if (!xa) return std::nullopt;
  AdapterTerm term{read(use(*xa)), std::nullopt};
  if (linear.lora.even()) term.v = lora_b(linear);
  return term;
}

void Builder::rope(Value qkv, const HeadShape& shape, const Operand& positions, const Operand& table) {
  const Step step = [=, this](std::span<const Operand> out) {
    emitter_.op("rope", Rope{shape}, {update(out[0]), read(positions), read(table)});
  };
  Node& node = nodes_[static_cast<size_t>(state(qkv).node)];
  step(std::array{state(qkv).home});
  node.steps.push_back(step);
}

Value Builder::attention(Value qkv, const HeadShape& shape, const Operand& documents, int64_t longest, int64_t window) {
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.dim)));
  return produce({{"attention", {tokens_, shape.heads * shape.dim}, compute_, Keep::Attention},
                  {"lse", {shape.heads, tokens_}, DType::F32, Keep::Attention}},
                 [=, this](std::span<const Operand> out) {
                   const Operand input = use(qkv);
                   emitter_.op("attention", Attention{shape, scale, longest, narrowing(window, longest)},
                               {read(input), read(documents), write(out[0]), write(out[1])});
                 })[0];
}

Value Builder::cached_attention(Value qkv, const HeadShape& shape, const Operand& cache, int64_t window) {
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.dim)));
  return produce({{"attention", {tokens_, shape.heads * shape.dim}, compute_, Keep::Attention}},
                 [=, this](std::span<const Operand> out) {
                   emitter_.op("cache", CacheAppend{shape}, {read(use(qkv)), update(cache)});
                   emitter_.op("attention", CachedAttention{shape, scale, narrowing(window, cache.shape.rows())},
                               {read(use(qkv)), read(cache), write(out[0])});
                 })[0];
}

// ---- Backward -------------------------------------------------------------------------------------------------------

Value Builder::linear_backward(Value dy, const Linear& linear) {
  const Operand gradient = read(use(dy));
  const Value dx = make("d" + linear.site, {gradient.shape.rows(), linear.in}, compute_);
  std::optional<AdapterTerm> adapter;
  if (!linear.lora.parts.empty()) adapter = {emit_lora_backward(gradient, linear), lora_a(linear)};
  std::optional<Operand> addend;
  if (adapter && drops(linear)) {
    const Operand product = emitter_.tensor("d" + linear.site + ".dropped", compute_, use(dx).shape);
    emitter_.op(linear.site + ".lora_dx", Gemm{}, {adapter->u, *adapter->v, write(product)});
    emitter_.op(linear.site + ".dropout.backward", dropout_of(linear), {read(product), write(use(dx))});
    adapter.reset();
    addend = use(dx);
  }
  multiply(linear.site + ".dx", gradient, linear, true, adapter, addend, use(dx));
  return dx;
}

void Builder::weight_gradients(Value dy, Value x, const Linear& linear) {
  const Operand gradient = read(use(dy));
  if (!linear.lora.parts.empty())
    emit_lora_gradients(gradient, read(use(drops(linear) ? dropped_.at(linear.weight) : x)), linear);
  if (!trainable(linear.weight)) return;
  const Operand input = read(use(x)), dw = placement_.gradient(linear.weight, linear.count);
  const std::string site = linear.site + ".dw";
  if (placement_.fp8_products()) {
    const Fp8Rows left = in_fp8(emitter_, site + ".dy", gradient, true),
                  right = in_fp8(emitter_, site + ".x", input, true);
    emitter_.op(site, Fp8Gemm{.addend = dw.reads()},
                with_result({read(left.codes), read(left.scales), read(right.codes), read(right.scales)}, dw));
  } else {
    emitter_.op(site, Gemm{.transpose_a = true, .addend = dw.reads()}, with_result({gradient, input}, dw));
  }
  if (linear.bias != kNoParam)
    write_gradient(linear.bias, linear.count, [&](const Operand& db) {
      emitter_.op(linear.site + ".db", ColumnSum{}, {gradient, write(db)});
    });
}

void Builder::norm_backward(RmsNormBackward op, ParamId gain, std::vector<Operand> operands) {
  op.gain_gradient = trainable(gain);
  if (!op.gain_gradient) return static_cast<void>(emitter_.op("rms_norm.backward", op, operands));
  write_gradient(gain, 1, [&](const Operand& dgain) {
    operands.push_back(write(dgain));
    emitter_.op("rms_norm.backward", op, operands);
  });
}

void Builder::write_gradient(ParamId first, int count, const std::function<void(const Operand& written)>& op) {
  const Operand place = placement_.gradient(first, count);
  if (!place.reads() && place.dtype == compute_) return op(place);
  const Operand apart = emitter_.tensor(table_[first].name + ".gradient", compute_, place.shape, Role::Gradient);
  op(apart);
  if (place.reads())
    emitter_.op("add", Accumulate{}, {read(apart), place});
  else
    emitter_.op("widen", Cast{}, {read(apart), place});
}

// B's gradients, and that of x A^T, to be read; where they are asked for first.
Operand Builder::emit_lora_backward(const Operand& dy, const Linear& linear) {
  if (const auto found = dxa_.find(linear.weight); found != dxa_.end()) return found->second;
  check(linear.lora.even(), "the way back through an adapter whose parts differ");
  const Operand xa = read(use(adapter_inputs_.at(linear.weight)));
  const Operand dxa = emitter_.tensor("d" + linear.site + ".xa", compute_, xa.shape);
  emitter_.op(linear.site + ".lora.backward", AdapterBackward{linear.lora.parts[0].scale, parts_of(linear)},
              {dy, lora_b(linear), xa, write(dxa),
               write(placement_.gradient(linear.lora.parts[0].b, static_cast<int>(linear.lora.parts.size())))});
  return dxa_[linear.weight] = read(dxa);
}

void Builder::emit_lora_gradients(const Operand& dy, const Operand& x, const Linear& linear) {
  const Operand dxa = emit_lora_backward(dy, linear);
  emitter_.op(linear.site + ".lora_da", Gemm{.transpose_a = true},
              {dxa, x, write(placement_.gradient(linear.lora.a, static_cast<int>(linear.lora.parts.size())))});
}

// Whether the reader's gradients need a value that is neither kept nor computed again yet.
bool Builder::restores(Value value, const Linear& reader) {
  const State& asked = state(value);
  return (trainable(reader.weight) || !reader.lora.parts.empty()) && !asked.again &&
         !placement_.keeps(block_, asked.keep);
}

void Builder::rms_norm_backward(Value dy, Value x, ParamId gain, Value y, Value dx, const Linear& reader) {
  const bool restored = restores(y, reader);
  const Value rstd{nodes_[static_cast<size_t>(state(y).node)].outputs[1]};
  const Operand gradient = use(dy);
  norm_backward({.accumulate = true, .restore = restored}, gain,
                {restored ? update(gradient) : read(gradient), read(use(x)), read(placement_.weight(gain, 1)),
                 read(use(rstd)), update(use(dx))});
  if (restored) restore(y, gradient);
}

void Builder::rope_backward(Value dqkv, const HeadShape& shape, const Operand& positions, const Operand& table) {
  emitter_.op("rope.backward", Rope{shape, true}, {update(use(dqkv)), read(positions), read(table)});
}

Value Builder::attention_backward(Value dout, Value qkv, Value out, const HeadShape& shape, const Operand& documents,
                                  int64_t longest, int64_t window) {
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.dim)));
  const Operand result = use(out), inputs = use(qkv);
  const Operand lse = use({nodes_[static_cast<size_t>(state(out).node)].outputs[1]});
  const Value dqkv = make("dqkv", {tokens_, shape.width()}, compute_);
  emitter_.op("attention.backward", AttentionBackward{shape, scale, longest, narrowing(window, longest)},
              {read(use(dout)), read(inputs), read(result), read(lse), read(documents), write(use(dqkv))});
  return dqkv;
}

Value Builder::linear_swiglu_backward(Value dy, const Linear& reader, const Gated& gated) {
  const bool one = !placement_.fp8_products() && !drops(reader);
  const Value dh = one ? make("d" + reader.site, state(gated.h).shape, compute_) : linear_backward(dy, reader);
  const Operand inputs = use(gated.gate_up), place = use(dh);
  const Value dgate_up = make("dgate_up", inputs.shape, compute_);
  const bool restored = restores(gated.h, reader);
  if (one) {
    const bool adapted = !reader.lora.parts.empty();
    const Operand gradient = read(use(dy));
    std::vector<Operand> operands{gradient, read(placement_.weight(reader.weight, reader.count))};
    if (adapted) operands.insert(operands.end(), {emit_lora_backward(gradient, reader), lora_a(reader)});
    operands.insert(operands.end(), {read(inputs), write(use(dgate_up)), write(place)});
    emitter_.op(reader.site + ".dx", SwiGluGemmBackward{adapted, restored}, operands);
  } else {
    emitter_.op("swiglu.backward", SwiGluBackward{restored},
                {restored ? update(place) : read(place), read(inputs), write(use(dgate_up))});
  }
  if (restored) restore(gated.h, place);
  return dgate_up;
}

void Builder::embedding_backward(Value dx, const BatchBuffers& batch, ParamId table, bool tied) {
  Operand gradient = placement_.gradient(table, 1);
  if (tied) gradient = update(gradient);
  emitter_.op("embedding.backward", EmbeddingBackward{gradient.reads()},
              {read(use(dx)), read(batch.token_order), read(batch.segment_starts), read(batch.segment_ids), gradient});
}

}  // namespace snug
