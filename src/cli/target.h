// What a job runs on, or is planned for: the CPU, or GPUs.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/cards.h"
#include "cli/options.h"
#include "comm/rank_backend.h"
#include "plan/forecast/machine.h"
#include "plan/spec/arrangement.h"

namespace snug {

struct ProductTable;

// First of all in a program: what libraries read of the environment, as threads may read it, and what its heaps keep,
// and how many files it may open.
void prepare_process();

class Target {
 public:
  // Of --device and --machine: GPUs where they are asked for, or where nothing is said and this machine, or the one
  // that is planned for, has any. UserError if there are none, or if --machine names neither a profile nor a machine.
  explicit Target(const Options& options);
  // The same on a machine with these GPUs; `seen` is another number where others are, and asked of the driver if it is
  // not given.
  Target(const Options& options, std::optional<Cards> here, std::optional<uint64_t> seen = std::nullopt);

  bool cuda() const { return cuda_; }
  // What prices a step, if that was named or has GPUs; without cards where the CPU is the target.
  const std::optional<Machine>& machine() const { return machine_; }
  // For one thread: what it has found out about products it keeps.
  std::unique_ptr<OpFacts> facts() const;
  // UserError if it cannot be run on here, by this build of snug; says on stderr what GPUs that leaves alone, unless
  // the user chose the CPU, and what say_strange_cards() does.
  void require_here() const;
  // Says on stderr of GPUs of this machine that snug does not know, and nobody has measured, whose rates stand for
  // theirs.
  void say_strange_cards() const;
  // UserError in all launched processes, with which has what, unless all are about to run on the same: CPU or GPUs, of
  // one name, that the same carries bytes between, at rates that make all plan alike; and unless all of a machine see
  // the same GPUs of it. Before they tell anything else.
  void require_alike(Comm& launched) const;
  // For a rank whose GPU, if it has one, is number `device` of this machine; `comm` if there are others. All ranks of a
  // job ask at the same time.
  std::unique_ptr<Backend> backend(int device, Comm* comm = nullptr) const;

  // The GPUs of this machine, whatever the target is.
  const std::optional<Cards>& here() const { return here_; }

 private:
  bool asked_ = false;  // by --device
  bool named_ = false;  // by --machine
  bool cuda_ = false;
  std::optional<Cards> here_;
  std::optional<uint64_t> seen_;
  std::optional<Machine> machine_;
  std::shared_ptr<ProductTable> products_;  // of this process's ranks on GPUs
};

// The GPUs of this machine with rough rates, of several kinds those that come before one unlike the first; none where
// snug is built without CUDA.
std::optional<Cards> cards_here();
// What to say of GPUs of this machine that are not used: by a build that cannot, where one of these files tells of a
// driver; all, where the first cannot run this build; or those from the first of another name on. Nothing if there are
// none.
std::string unused_cards(const std::vector<std::string>& drivers = {"/proc/driver/nvidia/version",
                                                                    "/usr/lib/wsl/lib/libcuda.so.1"});
std::string unlike_cards(std::span<const Card> all);  // of these, the latter
// Why a card cannot run kernels that were compiled for these architectures (backend/cuda/facts.h); nothing if it can.
std::string unusable_card(const Card& card, std::string_view architectures);
// Measures them: rates, and what driver and libraries take of one.
void measure_cards_here(Cards& cards, const std::vector<int64_t>& product_sizes);
// Of several: what connects them, after measure_cards_here().
struct MeasuredLinks {
  RateCurve fastest;           // bytes a second that each takes from the others, by the bytes that it gives, all at it
  std::vector<CardLink> nccl;  // by NCCL, with more blocks of threads as long as they are worthwhile
};
MeasuredLinks measure_links_here(Cards& cards);

}  // namespace snug
