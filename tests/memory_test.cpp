#include "base/memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace snug {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kKeepsFreed = true;
#else
constexpr bool kKeepsFreed = false;
#endif

constexpr size_t kPiece = 16 << 10, kPieces = 4096;
using Piece = std::unique_ptr<std::vector<char>>;

std::vector<Piece> pieces() {
  std::vector<Piece> made;
  for (size_t i = 0; i < kPieces; i++) made.push_back(std::make_unique<std::vector<char>>(kPiece, 'x'));
  return made;
}

TEST(Memory, WhatIsTouchedIsResident) {
  const uint64_t before = resident_memory();
  const std::vector<char> touched(64 << 20, 'x');
  EXPECT_GE(resident_memory() + (4 << 20), before + touched.size());
}

// Pieces that the C library does not give back one by one, below one that stays.
TEST(Memory, WhatWasFreedGoesBackToTheSystem) {
  if (kKeepsFreed) GTEST_SKIP() << "sanitizers keep what is freed";
  std::vector<Piece> all = pieces();
  all.erase(all.begin(), all.end() - 1);
  const uint64_t before = resident_memory();
  give_back_freed_memory();
  EXPECT_LT(resident_memory() + kPiece * kPieces * 3 / 4, before);
}

// Once a large block was freed the C library would keep twice as much in each heap.
TEST(Memory, AThreadLeavesLittleOfWhatItFreed) {
  if (kKeepsFreed) GTEST_SKIP() << "sanitizers keep what is freed";
  std::make_unique<std::vector<char>>(24 << 20, 'x').reset();
  keep_little_freed_memory();
  const uint64_t before = resident_memory();
  std::thread([] { pieces(); }).join();
  EXPECT_LT(resident_memory(), before + (8u << 20));
}

}  // namespace
}  // namespace snug
