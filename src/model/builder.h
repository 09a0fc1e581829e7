// What blocks write their mathematics with. A block calls these functions in forward order, then their backward
// counterparts; where weights come from, which values are kept and which are computed again is answered by Placement,
// and no block ever asks.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "model/params.h"
#include "program/emitter.h"
#include "tensor/batch.h"

namespace snug {

struct Value {
  int32_t id = -1;
};

// What a forward value is to the question of keeping it until its backward.
enum class Keep : uint8_t {
  Input,      // what a block starts from
  Attention,  // queries, keys and values; the attention's result and row sums
  Residual,   // between attention and MLP
  Mlp,        // gate and up
  Adapter,    // x A^T of a low-rank adapter
  Cheap,      // norms and SwiGLU: little work for many bytes
  Few,        // the norms' row factors, x A^T of what a block ends with
};

// What a product in fp8 multiplies: codes, row by row, with the scales of their rows.
struct Fp8Rows {
  Operand codes, scales;
};
// Emits x in fp8, row by row, or, with `columns`, its transpose.
Fp8Rows in_fp8(Emitter& e, std::string_view site, const Operand& x, bool columns = false,
               const std::optional<Operand>& factors = {}, Role role = Role::Activation);
// For its right factor. Where there are `factors`, columns of the left factor are multiplied by them before they become
// codes.
struct Fp8Factor {
  Fp8Rows rows;
  std::optional<Operand> factors;
};

// The operands of a product that writes its result, or adds to what is there: with the addend, where it does.
std::vector<Operand> with_result(std::vector<Operand> operands, const Operand& result);

// Answers of lowering.
class Placement {
 public:
  virtual ~Placement() = default;
  // `count` joined parameters in the products' dtype, rows one after the other (a vector for vectors). May emit the ops
  // that bring them there.
  virtual Operand weight(ParamId first, int count) = 0;
  // Whether the products of linears are in fp8.
  virtual bool fp8_products() const = 0;
  // Then: the weights of a linear, or their transpose.
  virtual Fp8Factor fp8_weight(ParamId first, int count, bool transposed) = 0;
  // A single parameter as it is stored: for ops that read any dtype.
  virtual Operand stored(ParamId param) = 0;
  // Where this pass's gradient of `count` joined parameters goes: to be written, or added to what is there already. May
  // be fp32 whatever the products' dtype is, but for adapters, whose gradients are never added to others.
  virtual Operand gradient(ParamId first, int count) = 0;
  // Whether values of this kind made by a block stay until its backward; else they are computed again there.
  virtual bool keeps(int block, Keep keep) = 0;
};

// The arrays of one pass's batch, on the device.
using BatchBuffers = BatchArrays<Operand>;

class Builder {
 public:
  // `dropout_seed`: of a pass that trains; without it nothing is dropped.
  Builder(Emitter& emitter, Placement& placement, const ParamTable& table, DType compute, int64_t tokens,
          std::optional<uint64_t> dropout_seed = std::nullopt)
      : emitter_(emitter),
        placement_(placement),
        table_(table),
        compute_(compute),
        tokens_(tokens),
        dropout_seed_(dropout_seed) {}

  // Values from here on belong to this block (-1: before the first).
  void begin_block(int block, std::string_view site);
  // From here on forward values are read as Placement keeps them.
  void begin_backward() { backward_ = true; }

  // ---- Forward ----
  Value embedding(const Operand& ids, ParamId table);
  Value rms_norm(Value x, const Norm& norm);
  // y = x W^T + bias (+ adapter) (+ residual).
  Value linear(Value x, const Linear& linear, Keep keep, std::optional<Value> residual = std::nullopt);
  // Gate and up, and h = silu(gate) up, kept as what they are.
  struct Gated {
    Value gate_up, h;
  };
  Gated linear_swiglu(Value x, const Linear& linear);
  // In place: qkv must have been made by linear() just before.
  void rope(Value qkv, const HeadShape& shape, const Operand& positions, const Operand& table);
  // `longest`: tokens of the longest document; `window`: as many as one sees, or 0 (ops.h).
  Value attention(Value qkv, const HeadShape& shape, const Operand& documents, int64_t longest, int64_t window);
  // Attention over a cache of earlier tokens, to which these are added first.
  Value cached_attention(Value qkv, const HeadShape& shape, const Operand& cache, int64_t window);

  // ---- Backward: each takes the gradient of the forward call's result ----
  // The gradient of x. Without that of parameters, but for the adapter's second half, which comes from the same pass
  // over dy.
  Value linear_backward(Value dy, const Linear& linear);
  // The gradients of the linear's trainable parameters.
  void weight_gradients(Value dy, Value x, const Linear& linear);
  // dx += what flows through the norm. Where weight_gradients(., y, reader) comes next and y is not there, it comes in
  // the place of dy; likewise below.
  void rms_norm_backward(Value dy, Value x, ParamId gain, Value y, Value dx, const Linear& reader);
  void rope_backward(Value dqkv, const HeadShape& shape, const Operand& positions, const Operand& table);
  Value attention_backward(Value dout, Value qkv, Value out, const HeadShape& shape, const Operand& documents,
                           int64_t longest, int64_t window);
  // dy: of the result of `reader`, which h went into.
  Value linear_swiglu_backward(Value dy, const Linear& reader, const Gated& gated);
  // Adds to the gradient of a head that is the same table, which is there already, where `tied`.
  void embedding_backward(Value dx, const BatchBuffers& batch, ParamId table, bool tied);
  // Emits an op whose operands these are, but for the gain's gradient, which follows where the gain is trained.
  void norm_backward(RmsNormBackward op, ParamId gain, std::vector<Operand> operands);

  // ---- For the head and for lowering ----
  Value make(std::string_view what, const Shape& shape, DType dtype);
  // The value's bytes for an op emitted now: in the backward, kept, brought back or computed again.
  Operand use(Value value);
  // The values of this kind that a block's forward made.
  std::vector<Value> made(int block, Keep keep) const;
  // From here on the value is read from these bytes.
  void restore(Value value, const Operand& bytes);
  bool trainable(ParamId param) const { return table_[param].trainable; }
  Placement& placement() { return placement_; }
  Emitter& emitter() { return emitter_; }
  DType compute() const { return compute_; }
  int64_t tokens() const { return tokens_; }

 private:
  // A forward step: how to compute its values, once or again.
  using Step = std::function<void(std::span<const Operand> outputs)>;
  struct Node {
    int block;
    std::string site;
    Keep keep;
    std::vector<int32_t> outputs;
    std::vector<Step> steps;  // the first writes the outputs, further ones change them in place
  };
  struct Output {
    std::string what;
    Shape shape;
    DType dtype;
    Keep keep;
  };
  struct State {
    std::string what;
    Shape shape;
    DType dtype;
    Keep keep;
    int32_t node = -1;  // -1: not to be computed again
    Operand home{};
    std::optional<Operand> again{};
  };

  // Values that a step gives when they are computed again; this time something else does.
  std::vector<Value> declare(std::vector<Output> outputs, Step step);
  // Values that a step gives, emitted here.
  std::vector<Value> produce(std::vector<Output> outputs, Step step);
  Operand fresh(const State& state);
  // As AdaptedGemm has it; of parts that differ, u alone.
  struct AdapterTerm {
    Operand u;
    std::optional<Operand> v;
  };
  // The linear's product, or with `backward` the one that takes the gradient back: y = x W^T + bias or x W, + what
  // comes through the adapter + bias + addend.
  void multiply(std::string_view site, const Operand& x, const Linear& linear, bool backward,
                const std::optional<AdapterTerm>& adapter, std::optional<Operand> addend, const Operand& y);
  // What comes through the adapter, by plain products: y's first value.
  void emit_adapter(const std::string& site, const Linear& linear, bool backward, const AdapterTerm& adapter,
                    const Operand& y);
  // linear_swiglu() as one op, without h where gate and up are all that is asked for.
  void multiply_gated(Value x, const Linear& linear, std::optional<Value> xa, const Operand& gate_up,
                      const std::optional<Operand>& h);
  bool drops(const Linear& linear) const { return dropout_seed_ && linear.lora.dropout > 0; }
  Dropout dropout_of(const Linear& linear) const;
  // scale x A^T of all parts, side by side, if there is an adapter.
  std::optional<Value> lora_input(Value x, const Linear& linear, Keep keep);
  void emit_lora_input(const Operand& x, const Linear& linear, const Operand& xa);
  // What comes of that, emitted now.
  std::optional<AdapterTerm> lora_term(std::optional<Value> xa, const Linear& linear);
  AdaptedParts parts_of(const Linear& linear) const;
  // The adapters' halves of all parts, to be read.
  Operand lora_a(const Linear& linear);
  Operand lora_b(const Linear& linear);
  Operand emit_lora_backward(const Operand& dy, const Linear& linear);
  void emit_lora_gradients(const Operand& dy, const Operand& x, const Linear& linear);
  // A gradient by an op that only writes, and in the products' dtype: in its place, or beside it and then added.
  void write_gradient(ParamId first, int count, const std::function<void(const Operand& written)>& op);
  bool restores(Value value, const Linear& reader);
  State& state(Value value) { return values_[static_cast<size_t>(value.id)]; }

  Emitter& emitter_;
  Placement& placement_;
  const ParamTable& table_;
  DType compute_;
  int64_t tokens_;
  std::optional<uint64_t> dropout_seed_;
  bool backward_ = false;
  int block_ = -1;
  std::string site_;
  std::vector<State> values_;
  std::vector<Node> nodes_;
  std::map<ParamId, Value> adapter_inputs_;  // by the linear's weight: scale x A^T
  std::map<ParamId, Value> dropped_;         //   what the adapter saw of x,
  std::map<ParamId, Operand> dxa_;           //   and the gradient of x A^T
};

}  // namespace snug
