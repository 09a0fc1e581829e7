// Lists the GPUs that this process may use, as their driver sees them, and finds the library that products on them
// need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace snug {

struct Card {
  std::string name;
  int capability = 0;                         // compute capability: 86 for 8.6
  uint64_t memory_bytes = 0, free_bytes = 0;  // free: for all processes together, less this one's context
  std::string bus;                            // where it is: "00000000:04:00.0", equal for every process
  // Holds the driver's report: "driver 580.82.07, 61 C, 1755 MHz, at most 1980 MHz, memory 2619 MHz, at most 700 W".
  std::string condition;
};

// Returns cards by device number; none without a driver or a GPU. Throws DeviceError if the driver does not work. It
// takes no memory of them.
std::vector<Card> cuda_cards();

// Opens cuBLASLt and returns its version, such as "13.1.0". Throws DeviceError if it cannot be opened.
std::string cublas_lt_version();

}  // namespace snug
