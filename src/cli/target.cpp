#include "cli/target.h"

#include "backend/cpu/backend.h"
#include "backend/cpu/facts.h"
#include "backend/cuda/cards.h"
#include "backend/cuda/facts.h"
#include "base/file.h"
#include "measure/measure.h"
#ifdef SNUG_CUDA
#include "backend/cuda/backend.h"
#endif

namespace snug {
namespace {

std::optional<Machine> named_machine(const Options& options) {
  if (options.machine.empty()) return std::nullopt;
  if (std::optional<Machine> machine = builtin_machine(options.machine)) return machine;
  if (!is_file(options.machine))
    user_error(
        "machine: found '{}', expected the path of a profile that 'snug doctor' wrote, or the name of a machine's GPUs "
        "such as 8xH100: {}",
        options.machine, builtin_machine_names());
  return read_machine(options.machine);
}

#ifdef SNUG_CUDA

std::vector<Card> cards_of_driver() { return cuda_cards(); }

std::unique_ptr<Backend> cuda_backend(int device) { return std::make_unique<CudaBackend>(device); }

constexpr std::string_view kMissing = "no NVIDIA GPU answers here";

#else

constexpr std::string_view kMissing =
    "this build of snug runs on the CPU alone; build it where nvcc is, with -DSNUG_CUDA=ON";

std::vector<Card> cards_of_driver() { return {}; }

std::unique_ptr<Backend> cuda_backend(int) { internal_error("a GPU was asked for, {}", kMissing); }

#endif

}  // namespace

std::optional<Cards> cards_here() {
  const std::vector<Card> all = cards_of_driver();
  if (all.empty()) return std::nullopt;
  Cards cards = rough_cards(all[0].name, static_cast<int>(all.size()));
  cards.memory_bytes = cards.free_bytes = UINT64_MAX;
  for (const Card& card : all) {
    cards.memory_bytes = std::min(cards.memory_bytes, card.memory_bytes);
    cards.free_bytes = std::min(cards.free_bytes, card.free_bytes);
  }
  return cards;
}

void measure_cards_here(Cards& cards, const std::vector<int64_t>& product_sizes) {
  const std::unique_ptr<Backend> backend = cuda_backend(0);
  const uint64_t arena = measure_card(*backend, product_sizes, cards);
  const uint64_t taken = cards.free_bytes - cards_of_driver().at(0).free_bytes;
  cards.driver_bytes = taken - std::min(taken, arena);
}

Target::Target(const Options& options) : machine_(named_machine(options)) {
  const std::optional<Cards> here = cards_here();
  std::optional<Cards> cards = machine_ ? machine_->cards : here;
  // A profile of this machine was written when other programs held its memory, or none.
  if (cards && here && cards->name == here->name) cards->free_bytes = here->free_bytes;
  cuda_ = options.device == "cuda" || (options.device == "auto" && cards);
  if (cuda_ && !cards)
    user_error("device: found 'cuda', {}; --machine names one to plan for",
               machine_ ? "the machine has no GPU" : kMissing);
  if (!machine_ && cuda_) machine_ = rough_machine();
  if (machine_) machine_->cards = cuda_ ? cards : std::nullopt;
}

const OpFacts& Target::facts() const {
  static const CpuFacts cpu;
  static const CudaFacts cuda;
  if (cuda_) return cuda;
  return cpu;
}

void Target::require_here() const {
  if (cuda_ && !cards_here()) user_error("device: a GPU is asked for, {}", kMissing);
}

std::unique_ptr<Backend> Target::backend(int rank) const {
  if (cuda_) return cuda_backend(rank);
  return std::make_unique<CpuBackend>();
}

}  // namespace snug
