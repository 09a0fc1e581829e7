// Ranks of a job on this machine.
#pragma once

#include <functional>

#include "comm/comm.h"

namespace snug {

// Runs `work` on every rank, each on a thread of its own, and returns what rank 0's returned. One rank has no
// connection (null). If ranks end in error, the error that was not caused by another rank's is thrown.
int run_ranks(int ranks, int replicas, const std::function<int(int rank, Comm* comm)>& work);

}  // namespace snug
