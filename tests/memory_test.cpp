#include "base/memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <thread>
#include <vector>

namespace snug {
namespace {

uint64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  in >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

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

// Pieces that the C library does not give back one by one, below one that stays.
TEST(Memory, WhatWasFreedGoesBackToTheSystem) {
  if (kKeepsFreed) GTEST_SKIP() << "sanitizers keep what is freed";
  std::vector<Piece> all = pieces();
  all.erase(all.begin(), all.end() - 1);
  const uint64_t before = resident_bytes();
  give_back_freed_memory();
  EXPECT_LT(resident_bytes() + kPiece * kPieces * 3 / 4, before);
}

// Once a large block was freed the C library would keep twice as much in each heap.
TEST(Memory, AThreadLeavesLittleOfWhatItFreed) {
  if (kKeepsFreed) GTEST_SKIP() << "sanitizers keep what is freed";
  std::make_unique<std::vector<char>>(24 << 20, 'x').reset();
  keep_little_freed_memory();
  const uint64_t before = resident_bytes();
  std::thread([] { pieces(); }).join();
  EXPECT_LT(resident_bytes(), before + (8u << 20));
}

}  // namespace
}  // namespace snug
