#include "measure/measure.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "backend/cuda/facts.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/rounding.h"
#include "measure/op_timer.h"

namespace snug {
namespace {

// Sets the sizes of what is timed. Products have dimensions as in a step, up to a number of operations; larger ones are
// assumed to run at the rate of the largest below them.
struct Scale {
  OpTimer::Room room{};
  double most_flops = 0x1p31, most_slow_flops = 0x1p29;  // in bf16 and fp32
  std::array<int64_t, 4> rows{16, 256, 2048, 8192};
  int64_t tokens = 1024, heads = 8, kv_heads = 4;  // of attention
  std::array<int64_t, 3> lengths{64, 256, 1024};
  int64_t addend_depth = 256;               // in products with longer sums an addend's bytes do not matter
  std::vector<int64_t> head_dims{64, 128};  // of attention in bf16, ascending; fp32 has only these
};

Scale scale_of_team(int threads) {
  Scale scale;
  if (threads == 1) scale.most_flops = scale.most_slow_flops;
  return scale;
}

// Times attention by the columns of tiles, to which heads of other sizes are padded.
Scale scale_of_card(int capability) {
  const auto& tiles = cuda::has_warpgroups(capability) ? cuda::kWarpgroupDims : cuda::kTileDims;
  return {{3ull << 29, 256u << 20},    0x1p41, 0x1p34, {64, 1024, 8192, 32768}, 8192, 32, 8, {256, 2048, 8192}, 16384,
          {tiles.begin(), tiles.end()}};
}

std::vector<DType> dtypes() { return {DType::BF16, DType::F32}; }

// Returns work a second, without the fixed cost of an op, which takes at most three quarters of the time.
double rate_of(double work, double seconds, double op_seconds) {
  return work / std::max(seconds - op_seconds, seconds / 4);
}

// Collects ops that are timed together, each with the function that takes its seconds.
class Batch {
 public:
  using Take = std::function<void(double seconds)>;
  void add(Sample sample, Take take) {
    samples_.push_back(std::move(sample));
    takes_.push_back(std::move(take));
  }
  void run(OpTimer& timer) const {
    const std::vector<double> seconds = timer.seconds(samples_);
    for (size_t i = 0; i < takes_.size(); i++) takes_[i](seconds[i]);
  }

 private:
  std::vector<Sample> samples_;
  std::vector<Take> takes_;
};

// ---- Products -------------------------------------------------------------------------------------------------------

class ProductTimer {
 public:
  ProductTimer(const Scale& scale, const std::vector<int64_t>& sizes, double op_seconds)
      : scale_(scale), sizes_(sizes), op_seconds_(op_seconds) {}

  // Adds all products that are worth timing; `table` must live until the batch has run.
  void add_to(Batch& batch, ProductRates& table) const {
    table.flops.assign(sizes_.size() * sizes_.size() * sizes_.size(), 0);
    for_points([&](const Point& p) {
      if (hides_addend(p, table) || worth_timing(p, table) != p) return;
      batch.add({attrs_of(table), operands_of(table, p)}, [this, p, &rate = table.flops[at(p)]](double seconds) {
        rate = rate_of(p.flops(), seconds, op_seconds_);
      });
    });
  }
  // Fills in products that were not timed, from the largest below them or the one without an addend.
  void fill(ProductRates& table, const ProductRates& plain) const {
    for_points([&](const Point& p) {
      table.flops[at(p)] = hides_addend(p, table) ? plain.flops[at(p)] : table.flops[at(worth_timing(p, table))];
    });
  }

 private:
  struct Point {
    int64_t m, n, k;
    bool operator==(const Point&) const = default;
    double flops() const { return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
  };

  bool hides_addend(const Point& p, const ProductRates& table) const {
    return table.addend && p.k > scale_.addend_depth;
  }

  // Returns the product to time in place of p: one with no more operations than the limit. A product that is large in
  // some dimensions and small in another runs no faster for being larger still.
  Point worth_timing(Point p, const ProductRates& table) const {
    const double most = table.dtype == DType::F32 ? scale_.most_slow_flops : scale_.most_flops;
    const int64_t large = sizes_[sizes_.size() - std::min<size_t>(2, sizes_.size())];
    while (p.flops() > most || (std::max({p.m, p.n, p.k}) > large && std::min({p.m, p.n, p.k}) < large)) {
      int64_t& largest = p.k >= p.m && p.k >= p.n ? p.k : p.m >= p.n ? p.m : p.n;
      largest = sizes_[place(largest) - 1];
    }
    return p;
  }

  template <class F>
  void for_points(F&& f) const {
    for (const int64_t m : sizes_)
      for (const int64_t n : sizes_)
        for (const int64_t k : sizes_) f(Point{m, n, k});
  }

  size_t place(int64_t size) const { return static_cast<size_t>(std::ranges::find(sizes_, size) - sizes_.begin()); }
  size_t at(const Point& p) const { return (place(p.m) * sizes_.size() + place(p.n)) * sizes_.size() + place(p.k); }

  static Attrs attrs_of(const ProductRates& t) {
    if (t.dtype == DType::U8) return Fp8Gemm{.addend = t.addend};
    return Gemm{.transpose_a = t.transpose_a, .transpose_b = t.transpose_b, .addend = t.addend};
  }
  static OperandList operands_of(const ProductRates& t, const Point& p) {
    const auto& [m, n, k] = p;
    const bool fp8 = t.dtype == DType::U8;
    OperandList list;
    list.r(t.dtype, t.transpose_a ? Shape{k, m} : Shape{m, k});
    if (fp8) list.r(DType::F32, {m});
    list.r(t.dtype, t.transpose_b ? Shape{n, k} : Shape{k, n});
    if (fp8) list.r(DType::F32, {n});
    const DType result = fp8 ? DType::BF16 : t.dtype;
    if (t.addend)
      list.r(result, {m, n}).again(Access::Write);
    else
      list.w(result, {m, n});
    return list;
  }

  const Scale& scale_;
  const std::vector<int64_t>& sizes_;
  double op_seconds_;
};

// ---- Attention ------------------------------------------------------------------------------------------------------

// Adds attention at the lengths of `scale`; `rates` must live until the batch has run.
void add_attention(Batch& batch, const Scale& scale, AttentionRates& rates) {
  const auto& [dtype, backward, dim, curve] = rates;
  const HeadShape shape{.heads = scale.heads, .kv_heads = scale.kv_heads, .dim = dim};
  rates.flops.rates.assign(scale.lengths.size(), 0);
  for (size_t i = 0; i < scale.lengths.size(); i++) {
    const int64_t length = scale.lengths[i];
    const int64_t tokens = scale.tokens, documents = tokens / length;
    const Shape queries{tokens, shape.query_columns()}, keys{tokens, shape.key_columns()};
    const Shape sums{shape.heads, tokens}, starts{documents + 1};
    const float factor = 1 / std::sqrt(static_cast<float>(dim));
    OperandList list;
    if (backward) list.r(dtype, queries);
    list.r(dtype, queries).r(dtype, keys).r(dtype, keys);
    if (backward)
      list.r(dtype, queries).r(DType::F32, sums).r(DType::I32, starts).w(dtype, queries).w(dtype, keys).w(dtype, keys);
    else
      list.r(DType::I32, starts).w(dtype, queries).w(DType::F32, sums);
    const size_t bounds = backward ? 6 : 3;
    auto fill = [=](std::span<const TensorView> views) {
      for (int64_t d = 0; d <= documents; d++) views[bounds].as<int32_t>()[d] = static_cast<int32_t>(d * length);
    };
    const Attrs attrs =
        backward ? Attrs(AttentionBackward{{shape, factor, length}}) : Attrs(Attention{shape, factor, length});
    rates.flops.sizes.push_back(static_cast<double>(length));
    batch.add({attrs, list, {.documents = documents}, fill},
              [&rate = rates.flops.rates[i], done = OpTimer::work_of(attrs, list).flops](double seconds) {
                rate = done / seconds;
              });
  }
}

// ---- Everything else ------------------------------------------------------------------------------------------------

// Squares the last but one operand, which is AdamW's second moment.
void fill_squares(std::span<const TensorView> views) {
  const TensorView& squares = views[views.size() - 2];
  for (int64_t i = 0; i < squares.count(); i++) squares.as<float>()[i] *= squares.as<float>()[i];
}

// Returns every kind of op of a training step at `rows` rows of 1024, or as many elements.
std::vector<Sample> samples(DType t, int64_t rows) {
  const int64_t cols = 1024, count = rows * cols, some = std::min<int64_t>(rows, 512), few = rows / 16;
  const Shape x{rows, cols}, flat{count}, wide{rows, 2 * cols}, broad{rows / 4, 4 * cols};
  const RuntimeScalars all{
      .documents = 1, .loss_rows = rows, .segments = 16, .loss_scale = 0.01f, .step = 3, .learning_rate = 1e-5};
  const DType f32 = DType::F32, i32 = DType::I32;
  std::vector<Sample> list{
      {RmsNorm{1e-5f}, OperandList().r(t, x).r(t, {cols}).w(t, x).w(f32, {rows})},
      {RmsNormBackward{.accumulate = true}, OperandList().r(t, x).r(t, x).r(t, {cols}).r(f32, {rows}).rw(t, x)},
      {LayerNorm{1e-5f, false, true}, OperandList().r(t, x).r(t, {cols}).r(t, {cols}).w(t, x).w(f32, {2, rows})},
      {LayerNormBackward{.accumulate = true}, OperandList().r(t, x).r(t, x).r(t, {cols}).r(f32, {2, rows}).rw(t, x)},
      {Activate{Activation::ReluSquared}, OperandList().r(t, x).w(t, x)},
      {ActivateBackward{false, Activation::ReluSquared}, OperandList().r(t, x).r(t, x).w(t, x)},
      {SwiGlu{}, OperandList().r(t, wide).w(t, x)},
      {SwiGluBackward{}, OperandList().r(t, x).r(t, wide).w(t, wide)},
      {Rope{64}, OperandList().rw(t, x).r(i32, {rows}).r(f32, {512, 64})},
      {Accumulate{}, OperandList().r(t, flat).rw(f32, flat)},
      {Rescale{.addend = true}, OperandList().r(t, x).r(t, x).w(t, x)},
      {ScaleColumns{{{0}, {cols}}, true}, OperandList().r(t, x).r(f32, {2, cols}).r(t, x).w(t, x)},
      {ScaleColumnsBackward{{{0}, {cols}}}, OperandList().r(t, x).r(t, x).r(f32, {2, cols}).w(t, x).w(t, {cols})},
      {SumRanks{}, OperandList().r(t, {1, count}).w(t, flat)},
      {Cast{}, OperandList().r(f32, flat).w(t, flat)},
      {Fill{}, OperandList().w(t, flat)},
      {ColumnSum{}, OperandList().r(t, x).w(f32, {cols})},
      {Embedding{}, OperandList().r(i32, {rows}).r(t, {1024, cols}).w(t, x)},
      {EmbeddingBackward{},
       OperandList().r(t, {512, cols}).r(i32, {512}).r(i32, {513}).r(i32, {512}).w(t, x),
       {.segments = 0}},
      {GatherRows{}, OperandList().r(t, {1024, cols}).r(i32, {rows}).w(t, x)},
      {ScatterRows{}, OperandList().r(t, {some, cols}).r(i32, {some}).w(t, x)},
      {CrossEntropy{.gradient = true}, OperandList().rw(t, {few, 16 * cols}).r(i32, {few}).r(f32, {few}).w(f32, {few}),
       all},
      {AdapterBackward{1, {{0}, {4 * cols}}},
       OperandList().r(t, broad).r(t, {4 * cols, 16}).r(t, {rows / 4, 16}).w(t, {rows / 4, 16}).w(t, {4 * cols, 16})},
      {NormPartials{}, OperandList().r(t, flat).w(f32, {ceil_div(count, kUnit)})},
  };
  AdamW adamw{.split = t == DType::BF16};
  OperandList operands;
  operands.r(t, flat);
  if (adamw.split)
    operands.rw(t, flat).rw(DType::I16, flat);
  else
    operands.rw(t, flat);
  list.push_back({adamw, operands.rw(f32, flat).rw(f32, flat).r(f32, {3}), all, fill_squares});
  return list;
}

double bytes_rate(OpTimer& timer, const Sample& sample, double op_seconds) {
  return rate_of(OpTimer::work_of(sample.attrs, sample.list).bytes, timer.seconds(sample), op_seconds);
}

void measure_kinds(OpTimer& timer, const Scale& scale, Rates& measured) {
  for (const DType dtype : dtypes()) {
    const size_t first = measured.kinds.size();
    for (const int64_t rows : scale.rows) {
      const std::vector<Sample> all = samples(dtype, rows);
      for (size_t i = 0; i < all.size(); i++) {
        if (rows == scale.rows[0]) measured.kinds.push_back({std::string(kind(all[i].attrs)), dtype, {}});
        RateCurve& curve = measured.kinds[first + i].bytes;
        curve.sizes.push_back(OpTimer::work_of(all[i].attrs, all[i].list).bytes);
        curve.rates.push_back(bytes_rate(timer, all[i], measured.op_seconds));
      }
    }
  }
}

// ---- The machine ----------------------------------------------------------------------------------------------------

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name") && line.find(": ") != line.npos) return line.substr(line.find(": ") + 2);
  return "unknown";
}

}  // namespace

std::vector<int64_t> measured_product_sizes() { return {16, 64, 256, 1024, 4096, 16384}; }

namespace {

// Measures products and attention together, as they follow each other in a step.
void measure_products(OpTimer& timer, const Scale& scale, const std::vector<int64_t>& sizes, DType dtype,
                      Rates& measured) {
  std::vector<ProductRates> tables;
  std::vector<AttentionRates> attention;
  using Layout = std::pair<bool, bool>;
  const bool fp8 = dtype == DType::U8;
  for (const auto& [ta, tb] :
       fp8 ? std::vector<Layout>{{false, true}} : std::vector<Layout>{{false, true}, {false, false}, {true, false}})
    for (const bool addend : {false, true}) tables.push_back({dtype, ta, tb, addend, {}});
  for (const bool backward : {false, true})
    for (const int64_t dim : dtype == DType::BF16 ? scale.head_dims : Scale().head_dims)
      if (!fp8) attention.push_back({dtype, backward, dim, {}});
  const ProductTimer products(scale, sizes, measured.op_seconds);
  Batch batch;
  for (ProductRates& table : tables) products.add_to(batch, table);
  for (AttentionRates& rates : attention) add_attention(batch, scale, rates);
  batch.run(timer);
  for (size_t i = 0; i < tables.size(); i++) products.fill(tables[i], tables[i - i % 2]);
  std::ranges::move(tables, std::back_inserter(measured.products));
  std::ranges::move(attention, std::back_inserter(measured.attention));
}

Rates measure_rates(OpTimer& timer, const Scale& scale, const std::vector<int64_t>& product_sizes, bool fp8) {
  Rates measured;
  const Shape tiny{64, 16};
  measured.op_seconds = timer.seconds(
      {RmsNorm{1e-5f}, OperandList().r(DType::F32, tiny).r(DType::F32, {16}).w(DType::F32, tiny).w(DType::F32, {64})});
  for (const int64_t rows : scale.rows) {
    const Sample copy{Copy{}, OperandList().r(DType::F32, {rows * 1024}).w(DType::F32, {rows * 1024})};
    measured.copy.sizes.push_back(OpTimer::work_of(copy.attrs, copy.list).bytes);
    measured.copy.rates.push_back(bytes_rate(timer, copy, measured.op_seconds));
  }
  for (const DType dtype : dtypes()) measure_products(timer, scale, product_sizes, dtype, measured);
  for (const ProductRates& table : measured.products)
    measured.flops = std::max(measured.flops, std::ranges::max(table.flops));
  if (fp8) {
    const size_t first = measured.products.size();
    measure_products(timer, scale, product_sizes, DType::U8, measured);
    measured.fp8_flops = std::ranges::max(measured.products[first].flops);
  }
  measure_kinds(timer, scale, measured);
  return measured;
}

}  // namespace

TeamRates measure_team(int team_threads, const std::vector<int64_t>& product_sizes, Clock clock) {
  set_threads(team_threads);
  const Scale scale = scale_of_team(team_threads);
  CpuBackend backend;
  const CpuFacts facts;
  OpTimer timer(backend, facts, clock, scale.room);
  return {measure_rates(timer, scale, product_sizes, false), team_threads};
}

uint64_t measure_card(Backend& backend, const std::vector<int64_t>& product_sizes, Cards& cards) {
  const Scale scale = scale_of_card(cards.capability);
  const CudaFacts facts(cards.capability);
  OpTimer timer(backend, facts, wall_seconds, scale.room);
  timer.keep_hot();
  cards.rates = measure_rates(timer, scale, product_sizes, cards.rates.fp8_flops > 0);
  return 2 * scale.room.half;
}

Machine measure_machine(const MeasureOptions& options) {
  Machine machine;
  machine.processor = processor_name();
  machine.cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  machine.memory_bytes = total_memory();
  machine.free_bytes = free_memory();
  machine.group_limit_bytes = group_memory_limit();
  options.progress(fmt::format("disk: {}", options.disk_directory.string()));
  machine.disk = measure_disk(options.disk_directory);
  machine.product_sizes = measured_product_sizes();
  std::vector<int> teams{1};
  if (options.threads > 1) teams.push_back(options.threads);
  for (const int threads : teams) {
    options.progress(fmt::format("products, attention and memory: {} thread{}", threads, threads == 1 ? "" : "s"));
    machine.teams.push_back(measure_team(threads, machine.product_sizes));
  }
  // Ranks are threads, and each copies with one thread.
  machine.link = machine.teams.front().copy.rates.back();
  return machine;
}

}  // namespace snug
