#include "count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> taken = 0, given_back = 0;
}

namespace snug {
int64_t allocations() { return taken; }
int64_t live_allocations() { return taken - given_back; }
}  // namespace snug

void* operator new(size_t bytes) {
  taken++;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  taken++;
  return std::malloc(bytes);
}
void operator delete(void* p) noexcept {
  if (p) given_back++;
  std::free(p);
}
void operator delete(void* p, size_t) noexcept { operator delete(p); }
