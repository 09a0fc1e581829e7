// The CUDA backend: a stream a lane, one block of memory a space.
#pragma once

#include <functional>
#include <memory>

#include "backend/backend.h"

struct CUstream_st;  // cudaStream_t points to it

namespace snug {

// Which algorithm each product takes. Ranks of one process share a table, so that all run what the first has found the
// fastest: none is slower than the others for having searched on a warmer card.
struct ProductTable;
std::shared_ptr<ProductTable> make_product_table();

class CudaBackend : public Backend {
 public:
  // On the device of this number, for the thread that makes it and every other that calls Streams::use_here().
  explicit CudaBackend(int device, std::shared_ptr<ProductTable> products = make_product_table());
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

 protected:
  // Of the lane, if the device serves it.
  CUstream_st* stream(Lane lane) const;
  // From here on the host waits for the device by `until`, which returns when what it is given says so.
  void wait_by(std::function<void(const std::function<bool()>& done)> until);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace snug
