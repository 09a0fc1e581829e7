#include "counted_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> calls = 0;
}

void* operator new(size_t bytes) {
  ++calls;
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace snug {

int64_t allocations() { return calls; }

}  // namespace snug
