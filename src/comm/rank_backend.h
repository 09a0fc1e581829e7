// Runs ranks on GPUs: the CUDA backend of one rank among others. Bytes go from card to card on the streams of the lanes
// that have collectives; sums are ops.
#pragma once

#include <memory>

#include "backend/cuda/backend.h"
#include "comm/comm.h"

namespace snug {

class DeviceLink;

// Sets the environment variables that NCCL reads, where they differ. It must be called before there are threads, which
// may read them.
void prepare_nccl();

// Opens NCCL and returns its version, such as "2.28.9". Throws DeviceError if it cannot be opened, or is too old.
std::string nccl_version();

// Returns whether the first `count` cards of this process reach each other's memory.
bool cards_reach_each_other(int count);

// Says how bytes go between cards. Copies: by copies where all cards are one process's and reach each other's memory,
// else by NCCL as well.
enum class Route { Copies, Nccl };
struct CardTransport {
  Route route;
  int nccl_blocks;  // blocks of threads that a lane of NCCL takes of a card, at most: rank 0's
};

// Enqueues collectives like other ops. Everything else that ranks tell each other goes over `comm`, which must outlive
// the backend and also ends it: where the host waits for the device, it sees that a rank has failed, hangs or is gone,
// and throws PeerError; enqueued work that waits for that rank is given up. The replicas of `comm` must be set before.
class RankBackend final : public CudaBackend {
 public:
  // All ranks construct it together, each with a card of its own.
  RankBackend(int device, std::shared_ptr<ProductTable> products, Comm& comm, CardTransport transport);
  ~RankBackend() override;

  Launch bind(const Op& op, std::span<const TensorView> views) override;

 private:
  Comm& comm_;
  const int exceptions_;
  std::array<std::unique_ptr<DeviceLink>, kLanes> links_;  // by lane, of those that have collectives
};

}  // namespace snug
