// Computes products by warpgroups, Hopper's wgmma: four warps multiply 64 rows, right factors (and left ones that are
// not in registers) are read from shared memory, and sums become valid at a wait, so that other work goes on meanwhile.
// A producer warpgroup fetches tiles into rings ahead of the consumer warpgroups, which multiply. This works only in
// code for sm_90a; warpgroups() says whether this device runs such code.
//
// A tile lies in shared memory as smem tiles of 64 columns, one after the other, each as one copy of the Tensor Memory
// Accelerator brings it: its rows are 128 bytes, whose 16-byte chunks are permuted by the row (the 128-byte swizzle),
// and it starts at a multiple of 1024 bytes. Rows and columns of sums lie in threads as those of mma.sync.
#pragma once

#include "backend/cuda/fragments.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SNUG_HOPPER(...) asm volatile(__VA_ARGS__)
#else
#define SNUG_HOPPER(...)
#endif

namespace snug::cuda {

inline constexpr int kSmemTileColumns = 64, kRowBytes = 128, kTileAlignment = 1024;

// Returns the first multiple of kTileAlignment in dynamic shared memory.
__device__ inline uint32_t tiles_start() {
  extern __shared__ unsigned char shared_bytes[];
  return (shared_address(shared_bytes) + kTileAlignment - 1) / kTileAlignment * kTileAlignment;
}

// Fences products whose registers were written by other instructions.
__device__ inline void begin_products() { SNUG_HOPPER("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { SNUG_HOPPER("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `pending` of the groups committed last are under way.
template <int pending>
__device__ void wait_products() {
  SNUG_HOPPER("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Fences registers: keeps the compiler from moving uses of sums over a wait.
template <int N>
__device__ void fence(Sum (&sums)[N]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+f"(sums[n][i])::"memory");
}

// Returns the descriptor of a matrix in shared memory for the products (PTX ISA, "Matrix Descriptor"), whose rows of 64
// or 128 bytes have the swizzle of as many; `leading_bytes` is the distance from one smem tile to the next, used if the
// columns are not summed over.
template <int row_bytes = kRowBytes>
__device__ uint64_t matrix_at(uint32_t address, uint32_t leading_bytes = 16) {
  static_assert(row_bytes == 64 || row_bytes == 128);
  constexpr uint64_t kSwizzle = row_bytes == 128 ? 1 : 2, kEightRows = 8 * row_bytes / 16;
  return uint64_t{address / 16} | uint64_t{leading_bytes / 16} << 16 | kEightRows << 32 | kSwizzle << 62;
}

// Returns the matrix that begins `bytes` bytes after another: only the descriptor's lower word changes.
__device__ inline uint64_t moved(uint64_t matrix, int bytes) {
  return (matrix & ~uint64_t{0xffffffff}) | (static_cast<uint32_t>(matrix) + static_cast<uint32_t>(bytes / 16));
}

#define SNUG_SUM(s, n) "+f"(s[n][0]), "+f"(s[n][1]), "+f"(s[n][2]), "+f"(s[n][3])
#define SNUG_SUMS_8(s, n)                                                                                             \
  SNUG_SUM(s, n), SNUG_SUM(s, n + 1), SNUG_SUM(s, n + 2), SNUG_SUM(s, n + 3), SNUG_SUM(s, n + 4), SNUG_SUM(s, n + 5), \
      SNUG_SUM(s, n + 6), SNUG_SUM(s, n + 7)
#define SNUG_REGISTERS_32                                                                                          \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define SNUG_REGISTERS_64                                                                                       \
  SNUG_REGISTERS_32                                                                                             \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// ---- Producer and consumer warpgroups -------------------------------------------------------------------------------

// Gives the number of threads: some consumer warpgroups, two unless given, and the producer, which comes last.
template <int groups>
inline constexpr int kThreadsOf = 128 * (groups + 1);
inline constexpr int kPipelineThreads = kThreadsOf<2>;
// Gives the registers of a producer's thread, and of a consumer's.
template <int groups>
inline constexpr int kProducerRegistersOf = groups == 2 ? 40 : 32;
template <int groups>
inline constexpr int kConsumerRegistersOf = groups == 2 ? 232 : 160;
inline constexpr int kProducerRegisters = kProducerRegistersOf<2>, kConsumerRegisters = kConsumerRegistersOf<2>;

template <int groups = 2>
__device__ bool is_producer() {
  return threadIdx.x >= 128 * groups;
}
template <int registers>
__device__ void deallocate_registers() {
  SNUG_HOPPER("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ void allocate_registers() {
  SNUG_HOPPER("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// Keeps a place in a ring of `stages` slots: barrier `full` + 8 i says that slot i may be read, `empty` + 8 i that it
// may be written. Each side walks the ring with a cursor of its own.
template <int stages>
struct Ring {
  uint32_t barriers;
  int slot = 0;
  uint32_t parity = 0;

  static constexpr int kBytes = 2 * stages * 8;
  // Returns one of several rings that lie one after the other.
  __device__ Ring at(int ring) const { return {barriers + static_cast<uint32_t>(ring * kBytes), slot, parity}; }
  // Makes the barriers; called by one thread, before any waits.
  __device__ void make(int fetchers, int readers) const {
    for (int i = 0; i < stages; i++) {
      make_barrier(barriers + static_cast<uint32_t>(8 * i), fetchers);
      make_barrier(barriers + static_cast<uint32_t>(8 * (stages + i)), readers);
    }
  }
  __device__ uint32_t full() const { return barriers + static_cast<uint32_t>(8 * slot); }
  __device__ uint32_t empty() const { return barriers + static_cast<uint32_t>(8 * (stages + slot)); }
  __device__ void await_full() const { await(full(), parity); }
  __device__ void await_empty() const { await(empty(), parity ^ 1); }
  // Releases the slot; called by every thread that read it by loads. One thread for its warp would do, but racecheck
  // would not know.
  __device__ void release() const { arrive(empty()); }
  __device__ void advance() {
    if (++slot < stages) return;
    slot = 0;
    parity ^= 1;
  }
};

}  // namespace snug::cuda
