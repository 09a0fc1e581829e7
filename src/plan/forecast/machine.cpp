#include "plan/forecast/machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "program/adapter.h"
#include "program/swiglu_gemm.h"
#include "program/swiglu_quantize.h"

namespace snug {
namespace {

// Says where a size lies between two neighbours of an ascending list, or at the end beyond which it is.
struct Between {
  size_t below = 0, above = 0;
  double share = 0;  // weight of the one above
  double size = 0;   // clamped to the list

  template <class T>
  Between(const std::vector<T>& sizes, double sought) {
    const auto next = std::ranges::upper_bound(sizes, sought, {}, [](T s) { return static_cast<double>(s); });
    const auto i = static_cast<size_t>(next - sizes.begin());
    below = i == 0 ? 0 : i - 1;
    above = std::min(i, sizes.size() - 1);
    const auto low = static_cast<double>(sizes[below]), high = static_cast<double>(sizes[above]);
    size = std::clamp(sought, low, high);
    if (low < high) share = (size - low) / (high - low);
  }
};

double element_count(const Operand& operand) { return static_cast<double>(operand.shape.count()); }
double bytes_of(const Operand& operand) {
  return element_count(operand) * static_cast<double>(element_bytes(operand.dtype));
}

// Returns the dtype of the kernel, which is that of the activations.
DType kernel_dtype(const Op& op) {
  const bool bf16 = std::ranges::any_of(op.operands, [](const Operand& o) { return o.dtype == DType::BF16; });
  return bf16 ? DType::BF16 : DType::F32;
}

// By tiles, attention whose scores have a soft cap reaches this share of the rate without one, forward and backward:
// 0.66 to 0.89 and 0.57 to 0.82 on an H100, by either kind of tiles, with heads of 128 and 256.
constexpr std::array kCappedShare{0.75, 0.67};

// With this many cards the bus is as slow as with more: each has its own way to the host, and groups of cards share
// what is behind it.
constexpr int kMostSharing = 4;

// A product that includes SwiGLU is longer by this share of SwiGLU's own time: 0.2 to 0.5 forward and 0.5 to 0.6
// backward on H200s, with 2,048 to 16,384 tokens.
constexpr double kShownForward = 0.3, kShownBackward = 0.6;

// With codes SwiGLU's ops move bytes at this share of their rate without, the backward that also finds scales of
// columns at the second: 0.82 to 0.84, 0.86 and 0.75 on an H200, as a row's codes wait for all of the row.
constexpr std::array kCodesShare{0.84, 0.75};

// Returns the group as seen by those of its ranks that have the fewest others on their node.
Nodes::Group group_of(const Topology& one, Ranks scope, int ranks_per_node) {
  const int count = one.count(scope);
  std::map<int, int> members;  // by node
  Nodes::Group group{0, count, 0, count == one.ranks};
  for (int place = 0; place < count; place++) {
    const int rank = one.rank_at(scope, place);
    members[rank / ranks_per_node]++;
    group.in_order = group.in_order && rank == place;
  }
  group.nodes = static_cast<int>(members.size());
  for (const auto& [node, there] : members) group.own_node = std::min(group.own_node, there);
  if (count > 1) group.remote = static_cast<double>(count - group.own_node) / (count - 1);
  return group;
}

class OpForecast {
 public:
  OpForecast(const Op& op, const std::vector<Buffer>& buffers, const Machine& machine, const Rates& rates,
             const Nodes& nodes, const OpFacts* facts)
      : op_(op), buffers_(buffers), machine_(machine), rates_(rates), nodes_(nodes), facts_(facts), work_(work(op)) {}

  double seconds() const { return rates_.op_seconds + std::visit(*this, op_.attrs); }

  // Prices a product. What the tables do not cover costs its bytes to memory and back: results wider than the factors
  // and, for profiles without that table, gradients of weights that are added to others.
  double operator()(const Gemm& gemm) const {
    const std::vector<Operand>& operands = op_.operands;
    Gemm like = gemm;
    like.addend = gemm.addend && (!gemm.transpose_a || table_of(gemm));
    double beyond = wider(operands[2u + gemm.addend + gemm.bias]);
    if (gemm.addend) beyond += like.addend ? wider(operands[2]) : bytes_of(operands[2]);
    return product(like, operands[1].shape, rates_.flops) + beyond / rates_.copy.at(work_.bytes);
  }
  double operator()(const Fp8Gemm& gemm) const {
    const double flops = rates_.fp8_flops > 0 ? rates_.fp8_flops : rates_.flops;
    return product({.transpose_b = true, .addend = gemm.addend}, op_.operands[2].shape, flops);
  }

  // Prices an adapted product. In one kernel it is a product with a slightly longer sum.
  double operator()(const AdaptedGemm& gemm) const {
    if (composed()) return by_ops(gemm);
    const int64_t more = op_.operands[2].shape.cols() / std::max(1, gemm.parts.count());
    return product({.transpose_b = gemm.transpose_b}, op_.operands[1].shape, rates_.flops, more);
  }
  double operator()(const AdapterBackward& backward) const {
    const RateCurve* const measured = curve();
    return measured && !composed() ? work_.bytes / measured->at(work_.bytes) : by_ops(backward);
  }

  double operator()(const SwiGluGemm& gemm) const { return with_swiglu(gemm, {.transpose_b = true}, kShownForward); }
  double operator()(const SwiGluGemmBackward& gemm) const { return with_swiglu(gemm, {}, kShownBackward); }
  double operator()(const SwiGluQuantize& op) const { return with_codes(op, "swiglu"); }
  double operator()(const SwiGluBackwardQuantize& op) const { return with_codes(op, "swiglu_backward"); }

  double operator()(const Attention& a) const { return attention(a, false); }
  double operator()(const AttentionBackward& a) const { return attention(a, true); }

  double operator()(const Copy&) const {
    const Space from = buffers_[op_.operands[0].buffer].space, to = buffers_[op_.operands[1].buffer].space;
    if (from == Space::Disk) return bytes_of(op_.operands[0]) / machine_.disk.read;
    if (to == Space::Disk) return bytes_of(op_.operands[1]) / machine_.disk.write;
    if (machine_.cards && from != to) {
      const Bus bus = nodes_.bus(*machine_.cards);
      return bytes_of(op_.operands[0]) / (to == Space::Device ? bus.to_device : bus.from_device);
    }
    return work_.bytes / rates_.copy.at(work_.bytes);
  }
  double operator()(const ReadFile&) const { return bytes_of(op_.operands[0]) / machine_.disk.read; }
  double operator()(const WriteFile&) const { return bytes_of(op_.operands[0]) / machine_.disk.write; }

  double operator()(const AllGather& gather) const {
    const Nodes::Group& group = nodes_.group(gather.ranks);
    return collective(bytes_of(op_.operands[1]) - bytes_of(op_.operands[0]), group, group.in_order);
  }
  double operator()(const Exchange&) const {
    const auto ranks = static_cast<double>(op_.operands[1].shape.rows());
    return collective(bytes_of(op_.operands[1]) * (ranks - 1) / ranks, nodes_.group(Ranks::Everyone), false);
  }

  template <class Other>
  double operator()(const Other&) const {
    if (work_.flops > 0) return roughly();
    const RateCurve* const measured = curve();
    return work_.bytes / (measured ? *measured : rates_.copy).at(work_.bytes);
  }

 private:
  // Returns whether the op runs as the ops of which it is made. Without facts every composite op does, except an
  // adapter's gradients, which have their kernel's rate if that was measured.
  bool composed() const {
    return facts_ ? facts_->kernel(op_.attrs, op_.operands).composed
                  : !std::holds_alternative<AdapterBackward>(op_.attrs);
  }

  // Returns the seconds of a collective. `taken` is in bytes, from all other ranks.
  double collective(double taken, const Nodes::Group& group, bool in_rings) const {
    if (!machine_.cards) return taken / machine_.link;
    const Cards& cards = *machine_.cards;
    if (group.nodes == 1) return taken / nodes_.link(cards).rate;
    const double far = taken * group.remote, near = taken - far;
    const double of_node = in_rings ? taken : near, of_others = in_rings ? taken / group.own_node : far;
    return std::max(of_node / nodes_.link(cards).rate, of_others / cards.node_link) +
           (group.nodes - 1) * cards.node_latency;
  }
  double roughly(double flops) const {
    return std::max(work_.flops / flops, work_.bytes / rates_.copy.at(work_.bytes));
  }
  double roughly() const { return roughly(rates_.flops); }

  // Return the measured curve of the op's kind, or of another kind's, or null.
  const RateCurve* curve() const { return curve(kind(op_.attrs)); }
  const RateCurve* curve(std::string_view kind) const {
    const DType dtype = kernel_dtype(op_);
    for (const KindRates& rates : rates_.kinds)
      if (rates.kind == kind && rates.dtype == dtype) return &rates.bytes;
    return nullptr;
  }

  // Prices what also writes codes: in one kernel, its bytes at a share of the rate of the kind that writes none.
  template <class Kind>
  double with_codes(const Kind& op, std::string_view without) const {
    if (composed()) return by_ops(op);
    const bool most = op.column_scales && std::is_same_v<Kind, SwiGluBackwardQuantize>;
    const RateCurve* const measured = curve(without);
    return work_.bytes / (measured ? *measured : rates_.copy).at(work_.bytes) / kCodesShare[most];
  }

  // Returns the bytes of an operand beyond those that it would take in the first operand's dtype.
  double wider(const Operand& operand) const {
    return bytes_of(operand) * (1 - static_cast<double>(element_bytes(op_.operands[0].dtype)) /
                                        static_cast<double>(element_bytes(operand.dtype)));
  }

  double by_itself(const OpCall<Operand>& call) const {
    Op one;
    one.attrs = call.attrs;
    one.operands = call.operands;
    return std::visit(OpForecast(one, buffers_, machine_, rates_, nodes_, facts_), one.attrs);
  }
  // Returns the sum of the prices of the ops of which the op is made.
  template <class Kind>
  double by_ops(const Kind& kind) const {
    double sum = 0;
    for (const OpCall<Operand>& call : ops_of(kind, std::span<const Operand>(op_.operands))) sum += by_itself(call);
    return sum;
  }

  // Prices a product with SwiGLU: in one kernel the product hides all but a share of SwiGLU's own time.
  template <class Kind>
  double with_swiglu(const Kind& kind, const Gemm& gemm, double share) const {
    const std::span<const Operand> operands = op_.operands;
    if (composed()) return by_ops(kind);
    const std::vector<OpCall<Operand>> ops = ops_of(kind, operands);
    double sum = product(gemm, operands[1].shape, rates_.flops, adapter_columns(kind, operands));
    for (size_t i = 1; i < ops.size(); i++) sum += share * by_itself(ops[i]);
    return sum;
  }

  const ProductRates* table_of(const Gemm& gemm) const {
    const auto found = std::ranges::find_if(rates_.products, [&](const ProductRates& r) {
      return r.dtype == op_.operands[0].dtype && r.transpose_a == gemm.transpose_a &&
             r.transpose_b == gemm.transpose_b && r.addend == gemm.addend;
    });
    return found == rates_.products.end() ? nullptr : &*found;
  }

  // Prices a product. `rough_flops` is the rate where there is no table, `more` the length of the sum beyond the
  // factors' own.
  double product(const Gemm& gemm, const Shape& b, double rough_flops, int64_t more = 0) const {
    const Shape& a = op_.operands[0].shape;
    const ProductRates* const found = table_of(gemm);
    if (!found) return roughly(rough_flops);
    // A side below the smallest measured one costs as much as that.
    const auto least = static_cast<double>(machine_.product_sizes.front());
    const double m = std::max(least, static_cast<double>(gemm.transpose_a ? a.cols() : a.rows())),
                 k = std::max(least, static_cast<double>(gemm.transpose_a ? a.rows() : a.cols())),
                 n = std::max(least, static_cast<double>(gemm.transpose_b ? b.rows() : b.cols()));
    return 2 * m * n * (k + static_cast<double>(more)) / product_flops(found->flops, m, n, k);
  }

  double product_flops(const std::vector<double>& table, double m, double n, double k) const {
    const std::vector<int64_t>& sizes = machine_.product_sizes;
    const std::array<Between, 3> at{Between(sizes, m), Between(sizes, n), Between(sizes, k)};
    double seconds = 0;
    for (unsigned corner = 0; corner < 8; corner++) {
      double share = 1, count = 1;
      size_t index = 0;
      for (unsigned d = 0; d < 3; d++) {
        const bool above = corner >> d & 1u;
        share *= above ? at[d].share : 1 - at[d].share;
        const size_t place = above ? at[d].above : at[d].below;
        count *= static_cast<double>(sizes[place]);
        index = index * sizes.size() + place;
      }
      if (share > 0) seconds += share * count / table[index];
    }
    return at[0].size * at[1].size * at[2].size / seconds;
  }

  // Prices attention, interpolated between the measured head sizes around the computed one, and between lengths.
  double attention(const Attention& a, bool backward) const {
    const Kernel kernel = facts_ ? facts_->kernel(op_.attrs, op_.operands) : Kernel{};
    const DType dtype = kernel.without_tensor_cores ? DType::F32 : kernel_dtype(op_);
    RateCurve by_dim;
    for (const AttentionRates& rates : rates_.attention) {
      if (rates.dtype != dtype || rates.backward != backward) continue;
      by_dim.sizes.push_back(static_cast<double>(rates.head_dim));
      by_dim.rates.push_back(rates.flops.at(seen_length(a)));
    }
    if (by_dim.sizes.empty()) return roughly();
    const auto dim = static_cast<double>(a.shape.dim + a.dim_of_values()) / 2,
               columns = kernel.columns ? static_cast<double>(kernel.columns) : dim;
    const double share = a.cap > 0 && kernel.columns ? kCappedShare[backward] : 1;
    return kernel.stretch * work_.flops * columns / dim / by_dim.at(columns) / share;
  }

  const Op& op_;
  const std::vector<Buffer>& buffers_;
  const Machine& machine_;
  const Rates& rates_;
  const Nodes& nodes_;
  const OpFacts* const facts_;
  Work work_;
};

}  // namespace

double RateCurve::at(double size) const {
  const Between between(sizes, size);
  return between.size / std::lerp(sizes[between.below] / rates[between.below],
                                  sizes[between.above] / rates[between.above], between.share);
}

Machine rough_machine() {
  Machine machine;
  machine.processor = "unknown";
  machine.disk.read = machine.disk.write = 1e9;
  machine.link = 1e10;
  machine.product_sizes = {1};  // a table that has one rate has it for all sizes
  TeamRates team;
  team.op_seconds = 2e-5;
  team.flops = 1e11;
  team.copy = {{1}, {1e10}};
  machine.teams.push_back(team);
  return machine;
}

Nodes::Nodes(const Topology& ranks, int ranks_per_node, bool several_processes)
    : several_processes_(several_processes) {
  for (const Ranks scope : {Ranks::Parts, Ranks::Everyone, Ranks::Replica, Ranks::Peers}) {
    // Looks at one rank of each group.
    const int step = scope == Ranks::Replica ? ranks.shards() : 1, end = scope == Ranks::Replica ? ranks.ranks
                                                                         : scope == Ranks::Peers ? ranks.shards()
                                                                                                 : 1;
    for (int rank = 0; rank < end; rank += step) {
      const Group seen = group_of(ranks.seen_by(rank), scope, ranks_per_node);
      Group& group = groups_[static_cast<size_t>(scope)];
      if (rank == 0 || seen.remote > group.remote) group = seen;
    }
  }
}

Bus Nodes::bus(const Cards& cards) const {
  const int most = std::min(cards.count, kMostSharing), ranks = std::min(group(Ranks::Everyone).own_node, most);
  if (ranks == 1) return cards.bus;
  return {cards.shared_bus.to_device,
          std::lerp(cards.bus.from_device, cards.shared_bus.from_device, static_cast<double>(ranks - 1) / (most - 1))};
}

double seconds(const Op& op, const std::vector<Buffer>& buffers, const Machine& machine, int threads,
               const Nodes& nodes, const OpFacts* facts) {
  const auto& teams = machine.teams;
  const auto of = [&](const Rates& rates) { return OpForecast(op, buffers, machine, rates, nodes, facts).seconds(); };
  if (machine.cards) return of(machine.cards->rates);
  const auto above = std::ranges::lower_bound(teams, threads, {}, &TeamRates::threads);
  if (above == teams.end()) return of(teams.back());
  if (above == teams.begin() || above->threads == threads) return of(*above);
  const TeamRates& below = *std::prev(above);
  const double share =
      static_cast<double>(threads - below.threads) / static_cast<double>(above->threads - below.threads);
  return 1 / ((1 - share) / of(below) + share / of(*above));
}

}  // namespace snug
