#include "model/builder.h"

namespace snug {
namespace {

class EmbeddingNode : public Node {
 public:
  EmbeddingNode(const Operand& ids, ParamId table, float factor, const BatchBuffers* batch)
      : ids_(read(ids)), table_(table), factor_(factor) {
    if (batch) batch_ = *batch;
  }

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("embedding", Embedding{}, {ids_, read(b.placement().stored(table_)), write(outputs[0])});
    if (factor_ != 1) scale(b, "embedding.scale", outputs[0]);
  }
  // Where the head is the same table, its gradient is there already, and this one is added. A gradient that a tower
  // asks for may come here though the table is frozen.
  void backward(Builder& b) override {
    if (!trains(b)) return;
    if (factor_ != 1) scale(b, "embedding.scale.backward", b.gradient_in_place(outputs[0]));
    Operand gradient = b.placement().gradient(table_, 1);
    if (b.table().head == table_) gradient = update(gradient);
    b.emitter().op("embedding.backward", EmbeddingBackward{gradient.reads()},
                   {b.gradient(outputs[0]), read(batch_->token_order), read(batch_->segment_starts),
                    read(batch_->segment_ids), gradient});
  }
  bool trains(const Builder& b) const override { return batch_ && b.trainable(table_); }

 private:
  void scale(Builder& b, std::string_view site, const Operand& x) const {
    b.emitter().op(site, Rescale{factor_}, {read(x), write(x)});
  }

  Operand ids_;
  ParamId table_;
  float factor_;
  std::optional<BatchBuffers> batch_;
};

// Adds noise; the gradient of its result is that of what it was added to.
class EmbeddingNoiseNode : public Node {
 public:
  EmbeddingNoiseNode(const Operand& documents, const EmbeddingNoise& noise)
      : documents_(read(documents)), noise_(noise) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("embedding.noise", noise_, {update(outputs[0]), documents_});
  }

 private:
  Operand documents_;
  EmbeddingNoise noise_;
};

// Puts rows of a tower in the place of rows of its value. The embedding's gradient needs no zeros there, as its order
// of tokens leaves them out (tensor/batch.h).
class SpliceNode : public Node {
 public:
  SpliceNode(Builder& tower, Value rows, const Operand& places) : tower_(tower), rows_(rows), places_(read(places)) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("splice", ScatterRows{Scatter::Replace}, {read(tower_.use(rows_)), places_, update(outputs[0])});
  }
  void backward(Builder& b) override {
    if (!tower_.wants_gradient(rows_)) return;
    b.emitter().op("splice.backward", GatherRows{}, {b.gradient(outputs[0]), places_, tower_.gradient_to_add(rows_)});
  }
  bool trains(const Builder&) const override { return tower_.wants_gradient(rows_); }

 private:
  Builder& tower_;
  Value rows_;
  Operand places_;
};

}  // namespace

void Builder::embedding_noise(Value x, const BatchBuffers& batch, const EmbeddingNoise& noise) {
  record_in_place(std::make_unique<EmbeddingNoiseNode>(batch.documents, noise), x);
}

void Builder::splice(Value x, Builder& tower, Value rows, const Operand& places) {
  record_in_place(std::make_unique<SpliceNode>(tower, rows, places), x);
}

Value Builder::embedding(const Operand& ids, ParamId table, double factor, const BatchBuffers* batch) {
  auto rounded = static_cast<float>(factor);
  if (compute_ == DType::BF16) rounded = static_cast<float>(BFloat16(rounded));
  return record(std::make_unique<EmbeddingNode>(ids, table, rounded, batch), {},
                {{"embedding", {tokens_, table_[table].shape.cols()}, compute_, ActivationClass::LayerBoundary}});
}

}  // namespace snug
