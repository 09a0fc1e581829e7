// Runs programs on tags instead of numbers, in orders that lanes and waits allow but issue order does not, and finds
// every read of bytes that another buffer has written over.
#pragma once

#include "program/program.h"
#include "program/topology.h"

namespace snug {

struct ReplayResult {
  int64_t corrupted_reads = 0;
  std::string first;  // program, op and buffer of the first one; with several ranks, also the rank that read
};

// Runs the sequence of programs (each a successor of the one before) with at most two in flight. It chooses among the
// lanes' ready ops by `seed`: at random, or one lane as far ahead of the others as waits allow, or as far behind. A
// read is corrupted when its bytes do not carry the tags (buffer and version) that issue order would have given them;
// bytes that no op of the sequence has written are not checked. There are no deadlocks, as every wait is for an op
// issued before. Throws InternalError for a sequence that cannot happen or a wait for an op that does not exist.
//
// With several ranks each runs the same programs, in an order of its own. A collective (AllGather, Exchange) begins on
// each rank when its waits are met there; when all who take part have begun it, each of them, in any order and between
// other ops, takes the others' parts one by one from their memory and writes them to its own; when all have taken all,
// it is done on all of them at once; with one rank it is an op like others. A part that lies in what is gathered is
// taken at every rank's own place.
ReplayResult replay(const ProgramSet& set, const MemoryPlan& plan, const std::vector<ProgramId>& sequence,
                    uint64_t seed, const Topology& topology = {});

}  // namespace snug
