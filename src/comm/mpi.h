// Ranks as processes, on one host or several, connected by MPI.
#pragma once

#include <memory>

#include "comm/comm.h"

namespace snug {

// Whether mpirun, or what else speaks PMI, started this process as one of several.
bool started_by_mpi();

// Opens libsnug_mpi.so, beside the executable, and joins all ranks; once in a process, on all ranks. Replicas are set
// later. UserError if the module or the MPI library is not there, DeviceError if MPI does not start.
// A process whose calls have thrown does not finish MPI: it should exit soon, with its error code; the launcher then
// ends what may be left of the others. Messages are cut into pieces of `piece` bytes, less than 2^31.
std::unique_ptr<Comm> open_mpi(double patience = kPatience, uint64_t piece = uint64_t{1} << 30);

}  // namespace snug
