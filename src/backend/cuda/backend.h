// The CUDA backend: a stream a lane, one block of memory a space.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace snug {

class CudaBackend : public Backend {
 public:
  // On the device of this number, for the thread that makes it and every other that calls Streams::use_here().
  explicit CudaBackend(int device);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  // Device: the card's own memory. Host: huge pages where the system has them, locked, so that copies run at the
  // bus's speed beside everything else and kernels can read them.
  std::byte* reserve(Space space, uint64_t bytes) override;
  // A launch enqueues on the stream of its op's lane and returns. What goes wrong on the device comes back as a
  // DeviceError of a later call. An index among operands that leaves its table gives NaN.
  Launch bind(const Op& op, std::span<const TensorView> views) override;
  void read(void* to, const std::byte* from, uint64_t bytes) override;
  void write(std::byte* to, const void* from, uint64_t bytes) override;
  Streams* streams() override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace snug
