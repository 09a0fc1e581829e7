#include "op_runner.h"

#include <cstring>

#include "program/swiglu_gemm.h"

namespace snug {
namespace {

constexpr uint64_t kBlockBytes = 96 << 20;
constexpr uint64_t kMargin = 256;  // bytes before and after a view that must stay as they are
constexpr std::byte kSentinel{0xa5}, kPoison{0xff};

void store(std::byte* to, DType dtype, double value) {
  const auto put = [&](auto x) { std::memcpy(to, &x, sizeof(x)); };
  switch (dtype) {
    case DType::F32:
      return put(static_cast<float>(value));
    case DType::BF16:
      return put(BFloat16(static_cast<float>(value)));
    case DType::F16:
      return put(Float16(static_cast<float>(value)));
    case DType::I32:
      return put(static_cast<int32_t>(value));
    case DType::I16:
      return put(static_cast<int16_t>(value));
    case DType::U8:
      return put(static_cast<uint8_t>(value));
    case DType::I8:
      return put(static_cast<int8_t>(value));
  }
}

template <class T>
double as_number(const std::byte* from) {
  T x;
  std::memcpy(&x, from, sizeof(x));
  if constexpr (std::is_class_v<T>)
    return static_cast<double>(static_cast<float>(x));
  else
    return static_cast<double>(x);
}

double load(const std::byte* from, DType dtype) {
  switch (dtype) {
    case DType::F32:
      return as_number<float>(from);
    case DType::BF16:
      return as_number<BFloat16>(from);
    case DType::F16:
      return as_number<Float16>(from);
    case DType::I32:
      return as_number<int32_t>(from);
    case DType::I16:
      return as_number<int16_t>(from);
    case DType::U8:
      return as_number<uint8_t>(from);
    case DType::I8:
      return as_number<int8_t>(from);
  }
  return 0;
}

double rounded(double value, DType dtype) {
  std::array<std::byte, 8> bytes{};
  store(bytes.data(), dtype, value);
  return load(bytes.data(), dtype);
}

// The largest relative error of rounding to nearest.
double rounding(DType dtype) {
  return dtype == DType::BF16 ? 0x1p-8 : dtype == DType::F16 ? 0x1p-11 : dtype == DType::F32 ? 0x1p-24 : 0;
}

bool same(double got, double want) {
  return (std::isnan(got) && std::isnan(want)) || (got == want && std::signbit(got) == std::signbit(want));
}

// Where element i of a view lies in its region.
size_t offset_of(const TensorView& view, uint64_t shift, int64_t i) {
  const int64_t element = i / view.cols() * view.row_stride + i % view.cols();
  return kMargin + shift + static_cast<size_t>(element) * element_bytes(view.dtype);
}

bool near(const OpCase& c, double got, double want, DType dtype) {
  if (same(got, want)) return true;
  if (c.relative == 0 && c.absolute == 0) return same(got, rounded(want, dtype));
  const double limit = (c.relative + rounding(dtype)) * std::abs(want) + c.absolute;
  return !std::isinf(want) && std::abs(got - want) <= limit;
}

}  // namespace

OpRunner::OpRunner(Backend& backend, const OpFacts& facts, CopyBytes copy)
    : backend_(backend), facts_(facts), copy_(std::move(copy)), block_(backend.reserve(Space::Device, kBlockBytes)) {}

std::vector<OpRunner::Place> OpRunner::place(const OpCase& c, Op& op) const {
  op.attrs = c.attrs;
  op.site = c.name;
  for (const CaseOperand& o : c.operands)
    op.operands.push_back(
        {static_cast<BufferId>(op.operands.size()), o.access, o.dtype, o.shape, 0, o.shape.cols() + o.tail});
  if (const auto scratch = static_cast<int64_t>(facts_.scratch_bytes(op.attrs, op.operands)))
    op.operands.push_back({static_cast<BufferId>(op.operands.size()), Access::Write, DType::U8, {scratch}, 0, scratch});
  std::vector<Place> places;
  uint64_t next = 0;
  for (size_t i = 0; i < op.operands.size(); i++) {
    const Operand& o = op.operands[i];
    const uint64_t shift = i < c.operands.size() ? c.operands[i].shift : 0;
    const auto elements = static_cast<uint64_t>((o.shape.rows() - 1) * o.row_stride + o.shape.cols());
    const uint64_t bytes = 2 * kMargin + shift + elements * element_bytes(o.dtype);
    places.push_back({{block_ + next + kMargin + shift, o.dtype, o.shape, o.row_stride}, next, bytes});
    next += (bytes + facts_.alignment() - 1) / facts_.alignment() * facts_.alignment();
  }
  check(next <= kBlockBytes, "case {} takes {} bytes, the block has {}", c.name, next, kBlockBytes);
  return places;
}

void OpRunner::upload(const OpCase& c, const std::vector<ref::Tensor>& values, const std::vector<Place>& places,
                      Images& images) {
  for (size_t i = 0; i < places.size(); i++) {
    const TensorView& view = places[i].view;
    std::vector<std::byte>& image = images.emplace_back(places[i].bytes, kSentinel);
    const bool scratch = i >= c.operands.size();
    const bool written = scratch || c.operands[i].access == Access::Write;
    for (int64_t e = 0; e < view.count(); e++) {
      std::byte* const to = image.data() + offset_of(view, scratch ? 0 : c.operands[i].shift, e);
      if (written)
        std::fill_n(to, element_bytes(view.dtype), kPoison);
      else
        store(to, view.dtype, values[i][e]);
    }
    copy_(block_ + places[i].begin, image.data(), image.size());
  }
}

std::string OpRunner::run(const OpCase& c, Images* images) {
  Numbers numbers(std::hash<std::string_view>{}("op case"));
  std::vector<ref::Tensor> values;
  for (const CaseOperand& o : c.operands) {
    values.push_back({o.dtype, o.shape, std::vector<double>(static_cast<size_t>(o.shape.count()))});
    if (o.fill) o.fill(values.back(), numbers);
  }
  const auto round_all = [&] {
    for (ref::Tensor& x : values)
      for (double& value : x.values) value = rounded(value, x.dtype);
  };
  round_all();
  if (c.prepare) {
    c.prepare(values);
    round_all();
  }

  Op op;
  const std::vector<Place> places = place(c, op);
  Images before, after;
  upload(c, values, places, before);
  std::vector<TensorView> views;
  for (const Place& p : places) views.push_back(p.view);
  const Launch launch = backend_.bind(op, views);
  before_launch();
  launch(c.runtime);
  after_launch();
  for (const Place& p : places) copy_(after.emplace_back(p.bytes).data(), block_ + p.begin, p.bytes);

  std::visit(ref::Reference(values, c.runtime), c.attrs);
  std::string failure = compare(c, values, places, before, after);
  after.resize(c.operands.size());  // scratch may hold anything
  if (images) *images = std::move(after);
  return failure;
}

std::string OpRunner::compare(const OpCase& c, const std::vector<ref::Tensor>& want, const std::vector<Place>& places,
                              const Images& before, const Images& after) const {
  for (size_t i = 0; i < places.size(); i++) {
    const TensorView& view = places[i].view;
    const bool scratch = i >= c.operands.size();
    const std::string what = scratch ? "scratch" : c.operands[i].name;
    const uint64_t shift = scratch ? 0 : c.operands[i].shift;
    const bool written = scratch || c.operands[i].access != Access::Read;
    std::vector<bool> inside(after[i].size(), false);
    for (int64_t e = 0; e < view.count() && written; e++)
      std::fill_n(inside.begin() + static_cast<ptrdiff_t>(offset_of(view, shift, e)), element_bytes(view.dtype), true);
    for (size_t b = 0; b < inside.size(); b++)
      if (!inside[b] && before[i][b] != after[i][b])
        return fmt::format("{}: byte {} was changed, the view {} starts at byte {}{}", what, b, to_string(view.shape),
                           kMargin + shift, written ? "" : " and is to be read only");
    if (scratch || !written) continue;
    const bool master = c.master != 0 && (i == c.master || i == c.master + 1);
    for (int64_t e = 0; e < view.count(); e++) {
      double got = load(after[i].data() + offset_of(view, shift, e), view.dtype), expected = want[i][e];
      DType dtype = view.dtype;
      if (master) {
        const size_t hi = c.master, lo = c.master + 1;
        const auto part = [&](size_t k) {
          return load(after[k].data() + offset_of(places[k].view, 0, e), places[k].view.dtype);
        };
        got = ref::join(part(hi), part(lo));
        expected = ref::join(want[hi][e], want[lo][e]);
        dtype = DType::F32;
      }
      if (!near(c, got, expected, dtype))
        return fmt::format("{}, element [{}, {}] of {}: {} found, {} expected", what, e / view.cols(), e % view.cols(),
                           to_string(view.shape), got, expected);
    }
  }
  return "";
}

bool OpRunner::any_count(const Op& op, size_t i, const Shape& shape) const {
  if (std::holds_alternative<EmbeddingNoise>(op.attrs)) return true;
  if (std::holds_alternative<ChannelScales>(op.attrs)) return i == 1 && op.operands[0].shape.cols() == 1;
  const auto* attention = std::get_if<Attention>(&op.attrs);
  if (const auto* backward = std::get_if<AttentionBackward>(&op.attrs)) attention = backward;
  if (!attention || attention->cross || op.operands[i].dtype != DType::I32) return false;
  const std::span operands = std::span(op.operands);
  std::vector<Operand> more(operands.begin(), operands.end());
  more[i].shape = shape;
  return facts_.scratch_bytes(op.attrs, more) == facts_.scratch_bytes(op.attrs, operands);
}

std::string OpRunner::bind_wrongly(const OpCase& c) {
  Op op;
  std::vector<TensorView> views;
  for (const Place& p : place(c, op)) views.push_back(p.view);
  const auto refused = [&](const std::vector<TensorView>& wrong) {
    try {
      backend_.bind(op, wrong);
    } catch (const InternalError&) {
      return true;
    }
    return false;
  };
  auto fewer = views;
  fewer.pop_back();
  if (!refused(fewer)) return "bound without its last operand";
  auto more = views;
  more.insert(more.end(), 2, {block_, DType::F32, {1}, 1});  // one alone could pass for scratch
  if (!refused(more)) return "bound with two operands more";
  for (size_t i = 0; i < c.operands.size(); i++) {
    auto wrong = views;
    wrong[i].dtype = views[i].dtype == DType::U8 ? DType::I32 : DType::U8;
    if (!std::holds_alternative<Fill>(c.attrs) && !refused(wrong))
      return fmt::format("bound '{}' as {}", c.operands[i].name, name(wrong[i].dtype));
    const bool any_first = std::holds_alternative<LossSum>(c.attrs) || std::holds_alternative<ClipFactor>(c.attrs) ||
                           std::holds_alternative<TreeSum>(c.attrs);
    const bool any_size = views.size() < 2 || (i == 0 && any_first);
    if (any_size) continue;
    wrong = views;
    const Shape& shape = views[i].shape;
    wrong[i].shape = shape.rank == 1 ? Shape{shape[0] + kUnit} : Shape{shape[0] + 1, shape[1] + 1};
    wrong[i].row_stride = wrong[i].cols();
    if (any_count(op, i, wrong[i].shape)) continue;
    if (!refused(wrong))
      return fmt::format("bound '{}' as {} instead of {}", c.operands[i].name, to_string(wrong[i].shape),
                         to_string(shape));
  }
  return "";
}

std::string restore_wrongly(OpRunner& runner) {
  const Shape shape{67, 200}, wide{67, 400};
  Numbers numbers(1);
  std::vector<double> values;
  for (int i = 0; i < 9973; i++) values.push_back(numbers.uniform(-6, 6));
  std::string said;
  for (const DType t : kActivations) {
    const uint64_t bytes = static_cast<uint64_t>(shape.count()) * element_bytes(t);
    const auto compare = [&](const OpCase& forward, size_t made, const OpCase& backward) {
      OpRunner::Images first, second;
      said += runner.run(forward, &first) + runner.run(backward, &second);
      if (std::memcmp(first[made].data() + kMargin, second[0].data() + kMargin, bytes) != 0)
        said += backward.name + ": other bits\n";
    };
    const CaseOperand x = in("x", t, shape, list(values)), gain = in("gain", t, {200}, list(values));
    const OpCase norm{"rms_norm", RmsNorm{1e-5f}, {x, gain, out("y", t, shape), out("rstd", DType::F32, {67})}, {}};
    OpRunner::Images made;
    said += runner.run(norm, &made);
    std::vector<double> factors;
    for (size_t i = 0; i < 67; i++) factors.push_back(as_number<float>(made[3].data() + kMargin + 4 * i));
    compare(norm, 2,
            {"rms_norm_backward",
             RmsNormBackward{true, false, true},
             {inout("dy", t, shape), x, gain, in("rstd", DType::F32, {67}, list(factors)), inout("dx", t, shape)},
             {},
             2e-5,
             1e-3});
    const CaseOperand bias = in("bias", t, {200}, list(values));
    const OpCase layer{"layer_norm",
                       LayerNorm{1e-5f, true, true},
                       {x, gain, bias, out("y", t, shape), out("moments", DType::F32, {2, 67})},
                       {}};
    made.clear();
    said += runner.run(layer, &made);
    std::vector<double> moments;
    for (size_t i = 0; i < 2 * 67; i++) moments.push_back(as_number<float>(made[4].data() + kMargin + 4 * i));
    for (const bool sums : {false, true}) {
      OpCase c{"layer_norm_backward",
               LayerNormBackward{true, sums, sums, true, true, true},
               {inout("dy", t, shape), x, gain, bias, in("moments", DType::F32, {2, 67}, list(moments)),
                inout("dx", t, shape)},
               {},
               2e-5,
               1e-3};
      if (sums) c.operands.insert(c.operands.end(), {out("dgain", t, {200}), out("dbias", t, {200})});
      compare(layer, 3, c);
    }
    for (const Activation activation : kAllActivations)
      compare({"activate", Activate{activation}, {x, out("h", t, shape)}, {}}, 1,
              {"activate_backward",
               ActivateBackward{true, activation},
               {inout("dh", t, shape), x, out("dx", t, shape)},
               {},
               2e-5});
    compare({"swiglu", SwiGlu{}, {in("gate_up", t, wide, list(values)), out("h", t, shape)}, {}}, 1,
            {"swiglu_backward",
             SwiGluBackward{true},
             {inout("dh", t, shape), in("gate_up", t, wide, list(values)), out("dgate_up", t, wide)},
             {},
             2e-5});
  }
  return said;
}

std::string runs_wrongly(OpRunner& runner) {
  const int64_t cols = 24;
  std::string said;
  for (const int64_t count : {int64_t{1}, kLongRun, kLongRun + 1, int64_t{1000}}) {
    Numbers numbers(3);
    std::vector<double> values;
    for (int64_t i = 0; i < count * cols; i++) values.push_back(static_cast<float>(numbers.uniform(-1, 1)));
    std::vector<double> order, starts(static_cast<size_t>(count + 1), static_cast<double>(count));
    for (int64_t i = count; i > 0; i--) order.push_back(static_cast<double>(i - 1));
    starts[0] = 0;
    const DType i32 = DType::I32, f32 = DType::F32;
    OpRunner::Images images;
    said += runner.run({"embedding_backward",
                        EmbeddingBackward{},
                        {in("dx", f32, {count, cols}, list(values)), in("token_order", i32, {count}, list(order)),
                         in("segment_starts", i32, {count + 1}, list(starts)),
                         in("segment_ids", i32, {count}, list(std::vector<double>{0})), out("dtable", f32, {1, cols})},
                        RuntimeScalars{.segments = 1},
                        1e-4,
                        1e-4},
                       &images);
    for (int64_t c = 0; c < cols; c++) {
      const int64_t lanes = count > kLongRun ? kRunLanes : 1;
      std::vector<float> sums(static_cast<size_t>(lanes));
      for (int64_t i = 0; i < count; i++)
        ref::at(sums, i % lanes) += static_cast<float>(ref::at(values, (count - 1 - i) * cols + c));
      for (int64_t half = lanes / 2; half > 0; half /= 2)
        for (int64_t l = 0; l < half; l++) ref::at(sums, l) += ref::at(sums, l + half);
      const double got = as_number<float>(images[4].data() + kMargin + 4 * c);
      if (got != static_cast<double>(sums[0]))
        said += fmt::format("{} tokens, column {}: {} found, {} expected\n", count, c, got, sums[0]);
    }
  }
  return said;
}

namespace {

// What a case's operand held after a run.
std::vector<double> numbers_of(const OpRunner::Images& images, const OpCase& c, size_t i) {
  const CaseOperand& operand = c.operands[i];
  const TensorView view{nullptr, operand.dtype, operand.shape, operand.shape.cols() + operand.tail};
  std::vector<double> numbers;
  for (int64_t e = 0; e < view.count(); e++)
    numbers.push_back(load(images[i].data() + offset_of(view, operand.shift, e), operand.dtype));
  return numbers;
}

// The same to be given to another case.
CaseOperand as_found(const OpRunner::Images& images, const OpCase& c, size_t i) {
  CaseOperand operand = c.operands[i];
  operand.access = Access::Read;
  operand.fill = list(numbers_of(images, c, i));
  return operand;
}

CaseOperand to_write(const CaseOperand& operand) {
  return {operand.name, Access::Write, operand.dtype, operand.shape, {}, operand.tail};
}

std::string forward_wrongly(OpRunner& runner, const OpCase& c, SwiGluGemm op) {
  const size_t gate_up = factor_count(op), h = gate_up + 1;
  OpRunner::Images images, without, by_itself;
  OpCase less = c;
  less.operands.pop_back();
  op.result = false;
  less.attrs = op;
  const std::string said = runner.run(c, &images) + runner.run(less, &without);
  if (!said.empty()) return said;
  if (images[gate_up] != without[gate_up]) return "gate_up has other bits where h is not asked for";
  const OpCase swiglu{
      "swiglu", SwiGlu{op.activation}, {as_found(images, c, gate_up), to_write(c.operands[h])}, {}, c.relative};
  if (const std::string wrong = runner.run(swiglu, &by_itself); !wrong.empty()) return wrong;
  return by_itself[1] == images[h] ? "" : "h has other bits than SwiGlu gives";
}

std::string backward_wrongly(OpRunner& runner, const OpCase& c, SwiGluGemmBackward op) {
  const size_t gate_up = factor_count(op), dgate_up = gate_up + 1, dh = gate_up + 2;
  OpRunner::Images images, restored, by_itself, h;
  OpCase other = c;
  op.restore = true;
  other.attrs = op;
  const std::string said = runner.run(c, &images) + runner.run(other, &restored);
  if (!said.empty()) return said;
  if (images[dgate_up] != restored[dgate_up]) return "dgate_up has other bits where h is restored";
  const OpCase back{"swiglu_backward",
                    SwiGluBackward{false, op.activation},
                    {as_found(images, c, dh), as_found(images, c, gate_up), to_write(c.operands[dgate_up])},
                    {},
                    c.relative,
                    c.absolute};
  const OpCase swiglu{
      "swiglu", SwiGlu{op.activation}, {as_found(images, c, gate_up), to_write(c.operands[dh])}, {}, c.relative};
  const std::string wrong = runner.run(back, &by_itself) + runner.run(swiglu, &h);
  if (!wrong.empty()) return wrong;
  if (by_itself[2] != images[dgate_up]) return "dgate_up has other bits than SwiGluBackward gives";
  return h[1] == restored[dh] ? "" : "what is restored has other bits than SwiGlu gives";
}

}  // namespace

std::string fused_wrongly(OpRunner& runner, const OpCase& c) {
  if (const auto* forward = std::get_if<SwiGluGemm>(&c.attrs)) return forward_wrongly(runner, c, *forward);
  return backward_wrongly(runner, c, std::get<SwiGluGemmBackward>(c.attrs));
}

std::string codes_wrongly(OpRunner& runner, const OpCase& c) {
  const auto* const forward = std::get_if<SwiGluQuantize>(&c.attrs);
  const auto* const backward = std::get_if<SwiGluBackwardQuantize>(&c.attrs);
  const size_t quantized = forward ? 1 : 3;  // what is quantized
  const bool column_scales = forward ? forward->column_scales : backward->column_scales;
  OpRunner::Images images, first, second;
  OpCase swiglu = c, quantize = c;
  if (forward) {
    swiglu.attrs = SwiGlu{forward->activation};
    swiglu.operands = {c.operands[0], c.operands[1]};
  } else {
    swiglu.attrs = SwiGluBackward{backward->restore, backward->activation};
    swiglu.operands = {c.operands[0], c.operands[1], c.operands[3]};
  }
  // Operands are filled by their order, so that both have the same numbers before the first that is written.
  std::string said = runner.run(c, &images) + runner.run(swiglu, &first);
  if (!said.empty()) return said;
  quantize.attrs = Quantize{BaseFormat::Fp8, backward != nullptr, false, column_scales};
  quantize.operands = {as_found(images, c, quantized)};
  if (backward) quantize.operands.push_back(as_found(images, c, 2));
  for (size_t i = quantized + 1; i < c.operands.size(); i++) quantize.operands.push_back(to_write(c.operands[i]));
  quantize.relative = quantize.absolute = 0;
  said = runner.run(quantize, &second);
  if (!said.empty()) return said;
  if (first[0] != images[0] || first.back() != images[quantized]) return "SwiGLU by itself gives other bits";
  const size_t before = backward ? 2 : 1;
  for (size_t i = before; i < second.size(); i++)
    if (second[i] != images[quantized + 1 + i - before])
      return fmt::format("Quantize by itself gives other bits of '{}'", c.operands[quantized + 1 + i - before].name);
  return "";
}

// Numbers of about 8, a unit in whose last place is 1/32 or 1/16, and 1/256 through the adapter.
std::string faint_adapter_wrongly(OpRunner& runner, bool may_round_product) {
  constexpr DType t = DType::BF16;
  constexpr int64_t n = 512, k = 64, rank = 8;
  constexpr double kFaint = 1.0 / 256;
  std::string said;
  // d, and c if there is one; `columns` have an adapter.
  const auto run = [&](int64_t m, int64_t columns, bool addend, double faint) {
    OpCase c{"adapted_gemm.faint", AdaptedGemm{true, {{0}, {columns}}, addend, false}, {}, {}, 8e-3, 0.1};
    c.operands = {in("a", t, {m, k}, uniform(-3, 3)), in("b", t, {n, k}),
                  in("u", t, {m, rank}, list(std::vector<double>{faint})),
                  in("v", t, {columns, rank}, list(std::vector<double>{1.0 / rank}))};
    if (addend) c.operands.push_back(in("c", t, {m, n}, uniform(4, 8)));
    c.operands.push_back(out("d", t, {m, n}));
    OpRunner::Images images;
    said += runner.run(c, &images);
    return std::pair(numbers_of(images, c, c.operands.size() - 1), numbers_of(images, c, 4));
  };
  const auto rounded = [](double x) {
    return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(x))));
  };
  for (const int64_t m : {int64_t{64}, int64_t{256}})
    for (const bool addend : {true, false}) {
      const int64_t columns = addend ? n : n / 2;
      const std::vector<double> product = run(m, columns, false, 0).first, without = run(m, columns, addend, 0).first;
      const auto [with, c] = run(m, columns, addend, kFaint);
      double sum = 0;
      bool product_rounded = may_round_product;
      for (size_t i = 0; i < with.size(); i++) {
        const bool adapted = static_cast<int64_t>(i) % n < columns;
        sum += with[i] - without[i];
        const double apart = rounded(product[i] + (adapted ? kFaint : 0));
        product_rounded = product_rounded && with[i] == (addend ? rounded(apart + c[i]) : apart);
      }
      const double mean = sum / static_cast<double>(m * columns);
      if (std::abs(mean - kFaint) > kFaint / 5 && !product_rounded)
        said +=
            fmt::format("{} rows{}: {} in the mean, expected {}\n", m, addend ? " with an addend" : "", mean, kFaint);
    }
  return said;
}

}  // namespace snug
