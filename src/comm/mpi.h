// Connects ranks of several processes, on one host or more, by MPI.
#pragma once

#include <memory>
#include <vector>

#include "comm/comm.h"

namespace snug {

// Returns whether mpirun, or another launcher that speaks PMI, started this process as one of several.
bool started_by_mpi();

// Opens libsnug_mpi.so, beside the executable, and joins all processes, each of which is one rank of the connection. To
// be called once in a process, in all of them. Replicas are set later. Throws UserError if the module or the MPI
// library is missing, DeviceError if MPI does not start. A process whose calls have thrown does not finish MPI: it
// should exit soon, with its error code; the launcher then ends what may be left of the others. Messages are cut into
// pieces of `piece` bytes, less than 2^31.
std::unique_ptr<Comm> open_mpi(double patience = kPatience, uint64_t piece = uint64_t{8} << 20);

// Replaces what open_mpi() returned by the ends of this process's ranks, `locals` in each process, in their order: rank
// = process * locals + place here. All processes call it together. When a rank fails, all ranks of its process do; a
// process that is lost is reported as one of its ranks. The ends must be destroyed on the thread that opened MPI.
std::vector<std::unique_ptr<Comm>> mpi_ranks(std::unique_ptr<Comm> processes, int locals);

}  // namespace snug
