#include "base/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <vector>

namespace snug {
namespace {

uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Pieces that the C library does not give back one by one, below one that stays.
TEST(Memory, WhatWasFreedGoesBackToTheSystem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep what is freed";
#endif
  constexpr size_t kPiece = 16 << 10, kPieces = 4096;
  std::vector<std::unique_ptr<std::vector<char>>> pieces;
  for (size_t i = 0; i < kPieces; i++) pieces.push_back(std::make_unique<std::vector<char>>(kPiece, 'x'));
  pieces.erase(pieces.begin(), pieces.end() - 1);
  const uint64_t before = resident_bytes();
  give_back_freed_memory();
  EXPECT_LT(resident_bytes() + kPiece * kPieces * 3 / 4, before);
}

}  // namespace
}  // namespace snug
