// Declares the CPU backend: complete, with results that do not depend on the number of threads, and the reference for
// every other.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace snug {
namespace cpu {
class MatmulCalls;
}

class CpuBackend : public Backend {
 public:
  CpuBackend();
  ~CpuBackend() override;
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  // Reserves anonymous memory, on huge pages if the system has them, for the Device and the Host space alike.
  std::byte* reserve(Space space, uint64_t bytes) override;
  // Binds an op. A launch runs on the calling thread's team (base/parallel.h) and has finished when it returns. A
  // launch throws InternalError too, if an index among its operands (ids, rows, targets) leaves its table.
  Launch bind(const Op& op, std::span<const TensorView> views) override;

 private:
  struct Block {
    void* start = nullptr;
    uint64_t bytes = 0;
  };
  PerSpace<Block> blocks_;
  std::unique_ptr<cpu::MatmulCalls> products_;
};

}  // namespace snug
