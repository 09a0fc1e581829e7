// Ranks on GPUs: the CUDA backend of a rank among others. Bytes go from card to card on the streams of the lanes that
// collectives stand on; sums are ops.
#pragma once

#include <memory>

#include "backend/cuda/backend.h"
#include "comm/comm.h"

namespace snug {

class DeviceLink;

// Sets what NCCL reads of the environment, where it is not set so: before there are threads, which may read it.
void prepare_nccl();

// Whether the first `count` cards of this process reach each other's memory.
bool cards_reach_each_other(int count);

// Which way bytes go. Copies: where all cards are one process's and reach each other's memory, else by NCCL too.
enum class Route { Copies, Nccl };
struct Way {
  Route route;
  int nccl_blocks;  // of threads, the most that a lane of NCCL's takes of a card: rank 0's
};

// Collectives are enqueued like all others. Everything else ranks say to each other goes over `comm`, which must
// outlive the backend, and which also ends it: where the host waits for the device, it sees that a rank has failed,
// hangs or is gone, and throws PeerError; what is enqueued and waits for that rank is given up. Replicas of `comm` are
// set before.
class RankBackend final : public CudaBackend {
 public:
  // On all ranks at the same time, each with a card of its own.
  RankBackend(int device, std::shared_ptr<ProductTable> products, Comm& comm, Way way);
  ~RankBackend() override;

  Launch bind(const Op& op, std::span<const TensorView> views) override;

 private:
  Comm& comm_;
  const int exceptions_;
  std::array<std::unique_ptr<DeviceLink>, kLanes> links_;  // of the lanes that collectives stand on
};

}  // namespace snug
