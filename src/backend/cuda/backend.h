// Declares the CUDA backend: a stream a lane, one block of memory a space.
#pragma once

#include <functional>
#include <memory>

#include "backend/backend.h"

struct CUstream_st;  // cudaStream_t points to it

namespace snug {

// Says which algorithm each product takes. Ranks of one process share a table, so that all run what the first has found
// the fastest: none is slower than the others for having searched on a warmer card.
struct ProductTable;
std::shared_ptr<ProductTable> make_product_table();

class CudaBackend : public Backend {
 public:
  // Runs on the device of this number, for the thread that makes it and every other that calls Streams::use_here().
  explicit CudaBackend(int device, std::shared_ptr<ProductTable> products = make_product_table());
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  // Reserves a space. Device: the card's own memory. Host: huge pages if the system has them, locked, so that copies
  // run at the bus's speed beside everything else and kernels can read them.
  std::byte* reserve(Space space, uint64_t bytes) override;
  // Binds an op. A launch enqueues on the stream of its op's lane and returns. Errors on the device come back as a
  // DeviceError of a later call. An index among operands that leaves its table gives NaN.
  Launch bind(const Op& op, std::span<const TensorView> views) override;
  void read(void* to, const std::byte* from, uint64_t bytes) override;
  void write(std::byte* to, const void* from, uint64_t bytes) override;
  std::optional<uint64_t> device_bytes_taken() const override;
  Streams* streams() override;

 protected:
  // Returns the stream of a lane, if the device serves it.
  CUstream_st* stream(Lane lane) const;
  // Makes the host wait for the device by `wait_until` from now on, which returns when `done` returns true.
  void wait_by(std::function<void(const std::function<bool()>& done)> wait_until);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace snug
