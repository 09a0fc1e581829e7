#include "model/builder.h"

#include "model/fusion.h"
#include "model/linear.h"

namespace snug {

void Node::forward(Builder& b) {
  std::vector<Operand> homes;
  for (const Value output : outputs) homes.push_back(b.home(output));
  compute(b, homes);
}

std::vector<Operand> with_result(std::vector<Operand> operands, const Operand& result) {
  if (result.reads()) operands.push_back(read(result));
  operands.push_back(write(result));
  return operands;
}

void Builder::enter(int layer, std::string_view site) {
  layer_ = layer;
  site_ = site;
  emitter_.scope(site_);
}

// ---- Values ---------------------------------------------------------------------------------------------------------

Value Builder::record(std::unique_ptr<Node> node, std::vector<Value> inputs, std::vector<Output> outputs) {
  const bool wanted =
      node->differentiable() &&
      (node->trains(*this) || std::ranges::any_of(inputs, [&](Value input) { return state(input).wanted; }));
  node->inputs = std::move(inputs);
  for (Output& output : outputs) {
    node->outputs.push_back({static_cast<int32_t>(values_.size())});
    values_.push_back({.what = std::move(output.what),
                       .shape = output.shape,
                       .dtype = output.dtype,
                       .kind = output.kind,
                       .layer = layer_,
                       .site = site_,
                       .nodes = {node.get()},
                       .wanted = wanted});
  }
  return tapes_[layer_].emplace_back(std::move(node))->outputs[0];
}

void Builder::record_in_place(std::unique_ptr<Node> node, Value value) {
  for (const auto& other : tapes_[layer_])
    check(other->outputs[0] == value || std::ranges::find(other->inputs, value) == other->inputs.end(),
          "'{}' is changed in place after it was read", state(value).what);
  node->inputs = node->outputs = {value};
  State& changed = state(value);
  changed.nodes.push_back(node.get());
  changed.wanted = changed.wanted || node->trains(*this);
  tapes_[layer_].push_back(std::move(node));
}

Value Builder::given(std::string what, const Operand& bytes) {
  const Value value{static_cast<int32_t>(values_.size())};
  values_.push_back({.what = std::move(what),
                     .shape = bytes.shape,
                     .dtype = bytes.dtype,
                     .kind = ActivationClass::LayerBoundary,
                     .layer = layer_,
                     .site = site_,
                     .home = bytes,
                     .current = bytes});
  return value;
}

Operand Builder::home(Value value) {
  State& asked = state(value);
  if (!asked.home) asked.home = fresh(asked);
  return *asked.home;
}

Operand Builder::use(Value value) {
  const State& asked = state(value);
  if (asked.current) return *asked.current;
  if (!backward_ || placement_.keeps(asked.layer, asked.kind)) return asked.home.value();
  const std::vector<Node*> nodes = asked.nodes;
  const std::string before = emitter_.scope();
  emitter_.scope(asked.site + ".recompute");
  std::vector<Operand> outputs;
  for (const Value output : nodes[0]->outputs) {
    State& produced = state(output);
    produced.current = fresh(produced);
    outputs.push_back(*produced.current);
  }
  for (Node* node : nodes) node->compute(*this, outputs);
  emitter_.scope(before);
  return *state(value).current;
}

std::vector<Value> Builder::values_of(int layer, ActivationClass kind) const {
  std::vector<Value> found;
  for (size_t id = 0; id < values_.size(); id++)
    if (values_[id].layer == layer && values_[id].kind == kind) found.push_back({static_cast<int32_t>(id)});
  return found;
}

// ---- The walks ------------------------------------------------------------------------------------------------------

void Builder::forward() {
  fuse(tapes_[layer_], *this);
  for (const auto& node : tapes_[layer_]) node->forward(*this);
}

void Builder::backward() {
  std::vector<std::unique_ptr<Node>>& tape = tapes_.at(layer_);
  for (auto node = tape.rbegin(); node != tape.rend(); ++node) {
    const Value result = (*node)->outputs[0];
    if (state(result).gradient) (*node)->backward(*this);
    emit_waiting([&](const LinearNode& linear) { return linear.x() == result; });
  }
}

void Builder::emit_waiting(const std::function<bool(const LinearNode&)>& which) {
  std::vector<LinearNode*> found;
  std::erase_if(waiting_, [&](LinearNode* linear) {
    if (!which(*linear)) return false;
    found.push_back(linear);
    return true;
  });
  for (LinearNode* linear : found) linear->parameter_gradients(*this);
}

void Builder::weight_gradients(LinearNode& linear) {
  const State& x = state(linear.x());
  if (x.layer == layer_ && x.nodes.size() == 1 && x.nodes[0]->restores())
    waiting_.push_back(&linear);
  else
    linear.parameter_gradients(*this);
}

bool Builder::awaited(Value value) {
  const State& asked = state(value);
  return !asked.current && !placement_.keeps(asked.layer, asked.kind) &&
         std::ranges::any_of(waiting_, [&](const LinearNode* linear) { return linear->x() == value; });
}

// ---- Gradients ------------------------------------------------------------------------------------------------------

Operand Builder::gradient_in_place(Value value) {
  const Operand bytes = state(value).gradient.value();
  emit_waiting([&](const LinearNode& linear) { return state(linear.outputs[0]).gradient->buffer == bytes.buffer; });
  return update(bytes);
}

Operand Builder::gradient_to_add(Value value) {
  State& asked = state(value);
  check(asked.given.empty(), "'{}' has gradients of columns and as a whole", asked.what);
  if (asked.gradient) return gradient_in_place(value);
  asked.gradient = emitter_.tensor("d" + asked.what, compute_, asked.shape);
  return write(*asked.gradient);
}

void Builder::give_gradient(Value value, const std::function<void(const Operand& written)>& op) {
  if (!state(value).gradient) return op(gradient_to_add(value));
  const Operand apart = emitter_.tensor("d" + state(value).what, compute_, state(value).shape);
  op(write(apart));
  emitter_.op("add", Accumulate{}, {read(apart), gradient_in_place(value)});
}

Operand Builder::gradient_of_columns(const View& view) {
  State& asked = state(view.value);
  const bool apart = std::ranges::all_of(
      asked.given, [&](const View& other) { return other.end <= view.begin || view.end <= other.begin; });
  check(apart && asked.given.empty() == !asked.gradient, "two gradients for columns {} to {} of '{}'", view.begin,
        view.end, asked.what);
  if (!asked.gradient) asked.gradient = emitter_.tensor("d" + asked.what, compute_, asked.shape);
  asked.given.push_back(view);
  return write(columns(*asked.gradient, view.begin, view.end));
}

void Builder::pass_gradient(Value sum, Value addend) {
  State& given = state(addend);
  if (!given.wanted) return;
  if (given.gradient)
    emitter_.op("add", Accumulate{}, {gradient(sum), gradient_in_place(addend)});
  else
    given.gradient = state(sum).gradient;
}

void Builder::write_gradient(ParamId first, int count, const std::function<void(const Operand& written)>& op,
                             const std::function<Operand(const Operand&)>& part) {
  Operand place = placement_.gradient(first, count);
  if (part) place = part(place);
  if (!place.reads() && place.dtype == compute_) return op(place);
  const Operand apart = emitter_.tensor(table_[first].name + ".gradient", compute_, place.shape, Role::Gradient);
  op(apart);
  if (place.reads())
    emitter_.op("add", Accumulate{}, {read(apart), place});
  else
    emitter_.op("widen", Cast{}, {read(apart), place});
}

}  // namespace snug
