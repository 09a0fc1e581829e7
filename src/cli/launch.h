// Ranks of a job on this machine.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "comm/comm.h"

namespace snug {

// The connection of a process that a launcher (mpirun, srun) started as one of several ranks; null otherwise.
std::unique_ptr<Comm> launched();

// UserError if a launcher started several processes: of a command that would do the same in each of them.
void require_one_process(std::string_view command);

// Runs `work` on every rank of this process and returns what rank 0's returned, or this process's rank's: one rank of a
// launched job, or else each on a thread of its own. One rank alone has no connection (null). If ranks end in error,
// the error that was not caused by another rank's is thrown. Where a thread hangs and goes on hanging, what its peers
// say of it is printed, and the process ends with exit code 4.
int run_ranks(int ranks, int replicas, Comm* launched, const std::function<int(int rank, Comm* comm)>& work,
              double patience = kPatience);

// How many ranks of a launched job one machine has, where it has the most.
int most_ranks_of_a_node(Comm& launched);
// This process's place among those of its machine, from 0.
int place_on_node(Comm& launched);

// The least of a number over all ranks of a launched job; the number itself otherwise.
uint64_t least_of_ranks(Comm* launched, uint64_t value);

}  // namespace snug
