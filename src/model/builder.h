// Layers are written with a Builder: each call records a step of the forward on the layer's tape. forward() fuses and
// emits the tape; backward() walks it in reverse, by the gradient rules of its nodes. So a layer is written once,
// forward only. Where weights come from, and which values are kept or computed again, is answered by Placement; no
// layer asks.
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
enum class LinearForm : uint8_t;

// A factor of a product in fp8: codes, row by row, with the scales of their rows.
struct Fp8Rows {
  Operand codes, scales;
};
// Returns room for a matrix of this shape in fp8.
Fp8Rows fp8_rows(Emitter& e, std::string_view site, const Shape& shape, Role role = Role::Activation);
// Emits x in fp8, row by row: times its columns' factors if there are any, and with the scales of its columns where
// these are asked for.
struct Fp8Extras {
  std::optional<Operand> factors{}, column_scales{};
  Role role = Role::Activation;
};
Fp8Rows in_fp8(Emitter& e, std::string_view site, const Operand& x, const Fp8Extras& extras = {});
// Emits the transpose of x in fp8, by the scales of x's columns if these are known.
Fp8Rows columns_in_fp8(Emitter& e, std::string_view site, const Operand& x,
                       const std::optional<Operand>& column_scales);

// Returns the operands of an op that writes `result`; where it adds to `result`, this is an operand that is read as
// well.
std::vector<Operand> with_result(std::vector<Operand> operands, const Operand& result);

// Says where a builder finds weights, where it puts gradients and which values it has to compute again: lowering does.
class Placement {
 public:
  virtual ~Placement() = default;
  // Returns `count` joined parameters in the products' dtype, their rows one after the other (a vector for vectors).
  // May emit the ops that prefetch or gather them.
  virtual Operand weight(ParamId first, int count) = 0;
  // Returns whether the products of linears are in fp8.
  virtual bool fp8_products() const = 0;
  // Returns the weights of a linear in fp8, where products are in fp8, and out of these their transpose without the
  // rows' scales: whoever multiplies by it multiplies the columns of the other factor by them.
  virtual Fp8Rows fp8_weight(ParamId first, int count) = 0;
  virtual Fp8Rows fp8_transposed(ParamId first, const Fp8Rows& weight) = 0;
  // Returns a single parameter as it is stored, for ops that read any dtype.
  virtual Operand stored(ParamId param) = 0;
  // Returns a parameter that is a constant of the run: a vector of fp32.
  virtual Operand constant(ParamId param) = 0;
  // Returns the place of this pass's gradient of `count` joined parameters, to be written or added to. It may be fp32
  // whatever the products' dtype is, but for adapters, whose gradients are never added to others.
  virtual Operand gradient(ParamId first, int count) = 0;
  // Returns whether a layer's values of this class are there in its backward, as they were kept or are prefetched; if
  // not, they are recomputed.
  virtual bool keeps(int layer, ActivationClass kind) = 0;
};

// Holds the arrays of one pass's batch, on the device.
using BatchBuffers = BatchArrays<Operand>;

// Holds the arrays of one pass's images, on the device.
using ImageBuffers = ImageArrays<Operand>;
using EmbeddingBuffers = EmbeddingArrays<Operand>;

// Holds what a teacher says of one pass's loss rows, on the device.
using TeacherRows = TeacherArrays<Operand>;

// Holds numbers of rows of a table, and what sorts them for the table's gradient: arrays of tokens, or of patches.
struct TableRows {
  Operand ids;
  std::optional<Operand> order{}, starts{}, segment_ids{};  // none: there is no gradient
  bool patches = false;
};

// Stands for the layer where there is none: of embedding and head.
inline constexpr int kNoLayer = -1;

class Builder {
 public:
  // A pass that trains has a `dropout_seed`; without it nothing is dropped. All that is referred to must outlive the
  // builder.
  Builder(Emitter& emitter, Placement& placement, const ParamTable& table, DType compute, int64_t tokens,
          std::optional<uint64_t> dropout_seed = std::nullopt)
      : emitter_(emitter),
        placement_(placement),
        table_(table),
        compute_(compute),
        tokens_(tokens),
        dropout_seed_(dropout_seed) {}

  // Makes linears of what is recorded from now on as if they had no adapters, for a pass without gradients.
  void leave_out_adapters() { adapters_ = false; }

  // Makes the calls that follow record on this layer's tape; names of ops and buffers start with `site`.
  void enter(int layer, std::string_view site);

  // ---- A layer's forward, recorded ----

  // Returns a value of the batch, whose bytes are there.
  Value given(std::string what, const Operand& bytes);
  // Returns the embedding's rows of the batch's ids, times a factor that is rounded to the products' dtype. A pass that
  // trains gives its `batch`; without it there is no gradient.
  Value embedding(const Operand& ids, ParamId table, double factor, const BatchBuffers* batch = nullptr);
  // Returns rows of a table for the patches of images.
  Value position_rows(const ImageBuffers& images, ParamId table);
  // Returns a parameter's rows resized, with another one added to the first of these if it is given.
  Value resized_rows(ParamId table, const ResizeRows& resize, ParamId first = kNoParam);
  // Returns x with a row of zeros before the rows of each of so many images, all of which have as many; and the
  // inverse.
  Value with_first_rows(Value x, int64_t images);
  Value without_first_rows(Value x, int64_t images);
  // Returns x plus rows, which are repeated as often as they go into x.
  Value with_repeated(Value x, Value rows, ActivationClass kind = ActivationClass::AlwaysRecompute);
  // Returns a parameter by itself, [rows, columns].
  Value parameter(ParamId param);
  // Returns the rows of x that `rows` names: each of them as often, and in their order every time.
  Value repeated_rows(Value x, const Operand& rows);
  // Returns x plus the sines and cosines of two positions [2, rows of x], the second first; `table` is that of
  // RopeTable with a fourth as many frequencies as x has columns.
  Value with_sines(Value x, const Operand& positions, const Operand& table);
  // Adds noise to x, the embedding's rows of the batch's documents, as EmbeddingNoise does.
  void embedding_noise(Value x, const BatchBuffers& batch, const EmbeddingNoise& noise);
  // Puts rows of a tower, recorded on its own builder, in the place of rows of x, whose bytes become the result:
  // `places` says which, and is negative for rows that have no place.
  void splice(Value x, Builder& tower, Value rows, const Operand& places);
  // Returns the normed rows of x, by RMSNorm or LayerNorm, plus the addend if there is one.
  Value rms_norm(Value x, const Norm& norm, ActivationClass kind = ActivationClass::AlwaysRecompute,
                 std::optional<Value> addend = std::nullopt);
  // Returns the normed rows of x, `count` of them side by side in one row of the result.
  Value joined_norm(Value x, const Norm& norm, int64_t count);
  // Returns queries and keys, every head of them normed by itself or, with gains of as many values as they have
  // columns, all of them together; the two results lie side by side.
  std::pair<View, View> head_norms(const View& q, const Norm& q_norm, const View& k, const Norm& k_norm);
  // Returns x W^T + bias (+ adapter) (+ addend).
  Value linear(Value x, const Linear& linear, ActivationClass kind, std::optional<Value> addend = std::nullopt);
  // Returns factor x + addend.
  Value scaled_sum(Value x, double factor, Value addend, ActivationClass kind);
  // Returns activation(gate) up, where gate and up lie side by side.
  Value swiglu(Value gate_up, Activation activation = Activation::Silu);
  // Returns activation(x).
  Value activate(Value x, Activation activation);
  // Rotates heads of `dim` columns in place: their bytes become the result.
  void rope(const View& x, const Rope& op, const Operand& positions, const Operand& table);
  // Returns the attention's result within documents. Its window is that of a layer, whatever the length of documents.
  // Keys may have documents of their own.
  Value attention(const View& q, const View& k, const View& v, Attention op, const Operand& documents,
                  const std::optional<Operand>& key_documents = std::nullopt);
  // Returns attention over a cache of earlier tokens, to which k and v are appended first.
  Value cached_attention(const View& q, const View& k, const View& v, const HeadShape& shape, double scale, double cap,
                         const Operand& cache, int64_t window);

  // ---- The walks ----

  // Makes composite ops of the layer's nodes (model/fusion.h) and emits its forward.
  void forward();
  // Makes the calls that follow read forward values as Placement keeps them.
  void begin_backward() { backward_ = true; }
  // Emits the layer's backward: from the gradient of its output, the gradients of its input and of its parameters,
  // where they are wanted.
  void backward();
  // Returns whether the value depends on anything that is trained.
  bool wants_gradient(Value value) const { return state(value).wanted; }

  // ---- For nodes, the head and lowering ----

  struct Output {
    std::string what;
    Shape shape;
    DType dtype;
    ActivationClass kind;
  };
  // Appends a node to the layer's tape and returns its first output.
  Value record(std::unique_ptr<Node> node, std::vector<Value> inputs, std::vector<Output> outputs);
  // Appends a node whose result takes the place of a value. InternalError if another node of the layer has read that
  // value.
  void record_in_place(std::unique_ptr<Node> node, Value value);
  // Returns the bytes that the forward writes the value to.
  Operand home(Value value);
  // Returns the value's bytes for an op emitted now; in the backward they were kept, or are prefetched or recomputed.
  Operand use(Value value);
  // Returns use() of a value's columns, to be read.
  Operand use(const View& view) { return read(columns(use(view.value), view.begin, view.end)); }
  // Makes the builder read the value from these bytes from here on.
  void set_current(Value value, const Operand& bytes) { state(value).current = bytes; }
  const Shape& shape(Value value) const { return state(value).shape; }
  // Returns the values of this class that a layer's forward produced.
  std::vector<Value> values_of(int layer, ActivationClass kind) const;

  bool has_gradient(Value value) const { return state(value).gradient.has_value(); }
  // Returns the complete gradient of a value, to be read.
  Operand gradient(Value value) const { return read(state(value).gradient.value()); }
  // Emits the ops that have still to read the value's gradient, then returns the gradient to be changed in place.
  Operand gradient_in_place(Value value);
  // Returns a buffer for the first contribution to the value's gradient, or the gradient to be added to.
  Operand gradient_to_add(Value value);
  // Adds one contribution to the value's gradient, by an op that only writes.
  void give_gradient(Value value, const std::function<void(const Operand& written)>& op);
  // Returns a buffer, to be written, for the gradient of columns that nothing else gives a gradient.
  Operand gradient_of_columns(const View& view);
  // Gives the addend of a sum the gradient of the sum; if the addend has none yet, both share the bytes.
  void pass_gradient(Value sum, Value addend);
  // Gives parameters their gradients by an op that only writes, in the products' dtype: directly, or into a buffer that
  // is then added. `part` returns the part of a gradient that is given.
  void write_gradient(ParamId first, int count, const std::function<void(const Operand& written)>& op,
                      const std::function<Operand(const Operand&)>& part = {});
  // Emits the gradients of the linear's parameters from x and the gradient of its result. They are emitted now, or
  // after the gradient rule of x's node where that may restore x.
  void weight_gradients(LinearNode& linear);
  // Returns whether a parameter's gradient waits for the value, which is neither kept nor recomputed yet.
  bool awaited(Value value);

  bool trainable(ParamId param) const { return table_[param].trainable; }
  const ParamTable& table() const { return table_; }
  Placement& placement() { return placement_; }
  const Placement& placement() const { return placement_; }
  Emitter& emitter() { return emitter_; }
  DType compute() const { return compute_; }
  int64_t tokens() const { return tokens_; }
  const std::optional<uint64_t>& dropout_seed() const { return dropout_seed_; }
  // Returns whether the pass trains: only such a pass has gradients.
  bool trains() const { return dropout_seed_.has_value(); }

 private:
  struct State {
    std::string what;
    Shape shape;
    DType dtype;
    ActivationClass kind;
    int layer;
    std::string site;
    std::vector<Node*> nodes{};  // its own, which computes it, then those that change it in place
    bool wanted = false;
    std::optional<Operand> home{}, current{}, gradient{};
    std::vector<View> given{};  // columns whose gradient was given apart from the others'
  };

  // Records the product of a linear, of which `form` says.
  Value product(Value x, const Linear& linear, LinearForm form, ActivationClass kind, std::optional<Value> addend);
  // Is linear() where the norms of the rows are trained.
  Value scaled_linear(Value x, const Linear& linear, ActivationClass kind, std::optional<Value> addend);

  Operand fresh(const State& state) { return emitter_.tensor(state.what, state.dtype, state.shape); }
  State& state(Value value) { return values_[static_cast<size_t>(value.id)]; }
  const State& state(Value value) const { return values_[static_cast<size_t>(value.id)]; }
  // Emits the waiting gradients of parameters of the linears that `which` chooses.
  void emit_waiting(const std::function<bool(const LinearNode&)>& which);

  Emitter& emitter_;
  Placement& placement_;
  const ParamTable& table_;
  DType compute_;
  int64_t tokens_;
  std::optional<uint64_t> dropout_seed_;
  bool adapters_ = true;
  bool backward_ = false;
  int layer_ = kNoLayer;
  std::string site_;
  std::vector<State> values_;
  std::map<int, std::vector<std::unique_ptr<Node>>> tapes_;  // by layer
  std::vector<LinearNode*> waiting_;                         // their parameters' gradients wait for x
};

}  // namespace snug
