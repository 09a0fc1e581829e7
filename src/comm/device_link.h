// What collectives of one lane reach the other ranks' GPUs by.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "backend/backend.h"
#include "comm/comm.h"

namespace snug {

class DeviceLink {
 public:
  DeviceLink() = default;
  // Gives up what is under way, unless it was closed. Other lanes' links of the rank go at the same time, as what one
  // has under way may wait for the other's.
  virtual ~DeviceLink() = default;
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  // All ranks launch the same calls in the same order. A launch enqueues on the lane's stream and returns, or throws
  // PeerError where what it waits for is a rank that is gone.
  virtual Launch bind(const ExchangeStep& step) = 0;
  // When all of its work is done.
  virtual void close() = 0;
};

// Whether a card of this process reaches the memory of another, or is the same.
bool reaches(int card, int other);

// A rank's own row, if it is not there already.
void take_own_row(const ExchangeStep& step, const Topology& here, cudaStream_t stream);

// By NCCL: between any GPUs, and any hosts, with so many blocks of threads of a card at most: rank 0's. `comm` connects
// it, and tells when what a call waits for is gone. All ranks at the same time.
std::unique_ptr<DeviceLink> nccl_link(Comm& comm, cudaStream_t stream, int blocks);

// Between GPUs of one process that reach each other's memory: each rank's copy engines bring it what is its own, so
// that no multiprocessor is taken from products. What ranks say to each other on the way, "my rows are ready" and "I
// have mine", are events; hosts count what they have enqueued, and wait for one another's counts.
class PeerHub;
// Null where that cannot be: on all ranks or on none. All ranks at the same time, each with its device chosen.
std::shared_ptr<PeerHub> meet_peers(Comm& comm);
std::unique_ptr<DeviceLink> peer_link(Comm& comm, std::shared_ptr<PeerHub> hub, Lane lane, cudaStream_t stream);

}  // namespace snug
