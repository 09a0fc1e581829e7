// Says on what a job runs, or for what it is planned: the CPU, or GPUs.
#pragma once

#include <memory>

#include "api/options.h"
#include "backend/backend.h"
#include "backend/cuda/cards.h"
#include "comm/rank_backend.h"
#include "plan/forecast/machine.h"
#include "plan/spec/arrangement.h"

namespace snug {

struct ProductTable;

// Prepares the process. It must be called first of all in a program: it sets what libraries read of the environment,
// which threads may read, what heaps keep, and how many files may be open.
void prepare_process();

class Target {
 public:
  // Takes --device and --machine: GPUs if they are asked for, or if neither is given and this machine, or the one that
  // is planned for, has any. Throws UserError if there are none, or if --machine names neither a profile nor a machine.
  explicit Target(const JobConfig& options);
  // Takes the options on a machine with these GPUs. `seen` is a number that differs where other GPUs are; the driver is
  // asked for it if it is not given.
  Target(const JobConfig& options, std::optional<Cards> here, std::optional<uint64_t> seen = std::nullopt);

  bool cuda() const { return cuda_; }
  // Returns the machine that prices a step, if one was named or has GPUs; without cards if the CPU is the target.
  const std::optional<Machine>& machine() const { return machine_; }
  // Returns facts for one thread, as they keep what they have found out about products.
  std::unique_ptr<OpFacts> facts() const;
  // Throws UserError if this build of snug cannot run on the target here. Unless the user chose the CPU, it names on
  // stderr the GPUs that remain unused, and calls say_strange_cards().
  void require_here() const;
  // Names on stderr the GPUs of this machine that snug does not know and that were not measured, and the card whose
  // rates stand for theirs.
  void say_strange_cards() const;
  // Throws UserError in all launched processes, which says what each has, unless all are about to run alike: on CPU or
  // on GPUs of one name, with one way to move bytes between them, at rates that make all plan alike; and unless all
  // processes of a machine see one set of its GPUs. It must be called before the processes exchange anything else.
  void require_alike(Comm& launched) const;
  // Returns the backend of a rank whose GPU, if it has one, is number `device` of this machine; `comm` connects it if
  // there are other ranks. All ranks of a job call it together.
  std::unique_ptr<Backend> backend(int device, Comm* comm = nullptr) const;

  // Returns the GPUs of this machine, whatever the target is.
  const std::optional<Cards>& here() const { return here_; }

 private:
  bool asked_ = false;  // by --device
  bool named_ = false;  // by --machine
  bool cuda_ = false;
  std::optional<Cards> here_;
  std::optional<uint64_t> seen_;
  std::optional<Machine> machine_;
  std::shared_ptr<ProductTable> products_;  // shared by this process's ranks on GPUs
};

// Returns the GPUs of this machine with rough rates; if they differ, those before the first of another name. Nothing if
// snug is built without CUDA.
std::optional<Cards> cards_here();
// Returns what to say of GPUs of this machine that are not used: by a build without CUDA, if one of these files shows a
// driver; all, if the first cannot run this build; or those from the first of another name on. Empty if there are none.
std::string unused_cards(const std::vector<std::string>& drivers = {"/proc/driver/nvidia/version",
                                                                    "/usr/lib/wsl/lib/libcuda.so.1"});
// Returns what to say of the libraries that cards need and that are opened by name: their versions, or why they cannot
// be and where they come from. Empty in a build without CUDA.
std::vector<std::string> card_libraries();
std::string unlike_cards(std::span<const Card> all);  // those from the first of another name on
// Returns why a card cannot run kernels compiled for these architectures (backend/cuda/facts.h); empty if it can.
std::string unusable_card(const Card& card, std::string_view architectures);
// Measures the cards: rates, and what driver and libraries take of one.
void measure_cards_here(Cards& cards, const std::vector<int64_t>& product_sizes);
// Describes what connects several cards, once measure_cards_here() has measured them.
struct MeasuredLinks {
  RateCurve fastest;  // bytes a second that each takes from the others while all do, by the bytes that it gives
  std::vector<CardLink> nccl;  // by NCCL, with more blocks of threads as long as they help
};
MeasuredLinks measure_links_here(Cards& cards);

}  // namespace snug
