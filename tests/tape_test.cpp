// The backward that a layer's tape gives, beside central differences of its forward: ops are computed in double by
// their definitions (ref/reference.h), so that what differs is the tape's doing.
#include <gtest/gtest.h>

#include "flat_facts.h"
#include "model/decoder_layer.h"
#include "ref/reference.h"

namespace snug {
namespace {

constexpr int64_t kTokens = 6, kWidth = 8;

using Layer = std::function<Value(Builder& b, Value x)>;

// Parameters and their gradients in one array each; what is kept is the test's choice.
class TestPlacement : public Placement {
 public:
  TestPlacement(ProgramSet& set, const ParamTable& table, std::function<bool(ActivationClass)> keeps)
      : table_(table), keeps_(std::move(keeps)) {
    for (const ParamSpec& param : table.params) begins_.push_back(begins_.back() + param.shape.count());
    weights = read(new_tensor(set, "weights", DType::F32, {begins_.back()}, Role::Weight));
    gradients = new_tensor(set, "gradients", DType::F32, {begins_.back()}, Role::Gradient);
  }
  Operand weight(ParamId first, int count) override { return view(weights, first, count); }
  bool fp8_products() const override { return false; }
  Fp8Rows fp8_weight(ParamId, int) override { return {}; }
  Fp8Rows fp8_transposed(ParamId, const Fp8Rows&) override { return {}; }
  Operand stored(ParamId param) override { return weight(param, 1); }
  Operand constant(ParamId param) override { return weight(param, 1); }
  Operand gradient(ParamId first, int count) override { return view(gradients, first, count); }
  bool keeps(int, ActivationClass kind) override { return kind == ActivationClass::Tiny || keeps_(kind); }

  Operand weights, gradients;

 private:
  Operand view(const Operand& all, ParamId first, int count) const {
    const Shape& shape = table_[first].shape;
    Operand part = elements(all, begins_[static_cast<size_t>(first)], begins_[static_cast<size_t>(first + count)]);
    int64_t rows = 0;
    for (ParamId id = first; id < first + count; id++) rows += table_[id].shape.rank == 1 ? 1 : table_[id].shape.rows();
    if (shape.rank == 1) return part;
    part.shape = {rows, shape.cols()};
    part.row_stride = shape.cols();
    return part;
  }

  const ParamTable& table_;
  std::function<bool(ActivationClass)> keeps_;
  std::vector<int64_t> begins_{0};
};

// Adds parameters to a table as model/params.cpp does.
class Params {
 public:
  ParamTable table;

  ParamId add(std::string name, const Shape& shape, bool trainable = true) {
    table.params.push_back({.name = std::move(name), .stored = {}, .shape = shape, .trainable = trainable});
    return static_cast<ParamId>(table.params.size() - 1);
  }
  Norm norm(const std::string& name) { return {add(name, {kWidth}), 1e-3}; }
  Linear linear(const std::string& site, int64_t in, std::vector<int64_t> parts, bool bias = false, int64_t rank = 0) {
    Linear made{.site = site, .count = static_cast<int>(parts.size()), .in = in};
    for (const int64_t rows : parts) {
      const ParamId id = add(site, {rows, in}, rank == 0);
      if (made.weight == kNoParam) made.weight = id;
      made.out += rows;
    }
    for (const int64_t rows : bias ? parts : std::vector<int64_t>{}) {
      const ParamId id = add(site + ".bias", {rows}, rank == 0);
      if (made.bias == kNoParam) made.bias = id;
    }
    if (rank == 0) return made;
    int64_t row = 0;
    for (const int64_t rows : parts) {
      const ParamId a = add(site + ".a", {rank, in});
      if (made.lora.a == kNoParam) made.lora.a = a;
      made.lora.parts.push_back({row, row + rows, kNoParam, rank, 0.5f});
      row += rows;
    }
    for (size_t i = 0; i < parts.size(); i++) made.lora.parts[i].b = add(site + ".b", {parts[i], rank});
    return made;
  }
  // Has the norms of the rows trained; the first part's alone where `all` is false.
  void train_norms(Linear& linear, double dropout, bool all = true) {
    Lora& lora = linear.lora;
    lora.dropout = dropout;
    for (size_t i = 1; !all && i < lora.parts.size(); i++)
      for (const ParamId id : {lora.a_of(i), lora.parts[i].b}) table.params[static_cast<size_t>(id)].trainable = false;
    if (!all) lora.parts.resize(1);
    for (const auto& [first, name] :
         {std::pair(&lora.change, ".change"), std::pair(&lora.initial_magnitude, ".initial"),
          std::pair(&lora.row_norms, ".row_norms")})
      for (const LoraPart& part : lora.parts) {
        const ParamId id = add(linear.site + name, {part.row_end - part.row_begin}, first == &lora.change);
        if (*first == kNoParam) *first = id;
      }
  }
};

// A layer's forward and backward as one program, run on numbers.
class Tape {
 public:
  Tape(const ParamTable& table, const Layer& layer, std::function<bool(ActivationClass)> keeps, bool x_trained = true,
       std::optional<uint64_t> dropout_seed = std::nullopt)
      : program_(add()), emitter_(set_, program_, facts_), placement_(set_, table, std::move(keeps)) {
    x_ = emitter_.tensor("x", DType::F32, {kTokens, kWidth});
    documents = read(emitter_.tensor("documents", DType::I32, {2}));
    positions = read(emitter_.tensor("positions", DType::I32, {kTokens}));
    rope_table = read(emitter_.tensor("rope", DType::F32, {kTokens, 4}));
    Builder b(emitter_, placement_, table, DType::F32, kTokens, dropout_seed);
    b.enter(0, "layer");
    class Input : public Node {
     public:
      Input(Operand x, bool trained) : x_(x), trained_(trained) {}
      void compute(Builder& builder, std::span<const Operand> outputs) override {
        builder.emitter().op("input", Copy{}, {read(x_), write(outputs[0])});
      }
      bool trains(const Builder&) const override { return trained_; }
      Operand x_;
      bool trained_;
    };
    const Value x = b.record(std::make_unique<Input>(x_, x_trained), {},
                             {{"input", {kTokens, kWidth}, DType::F32, ActivationClass::Tiny}});
    current = this;
    const Value y = layer(b, x);
    b.forward();
    y_ = b.use(y);
    forward_ops_ = emitter_.program().ops.size();
    b.begin_backward();
    dy_ = b.gradient_to_add(y);
    b.backward();
    EXPECT_EQ(b.has_gradient(x), x_trained);
    if (x_trained) dx_ = b.gradient(x);
  }

  std::vector<double> result(const std::vector<double>& weights, const std::vector<double>& x) {
    run(weights, x, forward_ops_);
    return values(y_);
  }
  // The sum of y times fixed numbers, whose gradient for y those are.
  double loss(const std::vector<double>& weights, const std::vector<double>& x) {
    run(weights, x, forward_ops_);
    const std::vector<double> y = values(y_);
    double sum = 0;
    for (size_t i = 0; i < y.size(); i++) sum += y[i] * coefficient(i);
    return sum;
  }
  // Then: of all parameters, and of x behind them.
  std::vector<double> gradients(const std::vector<double>& weights, const std::vector<double>& x) {
    run(weights, x, emitter_.program().ops.size());
    std::vector<double> all = values(placement_.gradients);
    for (const double value : values(dx_)) all.push_back(value);
    return all;
  }
  std::vector<std::string_view> kinds(size_t from = 0) {
    std::vector<std::string_view> all;
    for (const Op& op : std::span(emitter_.program().ops).subspan(from)) all.push_back(kind(op.attrs));
    return all;
  }
  std::vector<std::string_view> backward_kinds() { return kinds(forward_ops_); }

  Operand documents, positions, rope_table;
  inline static Tape* current = nullptr;

 private:
  ProgramId add() {
    set_.programs.emplace_back().name = "layer";
    return 0;
  }
  static double coefficient(size_t i) { return std::sin(static_cast<double>(3 * i + 1)); }

  std::vector<double>& bytes(const Operand& operand) { return memory_[operand.buffer]; }
  // Where element i of the operand is in its buffer.
  static size_t place(const Operand& operand, int64_t i) {
    const int64_t cols = operand.shape.cols();
    return operand.offset / element_bytes(operand.dtype) +
           static_cast<size_t>(i / cols * operand.row_stride + i % cols);
  }
  std::vector<double> values(const Operand& operand) {
    std::vector<double> found;
    for (int64_t i = 0; i < operand.shape.count(); i++) found.push_back(bytes(operand)[place(operand, i)]);
    return found;
  }

  void run(const std::vector<double>& weights, const std::vector<double>& x, size_t ops) {
    memory_.clear();
    for (const Buffer& buffer : set_.buffers)  // as many numbers as the smallest element would need
      memory_.emplace_back(buffer.bytes, std::numeric_limits<double>::quiet_NaN());
    std::ranges::copy(weights, bytes(placement_.weights).begin());
    std::ranges::copy(x, bytes(x_).begin());
    bytes(documents) = {0, kTokens};
    for (int64_t t = 0; t < kTokens; t++) bytes(positions)[static_cast<size_t>(t)] = static_cast<double>(t);
    for (size_t i = 0; i < static_cast<size_t>(dy_.shape.count()); i++) bytes(dy_)[i] = coefficient(i);
    RuntimeScalars runtime;
    runtime.documents = 1;
    std::vector<ref::Tensor> table{{DType::F32, rope_table.shape, std::vector<double>(kTokens * 4)}};
    ref::Reference(table, runtime)(RopeTable{{1, 0.01f}});
    bytes(rope_table) = table[0].values;
    for (size_t i = 0; i < ops; i++) run(emitter_.program().ops[i], runtime);
  }

  void run(const Op& op, const RuntimeScalars& runtime) {
    std::vector<ref::Tensor> operands;
    for (const Operand& operand : op.operands)
      if (set_.buffers[operand.buffer].role != Role::Scratch)
        operands.push_back({operand.dtype, operand.shape, values(operand)});
    std::visit([&](const auto& attrs) { ref::Reference(operands, runtime)(attrs); }, op.attrs);
    if (std::holds_alternative<AdaptedNorms>(op.attrs)) keep_norms(op, operands);
    for (size_t o = 0; o < operands.size(); o++)
      if (op.operands[o].access != Access::Read)
        for (int64_t i = 0; i < op.operands[o].shape.count(); i++)
          bytes(op.operands[o])[place(op.operands[o], i)] = operands[o][i];
  }

  // No gradient goes through the norms of adapted rows: those of the first run stay.
  void keep_norms(const Op& op, std::vector<ref::Tensor>& operands) {
    const auto [inverses, first] = inverses_.try_emplace(&op);
    ref::Tensor& factors = operands[6];
    for (int64_t i = 0; i < factors.cols(); i++) {
      if (first) inverses->second.push_back(factors(1, i));
      factors(1, i) = inverses->second[static_cast<size_t>(i)];
      factors(0, i) = (operands[4][i] + operands[5][i]) * factors(1, i);
    }
  }

  std::map<const Op*, std::vector<double>> inverses_;
  FlatFacts facts_;
  ProgramSet set_;
  ProgramId program_;
  Emitter emitter_;
  TestPlacement placement_;
  Operand x_, y_, dy_, dx_;
  size_t forward_ops_ = 0;
  std::vector<std::vector<double>> memory_;  // by buffer
};

bool all_kept(ActivationClass kind) { return kind != ActivationClass::AlwaysRecompute; }
bool none_kept(ActivationClass kind) { return kind == ActivationClass::LayerBoundary; }

// Numbers in (-1, 1), by a plain generator.
std::vector<double> numbers(size_t count, uint64_t seed) {
  const Random random(seed, RandomPurpose::Initialisation, 0);
  std::vector<double> all;
  for (size_t i = 0; i < count; i++) all.push_back(2 * static_cast<double>(random.uniform(i)) - 1);
  return all;
}

// Returns numbers for all parameters; norms are as large as those of rows.
std::vector<double> weights_of(const ParamTable& table) {
  std::vector<double> weights = numbers(static_cast<size_t>(table.count(false)), 1);
  size_t at = 0;
  for (const ParamSpec& param : table.params) {
    const bool norms = param.name.ends_with(kInitial) || param.name.ends_with(kRowNorms);
    for (int64_t i = 0; i < param.shape.count(); i++, at++) weights[at] += norms ? 3 : 0;
  }
  return weights;
}

void expect_gradients(const ParamTable& table, const Layer& layer,
                      std::optional<uint64_t> dropout_seed = std::nullopt) {
  std::vector<double> weights = weights_of(table), x = numbers(kTokens * kWidth, 2);
  Tape kept(table, layer, all_kept, true, dropout_seed), again(table, layer, none_kept, true, dropout_seed);
  const std::vector<double> got = kept.gradients(weights, x);
  size_t at = 0;
  const auto compare = [&](double& number, const std::string& name) {
    constexpr double kStep = 1e-5;
    const double before = number;
    number = before + kStep;
    const double above = kept.loss(weights, x);
    number = before - kStep;
    const double below = kept.loss(weights, x);
    number = before;
    EXPECT_NEAR(got[at], (above - below) / (2 * kStep), 1e-7 * (1 + std::abs(got[at]))) << name;
    at++;
  };
  size_t w = 0;
  for (const ParamSpec& param : table.params)
    for (int64_t i = 0; i < param.shape.count(); i++, w++) {
      if (param.trainable)
        compare(weights[w], param.name);
      else
        at++;
    }
  for (double& number : x) compare(number, "x");
  const std::vector<double> without = again.gradients(weights, x);
  for (size_t i = 0; i < got.size(); i++) EXPECT_TRUE(got[i] == without[i] || std::isnan(got[i])) << i;
}

LayerSpec decoder_spec() {
  LayerSpec spec;
  spec.heads = {2, 1, 4};
  return spec;
}

LayerParams decoder(Params& p, int64_t rank, bool frozen_bias = false) {
  LayerParams block;
  block.attention_norm = p.norm("attention_norm");
  block.qkv = p.linear("qkv", kWidth, {8, 4, 4}, rank == 0 || frozen_bias, rank);
  block.o = p.linear("o", 8, {kWidth}, false, rank);
  block.mlp_norm = p.norm("mlp_norm");
  block.gate_up = p.linear("gate_up", kWidth, {5, 5}, false, rank);
  block.down = p.linear("down", 5, {kWidth}, false, rank);
  return block;
}

Layer layer_of(const LayerParams& block, const std::function<void(LayerSpec&)>& change = nullptr) {
  LayerSpec spec = decoder_spec();
  if (change) change(spec);
  return [&block, spec](Builder& b, Value x) {
    const Tape& t = *Tape::current;
    return decoder_layer(b, spec, block, {t.positions, t.rope_table, t.documents, kTokens, std::nullopt}, x);
  };
}

TEST(Tape, ADecoderLayersBackwardIsTheGradientOfItsForward) {
  Params p;
  const LayerParams block = decoder(p, 0);
  expect_gradients(p.table, layer_of(block));
}

TEST(Tape, AnAdaptersBackwardIsTheGradientOfItsForward) {
  Params p;
  const LayerParams block = decoder(p, 2);
  expect_gradients(p.table, layer_of(block));
}

// Norms of rows are trained beside the adapter's halves: of all parts or of some, with and without dropout, which falls
// on what comes into the weight as well.
TEST(Tape, ANormsBackwardIsTheGradientOfItsForward) {
  for (const double dropout : {0.0, 0.25})
    for (const bool all : {true, false})
      for (const double factor : {1.0, 0.3}) {
        Params p;
        LayerParams block = decoder(p, 2, true);
        for (Linear* linear : {&block.qkv, &block.o, &block.gate_up, &block.down}) p.train_norms(*linear, dropout, all);
        expect_gradients(p.table, layer_of(block, [&](LayerSpec& spec) { spec.residual_multiplier = factor; }),
                         dropout > 0 ? std::optional<uint64_t>(9) : std::nullopt);
      }
}

// As PEFT writes it: x W^T + bias + (m / g - 1) x' W^T + m / g scale x' A^T B^T, with x' for x where some of it is
// dropped.
TEST(Tape, NormsAreTrainedAsPeftDoes) {
  for (const double dropout : {0.0, 0.25}) {
    Params p;
    constexpr int64_t kRows = 5, kRank = 2;
    Linear linear = p.linear("linear", kWidth, {kWidth - kRows, kRows}, true, kRank);
    p.train_norms(linear, dropout);
    const Layer layer = [&](Builder& b, Value x) { return b.linear(x, linear, ActivationClass::LayerBoundary, x); };
    const std::vector<double> weights = weights_of(p.table), x = numbers(kTokens * kWidth, 2);
    std::vector<double> dropped = x;
    const Random stream(9, RandomPurpose::Dropout, static_cast<uint32_t>(linear.lora.a));
    for (size_t i = 0; i < x.size(); i++)
      if (dropout > 0) dropped[i] *= stream.uniform(at_step(0, i)) >= 0.25f ? 1 / 0.75 : 0;
    // Element `i` of a parameter, and a row's product with one of them.
    const auto number = [&](ParamId id, int64_t i) {
      for (ParamId before = 0; before < id; before++) i += p.table[before].shape.count();
      return weights[static_cast<size_t>(i)];
    };
    const auto times = [&](const std::vector<double>& of, int64_t t, ParamId id, int64_t row) {
      double sum = 0;
      for (int64_t i = 0; i < kWidth; i++)
        sum += of[static_cast<size_t>(t * kWidth + i)] * number(id, row * kWidth + i);
      return sum;
    };
    const std::vector<double> got =
        Tape(p.table, layer, all_kept, true, dropout > 0 ? std::optional<uint64_t>(9) : std::nullopt)
            .result(weights, x);
    for (int64_t t = 0; t < kTokens; t++)
      for (ParamId part = 0; part < 2; part++) {
        const LoraPart& of = linear.lora.parts[static_cast<size_t>(part)];
        const auto scale = static_cast<double>(of.scale);
        for (int64_t row = 0; row < of.row_end - of.row_begin; row++) {
          // The test's norm of W's row is a number of its own.
          const double norm = number(linear.lora.row_norms + part, row);
          double square = norm * norm, through = 0;
          for (int64_t i = 0; i < kRank; i++) {
            const double left = number(of.b, row * kRank + i);
            through += left * times(dropped, t, linear.lora.a_of(static_cast<size_t>(part)), i);
            for (int64_t k = 0; k < kWidth; k++) {
              const double a = number(linear.lora.a_of(static_cast<size_t>(part)), i * kWidth + k);
              square += 2 * scale * left * a * number(linear.weight + part, row * kWidth + k);
              for (int64_t j = 0; j < kRank; j++)
                square += scale * scale * left * a * number(of.b, row * kRank + j) *
                          number(linear.lora.a_of(static_cast<size_t>(part)), j * kWidth + k);
            }
          }
          const double m = number(linear.lora.initial_magnitude + part, row) + number(linear.lora.change + part, row),
                       factor = m / std::sqrt(square);
          const auto at = static_cast<size_t>(t * kWidth + of.row_begin + row);
          const double expected = times(x, t, linear.weight + part, row) + number(linear.bias + part, row) +
                                  (factor - 1) * times(dropped, t, linear.weight + part, row) +
                                  factor * scale * through + x[at];
          EXPECT_NEAR(got[at], expected, 1e-9 * (1 + std::abs(expected))) << dropout << ", " << at;
        }
      }
  }
}

TEST(Tape, ABranchsFactorIsInItsGradients) {
  for (const int64_t rank : {0, 2}) {
    Params p;
    const LayerParams block = decoder(p, rank);
    expect_gradients(p.table, layer_of(block, [](LayerSpec& spec) { spec.residual_multiplier = 0.3; }));
  }
}

// Gains of 1 + weight, GELU, and norms after attention and the MLP, whose addend the residual stream is.
TEST(Tape, ANormedBranchsBackwardIsTheGradientOfItsForward) {
  for (const int64_t rank : {0, 2}) {
    Params p;
    LayerParams block = decoder(p, rank);
    block.attention_post_norm = p.norm("attention_post_norm");
    block.mlp_post_norm = p.norm("mlp_post_norm");
    for (Norm* norm : {&block.attention_norm, &block.mlp_norm, &block.attention_post_norm, &block.mlp_post_norm})
      norm->plus_one = true;
    expect_gradients(p.table, layer_of(block, [](LayerSpec& spec) { spec.gate = Activation::GeluTanh; }));
  }
}

// Norms behind attention and the MLP alone, and of all queries and all keys: the layer's input is a linear's.
TEST(Tape, AnUnnormedBranchsBackwardIsTheGradientOfItsForward) {
  for (const int64_t rank : {0, 2}) {
    Params p;
    LayerParams block = decoder(p, rank);
    for (Norm* norm : {&block.attention_norm, &block.mlp_norm}) {
      p.table.params[static_cast<size_t>(norm->gain)].trainable = false;  // what nothing reads
      *norm = {};
    }
    block.attention_post_norm = p.norm("attention_post_norm");
    block.mlp_post_norm = p.norm("mlp_post_norm");
    block.query_norm = {p.add("query_norm", {8}), 1e-3};
    block.key_norm = {p.add("key_norm", {4}), 1e-3};
    expect_gradients(p.table, layer_of(block, [](LayerSpec& spec) { spec.joint_head_norms = true; }));
  }
}

// Norms of heads behind the rotary embedding.
TEST(Tape, ANormOfRotatedHeadsHasTheGradientOfItsForward) {
  for (const int64_t rank : {0, 2}) {
    Params p;
    LayerParams block = decoder(p, rank);
    block.query_norm = {p.add("query_norm", {4}), 1e-3};
    block.key_norm = {p.add("key_norm", {4}), 1e-3};
    expect_gradients(p.table, layer_of(block, [](LayerSpec& spec) { spec.rope_before_norms = true; }));
  }
}

// Attention and the MLP side by side: two linears read one norm.
TEST(Tape, AParallelLayersBackwardIsTheGradientOfItsForward) {
  for (const int64_t rank : {0, 2})
    for (const NormKind kind : {NormKind::Rms, NormKind::Layer}) {
      Params p;
      LayerParams block = decoder(p, rank);
      p.table.params[static_cast<size_t>(block.mlp_norm.gain)].trainable = false;  // what nothing reads
      block.mlp_norm = {};
      block.attention_norm.kind = kind;
      expect_gradients(p.table, layer_of(block, [](LayerSpec& spec) { spec.parallel = spec.rope_interleaved = true; }));
    }
}

// LayerNorm, with and without a bias, by 1 + weight, and of heads; what is not trained has no gradient.
TEST(Tape, ALayerNormsBackwardIsTheGradientOfItsForward) {
  for (const int64_t rank : {0, 2}) {
    Params p;
    LayerParams block = decoder(p, rank);
    block.mlp_post_norm = p.norm("mlp_post_norm");
    block.query_norm = {p.add("query_norm", {4}), 1e-3};
    block.key_norm = {p.add("key_norm", {4}), 1e-3};
    for (Norm* norm :
         {&block.attention_norm, &block.mlp_norm, &block.mlp_post_norm, &block.query_norm, &block.key_norm})
      norm->kind = NormKind::Layer;
    block.mlp_norm.plus_one = true;
    block.mlp_norm.bias = p.add("mlp_norm.bias", {kWidth});
    block.mlp_post_norm.bias = p.add("mlp_post_norm.bias", {kWidth}, rank == 0);
    block.key_norm.bias = p.add("key_norm.bias", {4});
    p.table.params[static_cast<size_t>(block.attention_norm.gain)].trainable = rank == 0;
    expect_gradients(p.table, layer_of(block));
  }
}

// Heads have gains of their own: in one parameter, or in one each, of which some may be trained alone.
TEST(Tape, ANormOfHeadsWithTheirOwnGainsHasTheGradientOfItsForward) {
  for (const int64_t rank : {0, 2})
    for (const int untrained : {0, 1, 2}) {
      Params p;
      LayerParams block = decoder(p, rank);
      block.query_norm = {p.add("query_norm", {4}, untrained != 1), 1e-3, false, NormKind::Layer, kNoParam, 2, 2};
      p.add("query_norm", {4}, untrained != 2);
      block.key_norm = {p.add("key_norm", {1, 4}), 1e-3, false, NormKind::Layer};
      expect_gradients(p.table, layer_of(block, [](LayerSpec& spec) { spec.own_head_gains = true; }));
    }
}

// An MLP without a gate, by every activation.
TEST(Tape, AnUngatedMlpsBackwardIsTheGradientOfItsForward) {
  for (const int64_t rank : {0, 2})
    for (const Activation activation :
         {Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::GeluQuick, Activation::ReluSquared}) {
      Params p;
      LayerParams block = decoder(p, rank);
      for (ParamSpec& param : p.table.params)
        if (param.name.starts_with("gate_up")) param.trainable = false;  // what nothing reads
      block.gate_up = p.linear("up", kWidth, {5}, rank == 0, rank);
      expect_gradients(p.table, layer_of(block, [&](LayerSpec& spec) {
                         spec.gated = false;
                         spec.gate = activation;
                       }));
    }
}

// Two readers of the norm, as in parallel blocks: their contributions add up, and nothing is restored too early.
TEST(Tape, AValueWithTwoReadersHasTheSumOfTheirGradients) {
  Params p;
  const Norm norm = p.norm("norm");
  const Linear mix = p.linear("mix", kWidth, {kWidth}), gate_up = p.linear("gate_up", kWidth, {5, 5}),
               down = p.linear("down", 5, {kWidth});
  expect_gradients(p.table, [&](Builder& b, Value x) {
    const Value n = b.rms_norm(x, norm);
    const Value r = b.linear(n, mix, ActivationClass::Residual, x);
    const Value h = b.swiglu(b.linear(n, gate_up, ActivationClass::Mlp));
    return b.linear(h, down, ActivationClass::LayerBoundary, r);
  });
}

// SwiGLU's result goes to two linears: neither may become one op with it.
TEST(Tape, ASwigluOfTwoReadersIsNoPartOfAProduct) {
  Params p;
  const Linear gate_up = p.linear("gate_up", kWidth, {5, 5}), first = p.linear("first", 5, {kWidth}),
               second = p.linear("second", 5, {kWidth});
  const Layer layer = [&](Builder& b, Value x) {
    const Value h = b.swiglu(b.linear(x, gate_up, ActivationClass::Mlp));
    return b.linear(h, second, ActivationClass::LayerBoundary, b.linear(h, first, ActivationClass::Residual));
  };
  expect_gradients(p.table, layer);
  Tape tape(p.table, layer, all_kept);
  EXPECT_EQ(std::ranges::count(tape.kinds(), "swiglu_gemm"), 1);
  EXPECT_EQ(std::ranges::count(tape.kinds(), "swiglu_gemm_backward"), 0);
  EXPECT_EQ(std::ranges::count(tape.kinds(), "swiglu_backward"), 1);
}

// The MLP comes first and has a norm of its own: its last linear's gradient is changed before the SwiGLU's turn.
TEST(Tape, AProductIsNoPartOfASwigluThatIsFarFromIt) {
  Params p;
  const Norm first = p.norm("first"), second = p.norm("second");
  const Linear mix = p.linear("mix", kWidth, {kWidth}), gate_up = p.linear("gate_up", kWidth, {5, 5}),
               down = p.linear("down", 5, {kWidth});
  expect_gradients(p.table, [&](Builder& b, Value x) {
    const Value h = b.swiglu(b.linear(b.rms_norm(x, second), gate_up, ActivationClass::Mlp));
    const Value r = b.linear(b.rms_norm(x, first), mix, ActivationClass::Residual, x);
    return b.linear(h, down, ActivationClass::LayerBoundary, r);
  });
}

// The SwiGLU's result is the addend of its own product too.
TEST(Tape, ASwigluThatIsAnAddendTooIsNoPartOfTheProduct) {
  Params p;
  const Linear gate_up = p.linear("gate_up", kWidth, {kWidth, kWidth}), down = p.linear("down", kWidth, {kWidth});
  expect_gradients(p.table, [&](Builder& b, Value x) {
    const Value h = b.swiglu(b.linear(x, gate_up, ActivationClass::Mlp));
    return b.linear(h, down, ActivationClass::LayerBoundary, h);
  });
}

// The addend of one sum is read by a linear too: its gradient is not that of the sum alone.
TEST(Tape, AnAddendThatIsReadElsewhereHasBothGradients) {
  Params p;
  const Linear first = p.linear("first", kWidth, {kWidth}), second = p.linear("second", kWidth, {kWidth}),
               third = p.linear("third", kWidth, {kWidth});
  expect_gradients(p.table, [&](Builder& b, Value x) {
    const Value y = b.linear(x, first, ActivationClass::Residual, x);
    const Value z = b.linear(y, second, ActivationClass::Attention, y);
    return b.linear(z, third, ActivationClass::LayerBoundary, y);
  });
}

// The norm's gradient is added to that of x, which is the linear's own dy: its weight needs that before.
TEST(Tape, AWeightsGradientIsTakenBeforeWhatItReadsIsOverwritten) {
  Params p;
  const Norm norm = p.norm("norm");
  const Linear linear = p.linear("linear", kWidth, {kWidth});
  expect_gradients(p.table, [&](Builder& b, Value x) {
    return b.linear(b.rms_norm(x, norm), linear, ActivationClass::LayerBoundary, x);
  });
}

// Only `down` is trained: its gradient takes h again, and nothing else is emitted.
TEST(Tape, NothingIsEmittedForAGradientThatNobodyWants) {
  Params p;
  const LayerParams block = decoder(p, 0);
  for (ParamSpec& param : p.table.params) param.trainable = param.name == "down";
  const std::vector<std::string_view> kinds = Tape(p.table, layer_of(block), all_kept, false).backward_kinds();
  EXPECT_EQ(kinds, (std::vector<std::string_view>{"swiglu", "gemm"}));
}

}  // namespace
}  // namespace snug
