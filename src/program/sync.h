// Derives every wait between lanes from the packed addresses.
#pragma once

#include "program/program.h"

namespace snug {

// Fills Op::waits of all programs: for every read-after-write, write-after-read and write-after-write on physical bytes
// between ops of different lanes, within a program and from each program that may precede it (waits at its head are the
// union over predecessors), less those that other waits and the order within lanes imply. The executor guarantees that
// when a program starts to be issued, the one before the previous has finished; so only direct predecessors count.
void sync(ProgramSet& set, const MemoryPlan& plan);

// Proves that every conflicting pair of ops, within each program and over each pair of programs that may follow each
// other, is ordered by lanes and waits; InternalError names both ops and the bytes otherwise. Also that every wait
// points to an earlier op (or to a preceding program). Shares no code with sync().
// A collective uses its operands from its beginning on this rank until all ranks have finished it, and is done on all
// at once: so what holds on one rank holds with peers, as long as all run the same programs and skip no collective.
void verify(const ProgramSet& set, const MemoryPlan& plan);

}  // namespace snug
