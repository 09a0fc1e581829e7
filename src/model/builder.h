// What layers are written with: each call records a step of the forward on the layer's tape. forward() fuses and emits
// the tape; backward() walks it in reverse, by the gradient rules of its nodes. So a layer is written once, forward
// only. Where weights come from, and which values are kept or computed again, is answered by Placement; no layer asks.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "model/activation.h"
#include "model/node.h"
#include "model/params.h"
#include "tensor/batch.h"

namespace snug {

class LinearNode;

// A factor of a product in fp8: codes, row by row, with the scales of their rows.
struct Fp8Rows {
  Operand codes, scales;
};
// The right factor, and what columns of the left factor are multiplied by before they become codes, if anything.
struct Fp8Factor {
  Fp8Rows rows;
  std::optional<Operand> factors;
};
// Emits x in fp8, row by row, or, with `columns`, its transpose.
Fp8Rows in_fp8(Emitter& e, std::string_view site, const Operand& x, bool columns = false,
               const std::optional<Operand>& factors = {}, Role role = Role::Activation);

// The operands of an op that writes `result`, or adds to what is there: with the addend, where it does.
std::vector<Operand> with_result(std::vector<Operand> operands, const Operand& result);

// Says where a builder finds weights, where it puts gradients and which values it has to compute again: lowering does.
class Placement {
 public:
  virtual ~Placement() = default;
  // `count` joined parameters in the products' dtype, rows one after the other (a vector for vectors). May emit the ops
  // that bring them there.
  virtual Operand weight(ParamId first, int count) = 0;
  // Whether the products of linears are in fp8.
  virtual bool fp8_products() const = 0;
  // Returns the weights of a linear in fp8, or their transpose, where products are in fp8.
  virtual Fp8Factor fp8_weight(ParamId first, int count, bool transposed) = 0;
  // A single parameter as it is stored: for ops that read any dtype.
  virtual Operand stored(ParamId param) = 0;
  // Where this pass's gradient of `count` joined parameters goes: to be written, or added to what is there already. May
  // be fp32 whatever the products' dtype is, but for adapters, whose gradients are never added to others.
  virtual Operand gradient(ParamId first, int count) = 0;
  // Whether a layer's values of this class are there in its backward, kept or brought back; else they are computed
  // again.
  virtual bool keeps(int layer, ActivationClass kind) = 0;
};

// The arrays of one pass's batch, on the device.
using BatchBuffers = BatchArrays<Operand>;

// The layer of what belongs to none: embedding and head.
inline constexpr int kNoLayer = -1;

class Builder {
 public:
  // `dropout_seed`: of a pass that trains; without it nothing is dropped. All that is referred to must outlive the
  // builder.
  Builder(Emitter& emitter, Placement& placement, const ParamTable& table, DType compute, int64_t tokens,
          std::optional<uint64_t> dropout_seed = std::nullopt)
      : emitter_(emitter),
        placement_(placement),
        table_(table),
        compute_(compute),
        tokens_(tokens),
        dropout_seed_(dropout_seed) {}

  // Calls from here on are about this layer; names of ops and buffers start with `site`.
  void enter(int layer, std::string_view site);

  // ---- A layer's forward, recorded ----

  // The embedding's rows of the batch's ids, times a factor that is rounded to the products' dtype. `batch` is of a
  // pass that trains: without it there is no gradient.
  Value embedding(const Operand& ids, ParamId table, double factor, const BatchBuffers* batch = nullptr);
  // Normed rows (+ addend), by RMSNorm or LayerNorm.
  Value rms_norm(Value x, const Norm& norm, ActivationClass kind = ActivationClass::AlwaysRecompute,
                 std::optional<Value> addend = std::nullopt);
  // Heads of queries and of keys, each normed by itself; the results lie side by side.
  std::pair<View, View> head_norms(const View& q, const Norm& q_norm, const View& k, const Norm& k_norm);
  // y = x W^T + bias (+ adapter) (+ addend).
  Value linear(Value x, const Linear& linear, ActivationClass kind, std::optional<Value> addend = std::nullopt);
  // y = factor x + addend.
  Value scaled_sum(Value x, double factor, Value addend, ActivationClass kind);
  // activation(gate) up, of gate and up side by side.
  Value swiglu(Value gate_up, Activation activation = Activation::Silu);
  // activation(x).
  Value activate(Value x, Activation activation);
  // Turns heads of `dim` columns in place: their bytes become the result.
  void rope(const View& x, const Rope& op, const Operand& positions, const Operand& table);
  // `scale` and `cap`: of scores; `longest`: tokens of the longest document; `window`: as many as one sees, or 0
  // (ops.h).
  Value attention(const View& q, const View& k, const View& v, const HeadShape& shape, double scale, double cap,
                  const Operand& documents, int64_t longest, int64_t window);
  // Attention over a cache of earlier tokens, to which these are added first.
  Value cached_attention(const View& q, const View& k, const View& v, const HeadShape& shape, double scale, double cap,
                         const Operand& cache, int64_t window);

  // ---- The walks ----

  // Makes composite ops of the layer's nodes (model/fusion.h) and emits its forward.
  void forward();
  // From here on forward values are read as Placement keeps them.
  void begin_backward() { backward_ = true; }
  // Emits the layer's backward: from the gradient of what it ends with, those of what it starts from and of its
  // parameters, where they are wanted.
  void backward();
  // Whether anything that is trained went into the value.
  bool wants_gradient(Value value) const { return state(value).wanted; }

  // ---- For nodes, the head and lowering ----

  struct Output {
    std::string what;
    Shape shape;
    DType dtype;
    ActivationClass kind;
  };
  // Appends a node to the layer's tape; returns its first output.
  Value record(std::unique_ptr<Node> node, std::vector<Value> inputs, std::vector<Output> outputs);
  // Appends one whose result takes the place of a value. InternalError if another node of the layer has read that.
  void record_in_place(std::unique_ptr<Node> node, Value value);
  // Returns the bytes that the forward writes the value to.
  Operand home(Value value);
  // The value's bytes for an op emitted now: in the backward, kept, brought back or computed again.
  Operand use(Value value);
  // Returns use() of a value's columns, to be read.
  Operand use(const View& view) { return read(columns(use(view.value), view.begin, view.end)); }
  // Makes the builder read the value from these bytes from here on.
  void set_current(Value value, const Operand& bytes) { state(value).current = bytes; }
  const Shape& shape(Value value) const { return state(value).shape; }
  // The values of this class that a layer's forward made.
  std::vector<Value> values_of(int layer, ActivationClass kind) const;

  bool has_gradient(Value value) const { return state(value).gradient.has_value(); }
  // The gradient of a value, complete: to be read.
  Operand gradient(Value value) const { return read(state(value).gradient.value()); }
  // Emits what has still to read the value's gradient, then returns it to be changed.
  Operand gradient_in_place(Value value);
  // Returns a buffer for the first contribution to the value's gradient, or the gradient to be added to.
  Operand gradient_to_add(Value value);
  // Adds one contribution to the value's gradient, by an op that only writes.
  void give_gradient(Value value, const std::function<void(const Operand& written)>& op);
  // Returns a buffer, to be written, for the gradient of columns that nothing else gives a gradient.
  Operand gradient_of_columns(const View& view);
  // The addend of a sum has the gradient of the sum: the same bytes, if it has none yet.
  void pass_gradient(Value sum, Value addend);
  // Parameters' gradients by an op that only writes, in the products' dtype: in their place, or beside it and then
  // added.
  void write_gradient(ParamId first, int count, const std::function<void(const Operand& written)>& op);
  // Emits the gradients of the linear's parameters, from x and the gradient of its result: now, or after the gradient
  // rule of x's node where that may restore x.
  void weight_gradients(LinearNode& linear);
  // Whether such a gradient waits for the value, and it is neither kept nor computed again yet.
  bool awaited(Value value);

  bool trainable(ParamId param) const { return table_[param].trainable; }
  const ParamTable& table() const { return table_; }
  Placement& placement() { return placement_; }
  const Placement& placement() const { return placement_; }
  Emitter& emitter() { return emitter_; }
  DType compute() const { return compute_; }
  int64_t tokens() const { return tokens_; }
  const std::optional<uint64_t>& dropout_seed() const { return dropout_seed_; }

 private:
  struct State {
    std::string what;
    Shape shape;
    DType dtype;
    ActivationClass kind;
    int layer;
    std::string site;
    std::vector<Node*> nodes{};  // what computes it: its own, then those that change it in place
    bool wanted = false;
    std::optional<Operand> home{}, current{}, gradient{};
    std::vector<View> given{};  // parts of the gradient that come one by one
  };

  Operand fresh(const State& state) { return emitter_.tensor(state.what, state.dtype, state.shape); }
  State& state(Value value) { return values_[static_cast<size_t>(value.id)]; }
  const State& state(Value value) const { return values_[static_cast<size_t>(value.id)]; }
  // Emits the parameters' gradients that wait, of these linears.
  void emit_waiting(const std::function<bool(const LinearNode&)>& which);

  Emitter& emitter_;
  Placement& placement_;
  const ParamTable& table_;
  DType compute_;
  int64_t tokens_;
  std::optional<uint64_t> dropout_seed_;
  bool backward_ = false;
  int layer_ = kNoLayer;
  std::string site_;
  std::vector<State> values_;
  std::map<int, std::vector<std::unique_ptr<Node>>> tapes_;  // by layer
  std::vector<LinearNode*> waiting_;                         // for x, to give their parameters' gradients
};

}  // namespace snug
