#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

#include "plan/forecast/machine.h"

namespace snug {
namespace {

// Holds the maker's figures of a card: memory as the driver counts it, dense bf16 with fp32 sums, and the kinds of
// bandwidth. Only the free memory of an unused card is not the maker's.
struct Model {
  std::string_view name;
  int capability;  // 86 for 8.6
  uint64_t memory_mib;
  double free_gib;         // rounded down
  double teraflops;        // a second
  double fp32_teraflops;   // of products in fp32, which snug makes without TF32
  double memory_gb;        // bytes a second, in 1e9
  double pci_gb, link_gb;  // bytes a second, in 1e9, one way; the link is the bus where cards have none
  double host_gb;          // bytes a second, in 1e9: a card's share of the usual network between hosts
};
constexpr double kShared100 = 100.0 / 8 / 8, kEthernet25 = 25.0 / 8, kInfiniBand100 = 12.5, kInfiniBand200 = 25,
                 kInfiniBand400 = 50;
// Lists cards, with the slowest of a compute capability first.
constexpr std::array kModels{
    Model{"A10G", 86, 23'028, 22.0, 70, 35, 600, 32, 32, kEthernet25},
    Model{"RTX3090", 86, 24'576, 23.5, 71, 36, 936, 32, 32, kShared100},
    Model{"L4", 89, 23'034, 22.0, 121, 30, 300, 32, 32, kEthernet25},
    Model{"RTX4080", 89, 16'376, 15.5, 97, 49, 717, 32, 32, kShared100},
    Model{"RTX4090", 89, 24'564, 23.5, 165, 83, 1'008, 32, 32, kShared100},
    Model{"A100-40GB", 80, 40'960, 39.4, 312, 19.5, 1'555, 32, 300, kInfiniBand200},
    Model{"A100-80GB", 80, 81'920, 79.1, 312, 19.5, 2'039, 32, 300, kInfiniBand200},
    Model{"L40S", 89, 46'068, 44.4, 362, 92, 864, 32, 32, kInfiniBand100},
    Model{"H100", 90, 81'559, 79.1, 989, 67, 3'350, 64, 450, kInfiniBand400},
    Model{"GH200", 90, 97'871, 94.5, 989, 67, 4'000, 450, 450, kInfiniBand400},
    Model{"H200", 90, 143'771, 139.8, 989, 67, 4'800, 64, 450, kInfiniBand400},
    Model{"B200", 100, 183'359, 178.0, 2'250, 75, 8'000, 64, 900, kInfiniBand400},
    Model{"RTX5090", 120, 32'607, 31.3, 209, 105, 1'792, 64, 64, kShared100},
};

// An H200 reached these shares of the maker's figures; kDriverBytes is what context and libraries took there. That of
// fp32 is an H100's, of 0.59 to 0.74 from product to product. That of fp8 by snug's own tiles was not measured on a
// card that has them.
constexpr double kReachedFlops = 0.7, kReachedFp32Flops = 0.67, kReachedFp8Flops = 0.63, kReachedFp8Tiles = 0.6,
                 kReachedMemory = 0.88, kReachedPci = 0.79, kReachedLink = 0.83, kReachedNccl = 0.34;
// What is kept of that by several at once: of the bus, into each and back; of NVLink, by copies and by NCCL.
struct SharedRate {
  double by_two, by_four;
};
// Six pairs of H100s and H200s had 34 to 47 GB/s into each and 37 to 50 back, in the mean these shares, which buses
// half as wide are taken to have as well. Four H200s had 45 and 34: of what comes in they are taken to have no more
// than two.
constexpr SharedRate kSharedInto{0.77, 0.77}, kSharedBack{0.9, 0.67}, kSharedLink{1, 0.59}, kSharedNccl{1, 1.12};
// Of what connects hosts, and a ring's way on through a host of eight cards, as NCCL's tables of latencies have them:
// seven steps of 3.4 us and one of 14. Neither was measured.
constexpr double kReachedNodeLink = 0.9, kNodeLatency = 38e-6;
// These are rates of attention with heads of 128 on Hopper, as a share of the rate of large products, by the length of
// documents, as measured on an H100; HeadShare has the rates of other head sizes as a share of those, for documents of
// 2,048 tokens.
const RateCurve kAttention{{512, 2048, 16384}, {0.4, 0.68, 0.79}},
    kAttentionBackward{{512, 2048, 16384}, {0.35, 0.56, 0.64}};
struct HeadShare {
  int64_t dim;
  double forward, backward;
};
constexpr HeadShare kHeadShares[] = {{64, 0.7, 0.74}, {80, 0.78, 0.8},  {96, 0.9, 0.87},
                                     {128, 1, 1},     {192, 1.0, 0.88}, {256, 1.06, 0.91}};
// These are rates of attention with heads of 128 by the kernels for cards before and beside Hopper, as shares of the
// rate of large products, as measured on an H100; kTiledHeadShares has other head sizes as a share of those. The
// backward is slower where a multiprocessor has 100 KiB of shared memory.
const RateCurve kTiledAttention{{512, 2048, 16384}, {0.21, 0.36, 0.42}},
    kTiledBackward{{512, 2048, 16384}, {0.19, 0.245, 0.28}}, kNarrowBackward{{512, 2048, 16384}, {0.165, 0.205, 0.235}};
constexpr HeadShare kTiledHeadShares[] = {{32, 0.59, 0.78}, {64, 0.93, 0.98},  {96, 1.02, 1.05},
                                          {128, 1, 1},      {192, 0.99, 0.67}, {256, 0.81, 0.46}};
// An H100 runs such products (mma.sync) at this share of the rate of its own kind (Luo et al., arXiv:2402.13499). Cards
// whose products are all of this kind are taken to reach more by as much, which was not measured.
constexpr double kMmaShare = 0.63;
// Attention in fp32 reaches this share of the rate of fp32 products, with a warp for each token: 1.63 TFLOP/s forward
// and 1.70 backward on an H100.
constexpr double kFp32Attention = 0.037;
constexpr double kOpSeconds = 4e-6;
// A card has this much of a host's 128 GiB of memory for programs.
constexpr uint64_t kHostBytes = 125ull << 30;
constexpr uint64_t kDriverBytes = 560ull << 20;
// NCCL's connection of two H200s took these bytes; copies between cards that reach each other's memory took none.
constexpr uint64_t kNcclBytes = 830ull << 20;
constexpr int kNcclBlocks = 8;

// The shares of kTiledAttention and its like refer to at most these teraflops: a B200, which makes more products by
// other means, is not known to make more of these.
constexpr double kMostOfTiles = 989;

RateCurve attention_of(const Model& model, bool backward) {
  if (model.capability == 90) return backward ? kAttentionBackward : kAttention;
  const bool wide = model.capability == 80 || model.capability == 100;  // blocks with more than 99 KiB
  RateCurve curve = !backward ? kTiledAttention : wide ? kTiledBackward : kNarrowBackward;
  const double share = model.capability == 100 ? std::min(1.0, kMostOfTiles / model.teraflops) : 1 / kMmaShare;
  for (double& rate : curve.rates) rate *= share;
  return curve;
}

Cards cards_of(const Model& model, int count) {
  Cards cards;
  cards.name = model.name;
  cards.capability = model.capability;
  cards.count = count;
  cards.memory_bytes = model.memory_mib << 20;
  cards.free_bytes = static_cast<uint64_t>(model.free_gib * 0x1p30);
  cards.driver_bytes = kDriverBytes;
  const bool linked = model.link_gb > model.pci_gb;
  const auto rates = [count](double alone, const SharedRate& kept) {
    if (count < 2) return alone;
    return alone * std::lerp(kept.by_two, kept.by_four, std::min((count - 2) / 2.0, 1.0));
  };
  const double link = 1e9 * model.link_gb, bus = kReachedPci * 1e9 * model.pci_gb;
  cards.nccl = {kNcclBytes, rates(kReachedNccl * link, linked ? kSharedNccl : SharedRate{1, 1}), kNcclBlocks};
  cards.copies = linked ? CardLink{0, rates(kReachedLink * link, kSharedLink)} : cards.nccl;
  cards.bus = {bus, bus};
  cards.shared_bus = {rates(bus, kSharedInto), rates(bus, kSharedBack)};
  cards.node_link = kReachedNodeLink * 1e9 * model.host_gb;
  cards.node_latency = kNodeLatency;
  cards.rates.op_seconds = kOpSeconds;
  cards.rates.flops = kReachedFlops * 1e12 * model.teraflops;
  // cuBLASLt has products with a scale for each row and column on 9.0 alone; elsewhere they are snug's own, which a
  // B200 (10.0) would be slow at.
  if (model.capability == 90) cards.rates.fp8_flops = kReachedFp8Flops * 2e12 * model.teraflops;
  if (model.capability == 89 || model.capability == 120)
    cards.rates.fp8_flops = kReachedFp8Tiles * 2e12 * model.teraflops;
  cards.rates.copy = {{1}, {kReachedMemory * 1e9 * model.memory_gb}};
  for (const bool backward : {false, true}) {
    const auto reach = [&](int64_t head_dim, double share) {
      RateCurve curve = attention_of(model, backward);
      for (double& rate : curve.rates) rate *= share * cards.rates.flops;
      cards.rates.attention.push_back({DType::BF16, backward, head_dim, curve});
    };
    const std::span<const HeadShare> shares = model.capability == 90 ? std::span(kHeadShares) : kTiledHeadShares;
    for (const HeadShare& share : shares) reach(share.dim, backward ? share.backward : share.forward);
  }
  const double fp32 = kReachedFp32Flops * 1e12 * model.fp32_teraflops;
  for (const bool backward : {false, true})
    cards.rates.attention.push_back({DType::F32, backward, 128, {{1}, {kFp32Attention * fp32}}});
  for (const auto& [a, b] : {std::pair(false, true), std::pair(false, false), std::pair(true, false)})
    for (const bool addend : {false, true}) cards.rates.products.push_back({DType::F32, a, b, addend, {fp32}});
  return cards;
}

// Returns whether the driver's name means the model: "NVIDIA A100-SXM4-40GB" is "A100-40GB", "NVIDIA A100 80GB PCIe"
// "A100-80GB", "NVIDIA GeForce RTX 4090" "RTX4090".
bool called(const Model& model, std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == ' ' || c == '-')
      words.emplace_back();
    else
      words.back() += c;
  }
  for (size_t i = words.size(); i-- > 1;)
    if (words[i - 1] == "RTX") words[i].insert(0, "RTX");
  const size_t dash = model.name.find('-');
  const auto has = [&](std::string_view part) { return std::ranges::find(words, part) != words.end(); };
  return has(model.name.substr(0, dash)) && (dash == model.name.npos || has(model.name.substr(dash + 1)));
}

}  // namespace

Cards rough_cards(const std::string& name, int capability, int count) {
  auto model = std::ranges::find_if(kModels, [&](const Model& m) { return called(m, name); });
  if (model == kModels.end()) model = std::ranges::find(kModels, capability, &Model::capability);
  if (model == kModels.end())
    model = std::ranges::find(kModels, capability / 10, [](const Model& m) { return m.capability / 10; });
  Cards cards = cards_of(model == kModels.end() ? kModels[0] : *model, count);
  cards.name = name;
  cards.capability = capability;
  return cards;
}

bool is_known_card(std::string_view name) {
  return std::ranges::any_of(kModels, [&](const Model& model) { return called(model, name); });
}

std::optional<Machine> builtin_machine(std::string_view name) {
  int count = 1;
  if (const size_t x = name.find('x'); x != name.npos) {
    const auto [end, error] = std::from_chars(name.data(), name.data() + x, count);
    if (error != std::errc() || end != name.data() + x || count < 1 || count > 64) return std::nullopt;
    name.remove_prefix(x + 1);
  }
  const auto model = std::ranges::find(kModels, name, &Model::name);
  if (model == kModels.end()) return std::nullopt;
  Machine machine = rough_machine();
  machine.cards = cards_of(*model, count);
  machine.memory_bytes = machine.free_bytes = static_cast<uint64_t>(count) * kHostBytes;
  machine.disk.free_bytes = 1ull << 40;
  return machine;
}

std::string builtin_machine_names() {
  std::string names;
  for (const Model& model : kModels) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  return names;
}

}  // namespace snug
