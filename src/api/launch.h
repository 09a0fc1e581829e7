// Runs the ranks of a job: threads, of this process or of several that a launcher started.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/comm.h"

namespace snug {

// Returns the connection of this process with the others that a launcher (mpirun, srun) started; null if it is alone.
// Until there are ranks, each process is one rank of it. Throws UserError unless all run one command of snug, and if a
// launcher that does not use MPI started several processes, each of which would run the whole job.
std::unique_ptr<Comm> launched(std::string_view command);

// Returns whether this process is the first or the only one that a launcher started, without asking the others.
bool is_first_process();

// Throws UserError if a launcher started several processes, for a command that would do its work in each of them.
void require_one_process(std::string_view command);

// Does the work of a rank of this process; `place` is its number among those of its machine, from 0.
using RankWork = std::function<int(int rank, int place, Comm* comm)>;

// Runs `work` on every rank of this process, each on its own thread, and returns what the first one's returned.
// `launched` processes have equal shares of the ranks, and end with them. One rank alone has no connection (null). If
// ranks end in error, the error that no other rank's caused is thrown; to an error of the machine it adds what `where`
// returns, if given, which says where to go on from. If a thread hangs for good, that error is printed, or what its
// peers say of the rank, and the process ends with the error's exit code.
int run_ranks(int ranks, int replicas, std::unique_ptr<Comm> launched, const RankWork& work,
              double patience = kPatience, const std::function<std::string()>& where = {});

// Returns a number that all processes of one machine share, and no other machine's have.
uint64_t number_of_machine();
// Says of launched processes how many this machine has, this one's place among them, from 0, and how many the machine
// has that has the most.
struct NodeProcesses {
  int here = 1, place = 0, most = 1;
};
NodeProcesses processes_of_node(Comm& launched);

// Returns where the ranks of all launched processes will be: "ranks 0 to 3 on near; 4 to 7 on far". Empty if on one
// machine.
std::string machines_text(Comm& launched, int ranks);

// Takes all cores that the system gives this process, for threads that begin later, if a launcher has bound it to fewer
// cores than it has threads; mpirun binds each of two processes to one core.
void take_cores(int threads);
// Returns how many cores this process may then use.
int unbound_cores();

// Returns the least of a number over all launched processes; with one process, the number itself.
uint64_t least_of_ranks(Comm* launched, uint64_t value);

}  // namespace snug
