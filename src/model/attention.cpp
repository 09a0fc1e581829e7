// Rotary embedding and attention.
#include <array>
#include <cmath>

#include "model/builder.h"

namespace snug {
namespace {

float scale_of(const HeadShape& shape) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.dim))); }

// A window through which every token sees all there may be is none.
int64_t narrowing(int64_t window, int64_t tokens) { return window < tokens ? window : 0; }

class RopeNode : public Node {
 public:
  RopeNode(const HeadShape& shape, const Operand& positions, const Operand& table)
      : shape_(shape), positions_(read(positions)), table_(read(table)) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("rope", Rope{shape_}, {update(outputs[0]), positions_, table_});
  }
  void backward(Builder& b) override {
    b.emitter().op("rope.backward", Rope{shape_, true}, {b.gradient_in_place(outputs[0]), positions_, table_});
  }

 private:
  HeadShape shape_;
  Operand positions_, table_;
};

// Outputs: the result, and the row sums.
class AttentionNode : public Node {
 public:
  AttentionNode(const Attention& op, const Operand& documents) : op_(op), documents_(read(documents)) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    const Operand qkv = b.use(inputs[0]);
    b.emitter().op("attention", op_, {read(qkv), documents_, write(outputs[0]), write(outputs[1])});
  }
  void backward(Builder& b) override {
    const Operand out = read(b.use(outputs[0])), qkv = read(b.use(inputs[0])), lse = read(b.use(outputs[1]));
    b.give_gradient(inputs[0], "dqkv", [&](const Operand& dqkv) {
      b.emitter().op("attention.backward", AttentionBackward{op_.shape, op_.scale, op_.longest, op_.window},
                     {b.gradient(outputs[0]), qkv, out, lse, documents_, dqkv});
    });
  }

 private:
  Attention op_;
  Operand documents_;
};

class CachedAttentionNode : public Node {
 public:
  CachedAttentionNode(const CachedAttention& op, const Operand& cache) : op_(op), cache_(cache) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    const Operand qkv = read(b.use(inputs[0]));
    b.emitter().op("cache", CacheAppend{op_.shape}, {qkv, update(cache_)});
    b.emitter().op("attention", op_, {qkv, read(cache_), write(outputs[0])});
  }

 private:
  CachedAttention op_;
  Operand cache_;
};

}  // namespace

void Builder::rope(Value qkv, const HeadShape& shape, const Operand& positions, const Operand& table) {
  record_in_place(std::make_unique<RopeNode>(shape, positions, table), qkv);
}

Value Builder::attention(Value qkv, const HeadShape& shape, const Operand& documents, int64_t longest, int64_t window) {
  const Attention op{shape, scale_of(shape), longest, narrowing(window, longest)};
  return record(std::make_unique<AttentionNode>(op, documents), {qkv},
                {{"attention", {tokens_, shape.heads * shape.dim}, compute_, ActivationClass::Attention},
                 {"lse", {shape.heads, tokens_}, DType::F32, ActivationClass::Attention}});
}

Value Builder::cached_attention(Value qkv, const HeadShape& shape, const Operand& cache, int64_t window) {
  const CachedAttention op{shape, scale_of(shape), narrowing(window, cache.shape.rows())};
  return record(std::make_unique<CachedAttentionNode>(op, cache), {qkv},
                {{"attention", {tokens_, shape.heads * shape.dim}, compute_, ActivationClass::Attention}});
}

}  // namespace snug
