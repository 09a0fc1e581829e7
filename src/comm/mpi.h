// Ranks of several processes, on one host or more, connected by MPI.
#pragma once

#include <memory>
#include <vector>

#include "comm/comm.h"

namespace snug {

// Whether mpirun, or what else speaks PMI, started this process as one of several.
bool started_by_mpi();

// Opens libsnug_mpi.so, beside the executable, and joins all processes, each of which is one rank of the connection;
// once in a process, in all of them. Replicas are set later. UserError if the module or the MPI library is not there,
// DeviceError if MPI does not start.
// A process whose calls have thrown does not finish MPI: it should exit soon, with its error code; the launcher then
// ends what may be left of the others. Messages are cut into pieces of `piece` bytes, less than 2^31.
std::unique_ptr<Comm> open_mpi(double patience = kPatience, uint64_t piece = uint64_t{8} << 20);

// In the place of what open_mpi() returned: the ends of this process's ranks, `locals` in each process, in their order,
// rank = process * locals + place here. All processes at the same time. When a rank fails, all ranks of its process
// do; a process that is lost is told as one of its ranks. To be destroyed on the thread that opened MPI.
std::vector<std::unique_ptr<Comm>> mpi_ranks(std::unique_ptr<Comm> processes, int locals);

}  // namespace snug
