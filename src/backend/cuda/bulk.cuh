// Copies data into shared memory while threads do something else (PTX ISA, "cp.async"), with barriers that are ready
// when the data are there ("mbarrier", "cp.async.bulk"; these only in code for 9.0 and newer).
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define SNUG_BULK(...) asm volatile(__VA_ARGS__)
#else
#define SNUG_BULK(...)
#endif

namespace snug::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Fetches 16 bytes from global to shared memory; commit_fetches() then groups this thread's fetches since its last.
__device__ inline void fetch_group(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ inline void commit_fetches() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of the groups committed last are under way.
template <int pending>
__device__ void wait_fetches() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- By whole rows --------------------------------------------------------------------------------------------------

__device__ inline void make_barrier(uint32_t barrier, int arrivals) {
  SNUG_BULK("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  SNUG_BULK("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and makes the barrier wait for this many fetched bytes as well.
__device__ inline void arrive_and_expect(uint32_t barrier, int bytes) {
  SNUG_BULK("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits until the phase of this parity is over.
__device__ inline void await(uint32_t barrier, uint32_t parity) {
  SNUG_BULK(
      "{.reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra WAIT; DONE:}" ::"r"(
          barrier),
      "r"(parity)
      : "memory");
}
// Publishes barriers that were made; called by all threads.
__device__ inline void publish_barriers() {
  SNUG_BULK("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
}

// Fetches bytes from global to shared memory; all three arguments are multiples of 16. The barrier expects them.
__device__ inline void fetch_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  SNUG_BULK("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
            "l"(from), "r"(bytes), "r"(barrier)
            : "memory");
}

// Sends two numbers to this place in another block's shared memory, where this barrier's counterpart expects 8 bytes.
__device__ inline void send(uint32_t to, float a, float b, uint32_t barrier, int rank) {
  SNUG_BULK(
      "{.reg .b32 to, barrier; mapa.shared::cluster.u32 to, %0, %4; mapa.shared::cluster.u32 barrier, %3, %4;"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%1, %2}, [barrier];}" ::"r"(to),
      "f"(a), "f"(b), "r"(barrier), "r"(rank)
      : "memory");
}
// Waits until the phase of this parity is over, and the numbers that other blocks sent are seen.
__device__ inline void await_cluster(uint32_t barrier, uint32_t parity) {
  SNUG_BULK(
      "{.reg .pred p; WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @p bra DONE; "
      "bra WAIT; DONE:}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace snug::cuda
