// Measures this machine with the ops that plans are made of.
#pragma once

#include <filesystem>
#include <functional>

#include "backend/backend.h"
#include "plan/forecast/machine.h"
#include "program/topology.h"

namespace snug {

// Seconds since some moment: of the clock, or of the processor for all threads of this process.
using Clock = double (*)();
double wall_seconds();
double cpu_seconds();

struct MeasureOptions {
  int threads = 1;  // of the larger team; the other has one
  std::filesystem::path disk_directory = ".";
  std::function<void(const std::string& what)> progress = [](const std::string&) {};
};

// About half a minute where nothing else runs. Takes 0.3 GiB, and 256 MiB of the disk for a while. UserError if the
// directory cannot be written, DeviceError if it has not the room.
Machine measure_machine(const MeasureOptions& options);

// Rates of a team of so many threads alone, by a clock. Leaves the calling thread's team at that size.
TeamRates measure_team(int threads, const std::vector<int64_t>& product_sizes, Clock clock = wall_seconds);
// The rates of a card, by a backend of its own that has reserved nothing yet. Returns the bytes that this has reserved.
uint64_t measure_card(Backend& backend, const std::vector<int64_t>& product_sizes, Cards& cards);
// The bus of a card, by a backend of its own that has reserved nothing yet. Of several on all ranks at the same time:
// `wait_for_others` returns when they are ready.
Bus measure_bus(Backend& backend, const std::function<void()>& wait_for_others);
// The link of cards, by a backend of each rank's own that has reserved nothing yet, on all ranks at the same time.
struct LinkRates {
  RateCurve rates;     // bytes a second that a rank takes from the others, by the bytes that it gives; all at it
  uint64_t arena = 0;  // bytes that this has reserved of a card
};
LinkRates measure_link(Backend& backend, const Topology& topology);
// Of a link measured with different numbers of blocks of threads: the one with the most that carry 0.8 each of what a
// block carries at best. Products go on beside them: what these lose goes by blocks times seconds, bytes alike.
const CardLink& worthwhile(const std::vector<CardLink>& by_blocks);
// What measure_machine() measures products at.
std::vector<int64_t> measured_product_sizes();

// A file of 256 MiB is written and read in ranges of 8 MiB, and removed.
Machine::Disk measure_disk(const std::filesystem::path& directory);

}  // namespace snug
