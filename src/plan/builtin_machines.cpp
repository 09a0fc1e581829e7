#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "plan/machine.h"

namespace snug {
namespace {

// By the maker: memory as the driver counts it, dense bf16 with fp32 sums, and the kinds of bandwidth.
struct Model {
  std::string_view name;
  uint64_t memory_mib;
  double teraflops;        // a second
  bool fp8;                // twice as many, by rows and columns with scales of their own
  double memory_gb;        // bytes a second, in 1e9
  double pci_gb, link_gb;  // likewise, one way; the link is the bus where cards have no other
  double host_gb;          // likewise, a card's share of what hosts like its own are connected by
};
constexpr double kShared100 = 100.0 / 8 / 8, kInfiniBand100 = 12.5, kInfiniBand200 = 25, kInfiniBand400 = 50;
constexpr std::array kModels{
    Model{"RTX3090", 24'576, 71, false, 936, 32, 56, kShared100},
    Model{"RTX4090", 24'564, 165, false, 1'008, 32, 32, kShared100},
    Model{"A100-40GB", 40'960, 312, false, 1'555, 32, 300, kInfiniBand200},
    Model{"A100-80GB", 81'920, 312, false, 2'039, 32, 300, kInfiniBand200},
    Model{"L40S", 46'068, 362, false, 864, 32, 32, kInfiniBand100},
    Model{"H100", 81'559, 989, true, 3'350, 64, 450, kInfiniBand400},
    Model{"H200", 143'771, 989, true, 4'800, 64, 450, kInfiniBand400},
};

// What an H200 reached of the maker's figures, and what context and libraries took there.
constexpr double kReachedFlops = 0.7, kReachedFp8Flops = 0.63, kReachedMemory = 0.88, kReachedPci = 0.79,
                 kReachedLink = 0.83, kReachedNccl = 0.6;
// What four of them at once kept of that, into each and back.
constexpr double kSharedInto = 0.885, kSharedBack = 0.67;
// Of what connects hosts, and a ring's way on through a host of eight cards, as NCCL's tables of latencies have them:
// seven steps of 3.4 us and one of 14. Neither was measured.
constexpr double kReachedHostLink = 0.9, kHostLatency = 38e-6;
// Attention of heads of 128, as a part of the rate of large products, by the length of documents.
const RateCurve kAttention{{512, 2048, 16384}, {0.36, 0.64, 0.81}},
    kAttentionBackward{{512, 2048, 16384}, {0.3, 0.5, 0.65}};
constexpr double kOpSeconds = 4e-6;
constexpr uint64_t kDriverBytes = 560ull << 20;
// What NCCL's connection of two H200s took; that of cards that reach each other's memory took nothing.
constexpr uint64_t kNcclBytes = 830ull << 20;

Cards cards_of(const Model& model, int count) {
  Cards cards;
  cards.name = model.name;
  cards.count = count;
  cards.memory_bytes = cards.free_bytes = model.memory_mib << 20;
  cards.driver_bytes = kDriverBytes;
  const bool linked = model.link_gb > model.pci_gb;
  cards.nccl = {kNcclBytes, kReachedNccl * 1e9 * model.link_gb};
  cards.copies = linked ? CardLink{0, kReachedLink * 1e9 * model.link_gb} : cards.nccl;
  const double bus = kReachedPci * 1e9 * model.pci_gb, share = std::min(1.0, (count - 1) / 3.0);
  cards.bus = {bus, bus};
  cards.shared_bus = {bus * std::lerp(1.0, kSharedInto, share), bus * std::lerp(1.0, kSharedBack, share)};
  cards.host_link = kReachedHostLink * 1e9 * model.host_gb;
  cards.host_latency = kHostLatency;
  cards.rates.op_seconds = kOpSeconds;
  cards.rates.flops = kReachedFlops * 1e12 * model.teraflops;
  if (model.fp8) cards.rates.fp8_flops = kReachedFp8Flops * 2e12 * model.teraflops;
  cards.rates.copy = {{1}, {kReachedMemory * 1e9 * model.memory_gb}};
  for (const bool backward : {false, true}) {
    RateCurve curve = backward ? kAttentionBackward : kAttention;
    for (double& rate : curve.rates) rate *= cards.rates.flops;
    cards.rates.attention.push_back({DType::BF16, backward, 128, curve});
  }
  return cards;
}

// "NVIDIA A100-SXM4-40GB" is "A100-40GB", "NVIDIA GeForce RTX 4090" is "RTX4090".
bool called(const Model& model, std::string name) {
  std::erase(name, ' ');
  const size_t dash = std::min(model.name.find('-'), model.name.size());
  return name.find(model.name.substr(0, dash)) != name.npos && name.ends_with(model.name.substr(dash));
}

}  // namespace

Cards rough_cards(const std::string& name, int count) {
  const auto model = std::ranges::find_if(kModels, [&](const Model& m) { return called(m, name); });
  Cards cards = cards_of(model == kModels.end() ? kModels[0] : *model, count);
  cards.name = name;
  return cards;
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
  machine.memory_bytes = machine.free_bytes = static_cast<uint64_t>(count) * (128ull << 30);
  machine.disk.free_bytes = 1ull << 40;
  return machine;
}

std::string builtin_machine_names() {
  std::string names;
  for (const Model& model : kModels) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  return names;
}

}  // namespace snug
