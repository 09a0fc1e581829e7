// Connects ranks that are threads of one process: they copy from each other's memory.
#pragma once

#include <memory>
#include <vector>

#include "comm/comm.h"

namespace snug {

// Returns one end for each rank, in their order. A rank that destroys its end makes no more calls; ranks that wait for
// such a call throw PeerError.
std::vector<std::unique_ptr<Comm>> thread_ranks(int ranks, int replicas = 1, double patience = kPatience);

}  // namespace snug
