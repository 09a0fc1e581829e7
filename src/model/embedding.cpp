#include "model/builder.h"

namespace snug {
namespace {

class EmbeddingNode : public Node {
 public:
  EmbeddingNode(std::string_view what, const TableRows& rows, ParamId table, float factor)
      : what_(what), rows_(rows), table_(table), factor_(factor) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op(what_, Embedding{}, {read(rows_.ids), read(b.placement().stored(table_)), write(outputs[0])});
    if (factor_ != 1) scale(b, "embedding.scale", outputs[0]);
  }
  // Where the head is the same table, its gradient is there already, and this one is added. A gradient that a tower
  // asks for may come here though the table is frozen.
  void backward(Builder& b) override {
    if (!trains(b)) return;
    if (factor_ != 1) scale(b, "embedding.scale.backward", b.gradient_in_place(outputs[0]));
    Operand gradient = b.placement().gradient(table_, 1);
    if (b.table().head == table_) gradient = update(gradient);
    b.emitter().op(
        what_ + ".backward", EmbeddingBackward{gradient.reads(), rows_.patches},
        {b.gradient(outputs[0]), read(*rows_.order), read(*rows_.starts), read(*rows_.segment_ids), gradient});
  }
  bool trains(const Builder& b) const override { return rows_.order && b.trainable(table_); }

 private:
  void scale(Builder& b, std::string_view site, const Operand& x) const {
    b.emitter().op(site, Rescale{factor_}, {read(x), write(x)});
  }

  std::string what_;
  TableRows rows_;
  ParamId table_;
  float factor_;
};

// Is a parameter by itself.
class ParameterNode : public Node {
 public:
  explicit ParameterNode(ParamId param) : param_(param) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("parameter", Copy{}, {read(b.placement().weight(param_, 1)), write(outputs[0])});
  }
  void backward(Builder& b) override {
    if (!trains(b)) return;
    b.write_gradient(param_, 1, [&](const Operand& written) {
      b.emitter().op("parameter.backward", Copy{}, {b.gradient(outputs[0]), written});
    });
  }
  bool trains(const Builder& b) const override { return b.trainable(param_); }

 private:
  ParamId param_;
};

// Repeats the rows of its input, all of them in order each time.
class RepeatedRowsNode : public Node {
 public:
  explicit RepeatedRowsNode(const Operand& rows) : rows_(read(rows)) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("repeat", GatherRows{}, {read(b.use(inputs[0])), rows_, write(outputs[0])});
  }
  // What every repetition gives is one row of as many columns as the input has numbers.
  void backward(Builder& b) override {
    if (!b.wants_gradient(inputs[0])) return;
    const int64_t times = b.shape(outputs[0]).rows() / b.shape(inputs[0]).rows();
    const Operand dy = in_rows(b.gradient(outputs[0]), times);
    b.give_gradient(inputs[0], [&](const Operand& dx) {
      b.emitter().op("repeat.backward", ColumnSum{}, {dy, flat(dx)});
    });
  }

 private:
  Operand rows_;
};

// Adds sines and cosines of two positions to its input.
class SinesNode : public Node {
 public:
  SinesNode(const Operand& positions, const Operand& table) : positions_(positions), table_(table) {}

  // The table has the cosines first, the sum sines.
  void compute(Builder& b, std::span<const Operand> outputs) override {
    const int64_t numbers = outputs[0].shape.rows(), quarter = outputs[0].shape.cols() / 4;
    for (int64_t i = 0; i < 4; i++) {
      const int64_t axis = i < 2 ? 1 : 0, half = i % 2 == 0 ? quarter : 0;
      b.emitter().op(
          "sines", Embedding{},
          {read(elements(flat(positions_), axis * numbers, (axis + 1) * numbers)),
           read(columns(table_, half, half + quarter)), write(columns(outputs[0], i * quarter, (i + 1) * quarter))});
    }
    b.emitter().op("add", Accumulate{}, {read(b.use(inputs[0])), update(outputs[0])});
  }
  void backward(Builder& b) override { b.pass_gradient(outputs[0], inputs[0]); }

 private:
  Operand positions_, table_;
};

// Is a table's rows resized; another parameter may be added to the first of them.
class ResizedRowsNode : public Node {
 public:
  ResizedRowsNode(ParamId table, const ResizeRows& resize, ParamId first)
      : table_(table), resize_(resize), first_(first) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("resize", resize_, {read(b.placement().stored(table_)), write(outputs[0])});
    if (first_ != kNoParam)
      b.emitter().op("first_row", Accumulate{},
                     {read(b.placement().weight(first_, 1)), update(rows(outputs[0], 0, 1))});
  }
  void backward(Builder& b) override {
    const Operand dy = b.gradient(outputs[0]);
    if (b.trainable(table_))
      b.write_gradient(table_, 1, [&](const Operand& written) {
        b.emitter().op("resize.backward", ResizeRowsBackward{resize_}, {dy, written});
      });
    if (first_ != kNoParam && b.trainable(first_))
      b.write_gradient(first_, 1, [&](const Operand& written) {
        b.emitter().op("first_row.backward", Copy{}, {rows(dy, 0, 1), written});
      });
  }
  bool trains(const Builder& b) const override {
    return b.trainable(table_) || (first_ != kNoParam && b.trainable(first_));
  }

 private:
  ParamId table_;
  ResizeRows resize_;
  ParamId first_;
};

// Puts a row of zeros before the rows of every image, all of which have as many, or takes it away: an image is one row
// of a matrix, of which these are columns.
class FirstRowsNode : public Node {
 public:
  FirstRowsNode(int64_t images, bool adds) : images_(images), adds_(adds) {}

  void compute(Builder& b, std::span<const Operand> outputs) override {
    copy(b, "first_rows", adds_, b.use(inputs[0]), outputs[0]);
  }
  void backward(Builder& b) override {
    if (!b.wants_gradient(inputs[0])) return;
    b.give_gradient(inputs[0],
                    [&](const Operand& dx) { copy(b, "first_rows.backward", !adds_, b.gradient(outputs[0]), dx); });
  }

 private:
  void copy(Builder& b, std::string_view site, bool adds, const Operand& from, const Operand& to) const {
    const int64_t width = from.shape.cols();
    const Operand source = in_rows(read(from), images_), target = in_rows(write(to), images_);
    const auto behind_first = [&](const Operand& of) { return columns(of, width, of.shape.cols()); };
    if (adds) b.emitter().op(site, Fill{}, {columns(target, 0, width)});
    b.emitter().op(site, Copy{}, {adds ? source : behind_first(source), adds ? behind_first(target) : target});
  }

  int64_t images_;
  bool adds_;
};

// Adds rows to x as often as they go into it.
class RepeatedSumNode : public Node {
 public:
  void compute(Builder& b, std::span<const Operand> outputs) override {
    b.emitter().op("copy", Copy{}, {read(b.use(inputs[0])), write(outputs[0])});
    b.emitter().op("add", Accumulate{}, {read(b.use(inputs[1])), update(outputs[0])});
  }
  // What every repetition gives is one row of as many columns as the rows have numbers.
  void backward(Builder& b) override {
    if (b.wants_gradient(inputs[1])) {
      const int64_t times = b.shape(outputs[0]).rows() / b.shape(inputs[1]).rows();
      const Operand dy = in_rows(b.gradient(outputs[0]), times);
      b.give_gradient(inputs[1], [&](const Operand& dx) {
        b.emitter().op("add.backward", ColumnSum{}, {dy, flat(dx)});
      });
    }
    b.pass_gradient(outputs[0], inputs[0]);
  }
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
  TableRows rows{ids};
  if (batch) rows = {ids, batch->token_order, batch->segment_starts, batch->segment_ids};
  return record(std::make_unique<EmbeddingNode>("embedding", rows, table, rounded), {},
                {{"embedding", {tokens_, table_[table].shape.cols()}, compute_, ActivationClass::LayerBoundary}});
}

Value Builder::position_rows(const ImageBuffers& images, ParamId table) {
  const TableRows rows{images.table_rows, images.table_order, images.table_starts, images.table_ids, true};
  return record(std::make_unique<EmbeddingNode>("position_rows", rows, table, 1.0f), {},
                {{"position_rows", {tokens_, table_[table].shape.cols()}, compute_, ActivationClass::AlwaysRecompute}});
}

Value Builder::resized_rows(ParamId table, const ResizeRows& resize, ParamId first) {
  const Shape shape{resize.kept + resize.to * resize.to, table_[table].shape.cols()};
  return record(std::make_unique<ResizedRowsNode>(table, resize, first), {},
                {{"resized_rows", shape, compute_, ActivationClass::AlwaysRecompute}});
}

Value Builder::with_first_rows(Value x, int64_t images) {
  return record(
      std::make_unique<FirstRowsNode>(images, true), {x},
      {{"with_first_rows", {shape(x).rows() + images, shape(x).cols()}, compute_, ActivationClass::AlwaysRecompute}});
}

Value Builder::without_first_rows(Value x, int64_t images) {
  return record(std::make_unique<FirstRowsNode>(images, false), {x},
                {{"without_first_rows",
                  {shape(x).rows() - images, shape(x).cols()},
                  compute_,
                  ActivationClass::AlwaysRecompute}});
}

Value Builder::with_repeated(Value x, Value rows, ActivationClass kind) {
  return record(std::make_unique<RepeatedSumNode>(), {x, rows}, {{"repeated_sum", shape(x), compute_, kind}});
}

Value Builder::parameter(ParamId param) {
  return record(std::make_unique<ParameterNode>(param), {},
                {{"parameter", table_[param].shape, compute_, ActivationClass::AlwaysRecompute}});
}

Value Builder::repeated_rows(Value x, const Operand& rows) {
  return record(std::make_unique<RepeatedRowsNode>(rows), {x},
                {{"repeated", {rows.shape.count(), shape(x).cols()}, compute_, ActivationClass::AlwaysRecompute}});
}

Value Builder::with_sines(Value x, const Operand& positions, const Operand& table) {
  return record(std::make_unique<SinesNode>(positions, table), {x},
                {{"sines", shape(x), compute_, ActivationClass::AlwaysRecompute}});
}

}  // namespace snug
