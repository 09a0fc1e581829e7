// Rotary embedding and attention.
#include "model/builder.h"

namespace snug {
namespace {

// Returns 0, no window, where every token sees all its document through the window.
int64_t narrowing(int64_t window, int64_t tokens) { return window < tokens ? window : 0; }

class RopeNode : public Node {
 public:
  RopeNode(const View& x, const Rope& op, const Operand& positions, const Operand& table)
      : x_(x), op_(op), positions_(read(positions)), table_(read(table)) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("rope", op_, {update(columns(outputs[0], x_.begin, x_.end)), positions_, table_});
  }
  void backward(Builder& b) override {
    const Operand dx = columns(b.gradient_in_place(x_.value), x_.begin, x_.end);
    b.emitter().op("rope.backward", Rope{op_.dim, true, op_.interleaved, op_.pairs}, {dx, positions_, table_});
  }

 private:
  View x_;
  Rope op_;
  Operand positions_, table_;
};

// Computes attention; its outputs are the result and the row sums.
class AttentionNode : public Node {
 public:
  AttentionNode(const Attention& op, const View& q, const View& k, const View& v, const Operand& documents,
                const std::optional<Operand>& key_documents)
      : op_(op), q_(q), k_(k), v_(v), documents_{read(documents)} {
    if (key_documents) documents_.push_back(read(*key_documents));
  }

  void compute(Builder& b, std::span<const Operand> outputs) override {
    std::vector<Operand> operands{b.use(q_), b.use(k_), b.use(v_)};
    operands.insert(operands.end(), documents_.begin(), documents_.end());
    operands.insert(operands.end(), {write(outputs[0]), write(outputs[1])});
    b.emitter().op("attention", op_, std::move(operands));
  }
  void backward(Builder& b) override {
    const Operand out = read(b.use(outputs[0])), q = b.use(q_), k = b.use(k_), v = b.use(v_);
    const Operand lse = read(b.use(outputs[1]));
    std::vector<Operand> operands{b.gradient(outputs[0]), q, k, v, out, lse};
    operands.insert(operands.end(), documents_.begin(), documents_.end());
    for (const View& view : {q_, k_, v_}) operands.push_back(b.gradient_of_columns(view));
    b.emitter().op("attention.backward", AttentionBackward{op_}, std::move(operands));
  }

 private:
  Attention op_;
  View q_, k_, v_;
  std::vector<Operand> documents_;  // and those of keys
};

class CachedAttentionNode : public Node {
 public:
  CachedAttentionNode(const CachedAttention& op, const View& q, const View& k, const View& v, const Operand& cache)
      : op_(op), q_(q), k_(k), v_(v), cache_(cache) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("cache", CacheAppend{op_.shape}, {b.use(k_), b.use(v_), update(cache_)});
    b.emitter().op("attention", op_, {b.use(q_), read(cache_), write(outputs[0])});
  }

 private:
  CachedAttention op_;
  View q_, k_, v_;
  Operand cache_;
};

}  // namespace

void Builder::rope(const View& x, const Rope& op, const Operand& positions, const Operand& table) {
  record_in_place(std::make_unique<RopeNode>(x, op, positions, table), x.value);
}

Value Builder::attention(const View& q, const View& k, const View& v, Attention op, const Operand& documents,
                         const std::optional<Operand>& key_documents) {
  op.window = narrowing(op.window, op.longest);
  const int64_t rows = shape(q.value).rows();
  return record(std::make_unique<AttentionNode>(op, q, k, v, documents, key_documents), {q.value, k.value, v.value},
                {{"attention", {rows, op.shape.query_columns()}, compute_, ActivationClass::Attention},
                 {"lse", {op.shape.heads, rows}, DType::F32, ActivationClass::Attention}});
}

Value Builder::cached_attention(const View& q, const View& k, const View& v, const HeadShape& shape, double scale,
                                double cap, const Operand& cache, int64_t window) {
  const CachedAttention op{shape, static_cast<float>(scale), narrowing(window, cache.shape.rows()),
                           static_cast<float>(cap)};
  return record(std::make_unique<CachedAttentionNode>(op, q, k, v, cache), {q.value, k.value, v.value},
                {{"attention", {tokens_, shape.query_columns()}, compute_, ActivationClass::Attention}});
}

}  // namespace snug
