// Measures this machine with the ops of which plans are made.
#pragma once

#include <filesystem>
#include <functional>

#include "backend/backend.h"
#include "plan/forecast/machine.h"
#include "program/topology.h"

namespace snug {

// Returns seconds since some moment, by the clock or as processor time of all threads of this process.
using Clock = double (*)();
double wall_seconds();
double cpu_seconds();

struct MeasureOptions {
  int threads = 1;  // of the larger team; the other has one
  std::filesystem::path disk_directory = ".";
  std::function<void(const std::string& what)> progress = [](const std::string&) {};
};

// Measures the machine, in about half a minute if nothing else runs. Takes 0.3 GiB of memory and, for a while, 256 MiB
// of the disk. Throws UserError if the directory cannot be written, DeviceError if it lacks the room.
Machine measure_machine(const MeasureOptions& options);

// Measures a team of `threads` threads by a clock. Leaves the calling thread's team at that size.
TeamRates measure_team(int threads, const std::vector<int64_t>& product_sizes, Clock clock = wall_seconds);
// Measures a card through a backend that has reserved nothing yet. Returns the bytes that this reserves.
uint64_t measure_card(Backend& backend, const std::vector<int64_t>& product_sizes, Cards& cards);
// Measures the bus of a card through a backend that has reserved nothing yet. With several cards all ranks call it at
// one time: `wait_for_others` returns when they are ready.
Bus measure_bus(Backend& backend, const std::function<void()>& wait_for_others);
// Rates of the link between cards, which measure_link() measures through a backend of each rank that has reserved
// nothing yet. All ranks call it together.
struct LinkRates {
  RateCurve rates;     // bytes a second that a rank takes from the others while all do, by the bytes that it gives
  uint64_t arena = 0;  // bytes of a card that measuring reserved
};
LinkRates measure_link(Backend& backend, const Topology& topology);
// Returns the best of measurements of one link with different numbers of blocks of threads: the one with the most
// blocks of which each carries at least 0.8 of what a block carries at best. Products run beside transfers, and what
// they lose is proportional to blocks times seconds.
const CardLink& worthwhile(const std::vector<CardLink>& by_blocks);
// Returns the sizes at which measure_machine() measures products.
std::vector<int64_t> measured_product_sizes();

// Measures a disk: it writes and reads a file of 256 MiB in ranges of 8 MiB, and removes it.
Machine::Disk measure_disk(const std::filesystem::path& directory);

}  // namespace snug
