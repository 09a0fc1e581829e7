#include "api/target.h"

#include <array>

#include "api/launch.h"
#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "backend/cuda/cards.h"
#include "backend/cuda/facts.h"
#include "base/descriptors.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/looked_at.h"
#include "base/memory.h"
#include "base/option_name.h"
#include "base/say.h"
#include "measure/measure.h"

namespace snug {
namespace {

std::optional<Machine> named_machine(const JobConfig& options) {
  if (options.machine.empty()) return std::nullopt;
  if (std::optional<Machine> machine = builtin_machine(options.machine)) return machine;
  if (!is_file(options.machine))
    user_error(
        "machine: found '{}', expected the path of a profile that 'snug doctor' wrote{}, or the name of a machine's "
        "GPUs "
        "such as 8xH100: {}",
        options.machine, looked_at(options.machine), builtin_machine_names());
  return read_machine(options.machine);
}

// A library that cards need, and what opens it and returns its version.
struct Library {
  const char* name;
  std::string (*version)();
};

#ifdef SNUG_CUDA

std::vector<Card> cards_of_driver() { return cuda_cards(); }

void prepare_links() { prepare_nccl(); }

std::shared_ptr<ProductTable> products_of_ranks() {
  prepare_links();  // for programs that did not call it first
  return make_product_table();
}

std::unique_ptr<Backend> cuda_backend(int device, std::shared_ptr<ProductTable> products, Comm* comm,
                                      CardTransport transport) {
  if (comm) return std::make_unique<RankBackend>(device, std::move(products), *comm, transport);
  return std::make_unique<CudaBackend>(device, std::move(products));
}

bool reach_each_other(int count) { return cards_reach_each_other(count); }

constexpr std::array kLibraries{Library{"cuBLASLt", cublas_lt_version}, Library{"NCCL", nccl_version}};

constexpr std::string_view kMissing = "no NVIDIA GPU answers here";

constexpr bool kCanUseCards = true;
constexpr std::string_view kArchitectures = SNUG_CUDA_CODE;

#else

constexpr std::string_view kMissing =
    "this build of snug runs on the CPU alone; build it where nvcc is, with --preset cuda-release";

constexpr bool kCanUseCards = false;
constexpr std::string_view kArchitectures = "";

std::vector<Card> cards_of_driver() { return {}; }

void prepare_links() {}

std::shared_ptr<ProductTable> products_of_ranks() { return nullptr; }

bool reach_each_other(int) { return false; }

constexpr std::array<Library, 0> kLibraries{};

std::unique_ptr<Backend> cuda_backend(int, const std::shared_ptr<ProductTable>&, Comm*, CardTransport) {
  internal_error("a GPU was asked for, {}", kMissing);
}

#endif

// Returns the cards before the first of another name than the first's: ranks run on these.
std::span<const Card> alike(std::span<const Card> all) {
  const auto other = std::ranges::find_if(all, [&](const Card& card) { return card.name != all[0].name; });
  return all.first(static_cast<size_t>(other - all.begin()));
}

// Returns why there is no GPU to run on.
std::string missing_cards() {
  const std::string unused = kCanUseCards ? unused_cards() : "";
  return unused.empty() ? std::string(kMissing) : unused;
}

}  // namespace

void prepare_process() {
  prepare_links();
  keep_little_freed_memory();
  raise_open_file_limit();
}

std::optional<Cards> cards_here() {
  const std::vector<Card> all = cards_of_driver();
  if (all.empty() || !unusable_card(all[0], kArchitectures).empty()) return std::nullopt;
  const std::span<const Card> used = alike(all);
  Cards cards = rough_cards(all[0].name, all[0].capability, static_cast<int>(used.size()));
  cards.memory_bytes = cards.free_bytes = UINT64_MAX;
  for (const Card& card : used) {
    cards.memory_bytes = std::min(cards.memory_bytes, card.memory_bytes);
    cards.free_bytes = std::min(cards.free_bytes, card.free_bytes);
  }
  // Some cards of a name that has NVLink are in PCIe slots.
  if (cards.count > 1 && !reach_each_other(cards.count)) cards.copies = cards.nccl;
  return cards;
}

std::vector<std::string> card_libraries() {
  std::vector<std::string> found;
  for (const auto& [name, version] : kLibraries) try {
      found.push_back(fmt::format("{} {}", name, version()));
    } catch (const DeviceError& missing) {
      found.push_back(missing.what());
    }
  return found;
}

std::string unused_cards(const std::vector<std::string>& drivers) {
  if (!kCanUseCards)
    return std::ranges::any_of(drivers, [](const std::string& file) { return is_file(file); })
               ? fmt::format("GPUs are here, {}", kMissing)
               : "";
  const std::vector<Card> all = cards_of_driver();
  const std::string unusable = all.empty() ? "" : unusable_card(all[0], kArchitectures);
  return unusable.empty() ? unlike_cards(all) : unusable;
}

std::string unusable_card(const Card& card, std::string_view architectures) {
  const std::string which =
      fmt::format("'{}' has compute capability {}.{}", card.name, card.capability / 10, card.capability % 10);
  if (card.capability < cuda::kLeastCapability)
    return fmt::format("{}, and snug's kernels need 8.0: an A100, an RTX 30 or what came after these", which);
  if (cuda::has_code(architectures, card.capability)) return "";
  return fmt::format(
      "{}, and this build has code for {} alone: build it with -DSNUG_CUDA_ARCHITECTURES={}, or with the preset "
      "cuda-release",
      which, architectures, card.capability);
}

std::string unlike_cards(std::span<const Card> all) {
  const size_t used = alike(all).size();
  if (used == all.size()) return "";
  return fmt::format(
      "ranks run on GPUs of one name, which are the first {} of {}: number {} is '{}', the first '{}'; "
      "CUDA_VISIBLE_DEVICES chooses others, and their order",
      used, all.size(), used, all[used].name, all[0].name);
}

namespace {

uint64_t free_of_first_card() { return cards_of_driver().at(0).free_bytes; }

// Returns what a first card has less than before, besides an arena. Each card is asked by itself, as other programs may
// use each.
uint64_t driver_bytes_since(uint64_t free_before, uint64_t arena) {
  const uint64_t taken = free_before - std::min(free_before, free_of_first_card());
  return taken - std::min(taken, arena);
}

// Returns the bus of the slowest of `count` cards, while all use theirs.
Bus measure_bus_of(int count, CardTransport transport) {
  const std::shared_ptr<ProductTable> products = products_of_ranks();
  std::vector<Bus> measured(static_cast<size_t>(count));
  run_ranks(count, 1, nullptr, [&](int rank, int, Comm* comm) {
    const std::unique_ptr<Backend> backend = cuda_backend(rank, products, comm, transport);
    measured[static_cast<size_t>(rank)] = measure_bus(*backend, [&] {
      if (comm) comm->barrier("a measurement of the bus");
    });
    return 0;
  });
  return {std::ranges::min(measured, {}, &Bus::to_device).to_device,
          std::ranges::min(measured, {}, &Bus::from_device).from_device};
}

struct MeasuredLink {
  RateCurve curve;
  uint64_t bytes = 0;  // that it takes of a card, besides the process's context
};

MeasuredLink measure_link_by(CardTransport transport, int count, uint64_t free_before) {
  MeasuredLink link;
  const std::shared_ptr<ProductTable> products = products_of_ranks();
  run_ranks(count, 1, nullptr, [&](int rank, int, Comm* comm) {
    const std::unique_ptr<Backend> backend = cuda_backend(rank, products, comm, transport);
    const LinkRates measured = measure_link(*backend, comm->topology());
    if (rank == 0) link = {measured.rates, driver_bytes_since(free_before, measured.arena)};
    comm->barrier("the end of a measurement");
    return 0;
  });
  return link;
}

}  // namespace

void measure_cards_here(Cards& cards, const std::vector<int64_t>& product_sizes) {
  const uint64_t free_before = free_of_first_card();
  const CardTransport transport{Route::Copies, cards.nccl.blocks};
  {
    const std::unique_ptr<Backend> backend = cuda_backend(0, products_of_ranks(), nullptr, transport);
    const uint64_t arena = measure_card(*backend, product_sizes, cards);
    cards.condition = cards_of_driver().at(0).condition;
    cards.driver_bytes = driver_bytes_since(free_before, arena);
  }
  cards.bus = cards.shared_bus = measure_bus_of(1, transport);
  if (cards.count > 1) cards.shared_bus = measure_bus_of(cards.count, transport);
}

MeasuredLinks measure_links_here(Cards& cards) {
  // NCCL's kernels, which are loaded once, are memory that each of its connections takes.
  const uint64_t free_before = free_of_first_card();
  MeasuredLinks measured;
  for (const int blocks : {4, 8, 16, 32}) {
    const MeasuredLink link = measure_link_by({Route::Nccl, blocks}, cards.count, free_before);
    // A step's time follows the rate of the largest messages.
    measured.nccl.push_back({link.bytes, link.curve.rates.back(), blocks});
    cards.nccl = worthwhile(measured.nccl);
    if (cards.nccl.blocks != blocks) break;  // more blocks will not help either
    measured.fastest = link.curve;
  }
  cards.copies = cards.nccl;
  if (!reach_each_other(cards.count)) return measured;
  const MeasuredLink copies = measure_link_by({Route::Copies, cards.nccl.blocks}, cards.count, free_of_first_card());
  cards.copies = {copies.bytes, copies.curve.rates.back(), 0};
  if (cards.by_copies()) measured.fastest = copies.curve;
  return measured;
}

Target::Target(const JobConfig& options) : Target(options, options.device == "cpu" ? std::nullopt : cards_here()) {}

Target::Target(const JobConfig& options, std::optional<Cards> here, std::optional<uint64_t> seen)
    : asked_(options.device != "auto"),
      named_(!options.machine.empty()),
      here_(std::move(here)),
      seen_(seen),
      machine_(named_machine(options)) {
  std::optional<Cards> cards = machine_ ? machine_->cards : here_;
  // A profile of this machine was written when other programs held its memory, or none.
  if (cards && here_ && cards->name == here_->name) cards->free_bytes = here_->free_bytes;
  cuda_ = options.device == "cuda" || (options.device == "auto" && cards);
  if (cuda_ && !cards)
    user_error("device: found 'cuda', {}; {} names one to plan for",
               machine_ ? std::string("the machine has no GPU") : missing_cards(), option_name("machine"));
  if (!machine_ && cuda_) machine_ = rough_machine();
  if (machine_) machine_->cards = cuda_ ? cards : std::nullopt;
  if (cuda_) products_ = products_of_ranks();
}

std::unique_ptr<OpFacts> Target::facts() const {
  if (cuda_) return std::make_unique<CudaFacts>(machine_->cards->capability);
  return std::make_unique<CpuFacts>();
}

void Target::require_here() const {
  if (cuda_ && !here_)
    user_error("device: {}, {}; {} cpu runs on the processor",
               asked_ ? "a GPU is asked for" : "the machine of " + option_name("machine") + " has GPUs",
               missing_cards(), option_name("device"));
  say_strange_cards();
  if (!cuda_ && (asked_ || kCanUseCards)) return;
  if (const std::string unused = unused_cards(); !unused.empty()) say(fmt::format("snug: {}\n", unused));
}

void Target::say_strange_cards() const {
  if (!cuda_ || !here_ || named_ || is_known_card(here_->name)) return;
  say(
      fmt::format("snug: '{}' is not a GPU that snug knows: arrangements are compared by rates of one like it, until "
                  "'snug doctor' has measured it and {} names what that wrote\n",
                  here_->name, option_name("machine")));
}

namespace {

// Hashes all that decides a plan, without what processes reduce to the least of all, and without other facts of a
// machine.
uint64_t hash_of_rates(Machine machine) {
  machine.processor.clear();
  machine.cores = 1;
  machine.memory_bytes = machine.free_bytes = 0;
  machine.group_limit_bytes.reset();
  machine.disk.directory.clear();
  machine.disk.direct = true;
  machine.disk.free_bytes = 0;
  if (machine.cards) {
    machine.cards->name = machine.cards->condition = "";
    machine.cards->count = 1;
    machine.cards->memory_bytes = machine.cards->free_bytes = 0;
  }
  return hash_of(write_machine(machine));
}

// Hashes where all GPUs are that this process may use.
uint64_t hash_of_seen() {
  std::string buses;
  for (const Card& card : cards_of_driver()) buses += card.bus + " ";
  return hash_of(buses);
}

// Holds what a process tells the others about where it runs.
struct EnvironmentFingerprint {
  static constexpr size_t kNameWords = 8;
  uint64_t cuda = 0, copies = 0, blocks = 0, rates = 0, machine = 0, seen = 0;
  std::array<char, kNameWords * sizeof(uint64_t)> name{};
};

}  // namespace

void Target::require_alike(Comm& launched) const {
  EnvironmentFingerprint own;
  own.cuda = cuda_;
  own.rates = hash_of_rates(machine_.value_or(rough_machine()));
  if (cuda_) {
    const Cards& cards = *machine_->cards;
    own.machine = number_of_machine();
    own.seen = seen_ ? *seen_ : hash_of_seen();
    own.copies = cards.by_copies();
    own.blocks = static_cast<uint64_t>(cards.nccl.blocks);
    const std::string& name = here_ ? here_->name : cards.name;
    name.copy(own.name.data(), own.name.size() - 1);
  }
  const std::vector<EnvironmentFingerprint> fingerprints = allgather_host(launched, own, "the comparison of machines");
  const auto require = [&](std::string_view option, const auto& describe, std::string_view help) {
    const std::string first = describe(fingerprints[0]);
    for (size_t process = 1; process < fingerprints.size(); process++)
      if (const std::string other = describe(fingerprints[process]); other != first)
        user_error(
            "{}: found {} in process 0, {} in process {}, expected the same in each of the {} that the launcher "
            "started: {}",
            option, first, other, process, fingerprints.size(), help);
  };
  for (size_t process = 1; process < fingerprints.size(); process++)
    for (size_t other = 0; other < process; other++)
      if (fingerprints[other].machine == fingerprints[process].machine &&
          fingerprints[other].seen != fingerprints[process].seen)
        user_error(
            "device: processes {} and {} are on one machine and do not see the same GPUs of it, expected the same in "
            "each, as ranks take them by their numbers: a launcher that shows each process some must show it all",
            other, process);
  const std::string one_profile = option_name("machine") + " names one profile for all";
  require(
      "device", [](const EnvironmentFingerprint& host) { return host.cuda ? "GPUs" : "the CPU"; },
      "a driver that answers on every machine, or " + option_name("device") + " cpu");
  require(
      "device", [](const EnvironmentFingerprint& host) { return fmt::format("'{}'", host.name.data()); },
      "cards of one name");
  require(
      "machine",
      [](const EnvironmentFingerprint& host) { return host.copies ? "copies between GPUs" : "NCCL between GPUs"; },
      one_profile);
  require(
      "machine",
      [](const EnvironmentFingerprint& host) { return fmt::format("NCCL with {} blocks of threads", host.blocks); },
      one_profile);
  require(
      "machine", [](const EnvironmentFingerprint& host) { return "rates of hash " + hex(host.rates); },
      option_name("machine") + " names one profile for all, and without it they have as many GPUs");
}

std::unique_ptr<Backend> Target::backend(int device, Comm* comm) const {
  if (!cuda_) return std::make_unique<CpuBackend>();
  const Cards& cards = *machine_->cards;
  return cuda_backend(device, products_, comm, {cards.by_copies() ? Route::Copies : Route::Nccl, cards.nccl.blocks});
}

}  // namespace snug
