// The ranks of a job: threads, of this process or of several that a launcher started.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/comm.h"

namespace snug {

// The connection of this process with the others that a launcher (mpirun, srun) started; null if it is alone. Before
// there are ranks, each process is one of it. UserError unless all run the same command of snug, and where a launcher
// that is not MPI's started several processes, each of which would run the whole job.
std::unique_ptr<Comm> launched(std::string_view command);

// Whether this process is the first or the only one that a launcher started; asks nobody.
bool is_first_process();

// UserError if a launcher started several processes: of a command that would do the same in each of them.
void require_one_process(std::string_view command);

// What a rank of this process does: `place` is its number among those of its machine, from 0.
using RankWork = std::function<int(int rank, int place, Comm* comm)>;

// Runs `work` on every rank of this process, each on a thread of its own, and returns what the first one's returned.
// `launched` processes have equal shares of the ranks, and end with them. One rank alone has no connection (null). If
// ranks end in error, the error that was not caused by another rank's is thrown; what the machine did, with what
// `where` says then, if it is given: of where to go on from. Where a thread hangs and goes on hanging, the same is
// printed, or what its peers say of it, and the process ends with that error's exit code.
int run_ranks(int ranks, int replicas, std::unique_ptr<Comm> launched, const RankWork& work,
              double patience = kPatience, const std::function<std::string()>& where = {});

// The same number in all processes of one machine, and in no other's.
uint64_t number_of_machine();
// Of launched processes: how many this machine has, this one's place among them, from 0, and how many the machine has
// that has the most.
struct NodeProcesses {
  int here = 1, place = 0, most = 1;
};
NodeProcesses processes_of_node(Comm& launched);

// Where the ranks of all launched processes will be: "ranks 0 to 3 on near; 4 to 7 on far". Empty if on one machine.
std::string machines_text(Comm& launched, int ranks);

// A launcher may have bound this process to fewer cores than it has threads; mpirun binds each of two to one. Then it
// takes all that the system gives it, for threads that begin after this.
void take_cores(int threads);
// As many as it then may use.
int unbound_cores();

// The least of a number over all launched processes; the number itself where there is one alone.
uint64_t least_of_ranks(Comm* launched, uint64_t value);

}  // namespace snug
