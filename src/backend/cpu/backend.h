// The CPU backend: complete, deterministic whatever the number of threads, the reference for every other.
#pragma once

#include "backend/backend.h"

namespace snug {

class CpuBackend : public Backend {
 public:
  CpuBackend() = default;
  ~CpuBackend() override;
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  // Anonymous memory on huge pages where the system has them, for the Device and the Host space alike. The system
  // lends pages when they are first touched.
  std::byte* reserve(Space space, uint64_t bytes) override;
  // A launch runs on the calling thread's team (base/parallel.h) and has finished when it returns. InternalError also
  // from a launch, where an index among its operands (ids, rows, targets) leaves its table.
  Launch bind(const Op& op, std::span<const TensorView> views) override;

  uint64_t reserved_bytes(Space space) const { return blocks_[index(space)].bytes; }

 private:
  struct Block {
    void* start = nullptr;
    uint64_t bytes = 0;
  };
  PerSpace<Block> blocks_;
};

}  // namespace snug
