#include "model/builder.h"

namespace snug {
namespace {

class EmbeddingNode : public Node {
 public:
  EmbeddingNode(const Operand& ids, ParamId table, const BatchBuffers* batch) : ids_(read(ids)), table_(table) {
    if (batch) batch_ = *batch;
  }

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("embedding", Embedding{}, {ids_, read(b.placement().stored(table_)), write(outputs[0])});
  }
  // Where the head is the same table, its gradient is there already, and this one is added.
  void backward(Builder& b) override {
    Operand gradient = b.placement().gradient(table_, 1);
    if (b.table().head == table_) gradient = update(gradient);
    b.emitter().op("embedding.backward", EmbeddingBackward{gradient.reads()},
                   {b.gradient(outputs[0]), read(batch_->token_order), read(batch_->segment_starts),
                    read(batch_->segment_ids), gradient});
  }
  bool trains(const Builder& b) const override { return batch_ && b.trainable(table_); }

 private:
  Operand ids_;
  ParamId table_;
  std::optional<BatchBuffers> batch_;
};

}  // namespace

Value Builder::embedding(const Operand& ids, ParamId table, const BatchBuffers* batch) {
  return record(std::make_unique<EmbeddingNode>(ids, table, batch), {},
                {{"embedding", {tokens_, table_[table].shape.cols()}, compute_, ActivationClass::LayerInput}});
}

}  // namespace snug
