// Draws counter-based random numbers: the value at a place depends on the seed, the purpose and the place alone, so
// every thread, shard and device draws one stream without talking to the others. Philox4x32-10 (Salmon, Moraes, Dror
// and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace snug {

// Says what a stream is for; streams of different purposes are independent.
enum class RandomPurpose : uint32_t {
  DataOrder = 1,
  Initialisation = 2,
  Dropout = 3,
  Rounding = 4,
  Sampling = 5,
  EmbeddingNoise = 6
};

// Returns the four 32-bit words that Philox4x32-10 gives for a counter under a key.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Returns the place of element `index` (below 2^40) of what is drawn anew at every step (below 2^24).
constexpr uint64_t at_step(int64_t step, uint64_t index) { return static_cast<uint64_t>(step) << 40 | index; }

// Draws the numbers of one seed and purpose. `stream` tells apart what they are for (a parameter's index, an epoch).
class Random {
 public:
  Random(uint64_t seed, RandomPurpose purpose, uint32_t stream = 0);
  // Returns element `index` of the stream.
  uint32_t bits(uint64_t index) const;
  // Draws elements first, first + 1, ...: many at a time, as fast as vector instructions go.
  void bits(uint64_t first, std::span<uint32_t> elements) const;
  // Returns a number in [0, 1), a multiple of 2^-24.
  float uniform(uint64_t index) const;
  // Returns a standard normal number (Box-Muller on words 2k and 2k+1 for elements 2k and 2k+1).
  float normal(uint64_t index) const;
  // Returns a number in [0, bound), without bias that matters: bound is at most 2^32.
  uint64_t below(uint64_t index, uint64_t bound) const;

 private:
  std::array<uint32_t, 2> key_;
  uint32_t purpose_, stream_;
};

}  // namespace snug
