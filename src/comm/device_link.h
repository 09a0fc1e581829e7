// Connects one lane's collectives to the other ranks' GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "backend/backend.h"
#include "comm/comm.h"

namespace snug {

class DeviceLink {
 public:
  DeviceLink() = default;
  // Gives up what is under way, unless the link was closed. The rank's links of other lanes must go at the same time,
  // as what one has under way may wait for another's.
  virtual ~DeviceLink() = default;
  DeviceLink(const DeviceLink&) = delete;
  DeviceLink& operator=(const DeviceLink&) = delete;

  // Returns a launch of the step. All ranks launch equal calls in one order. A launch enqueues on the lane's stream and
  // returns, or throws PeerError where a rank is gone for which it waits.
  virtual Launch bind(const ExchangeStep& step) = 0;
  // Ends the link, once all of its work is done.
  virtual void close() = 0;
};

// Returns whether a card of this process reaches the memory of another, or is that card.
bool reaches(int card, int other);

// Copies a rank's own row, if it is not there already.
void take_own_row(const ExchangeStep& step, const Topology& here, cudaStream_t stream);

// Returns a link by NCCL, between any GPUs and any hosts, that takes at most rank 0's `blocks` blocks of threads of a
// card. `comm` connects it, and tells when a rank is gone for which a call waits. All ranks call it together.
std::unique_ptr<DeviceLink> nccl_link(Comm& comm, cudaStream_t stream, int blocks);

// Connects GPUs of one process that reach each other's memory: each rank's copy engines fetch its rows, so that no
// multiprocessor is taken from products. What ranks tell each other on the way, "my rows are ready" and "I have mine",
// are events; hosts count what they have enqueued, and wait for one another's counts.
class PeerHub;
// Returns null where cards do not reach each other; on all ranks or on none. All ranks call it together, each with
// its device chosen.
std::shared_ptr<PeerHub> meet_peers(Comm& comm);
std::unique_ptr<DeviceLink> peer_link(Comm& comm, std::shared_ptr<PeerHub> hub, Lane lane, cudaStream_t stream);

}  // namespace snug
