// Derives every wait between lanes from the packed addresses.
#pragma once

#include "program/program.h"

namespace snug {

// Fills Op::waits of all programs: for every read-after-write, write-after-read and write-after-write on physical bytes
// between ops of different lanes, within a program and from each program that may precede it (waits at its head are the
// union over predecessors), less those that other waits and the order within lanes imply. The executor guarantees that
// when it starts to issue a program, the last but one before it has finished; so only direct predecessors count.
void sync(ProgramSet& set, const MemoryPlan& plan);

// Proves that every conflicting pair of ops, within each program and over each pair of programs that may follow each
// other, is ordered by lanes and waits, and that every wait points to an earlier op (or to a preceding program);
// otherwise throws InternalError, which names both ops and the bytes. It shares no code with sync(). A collective uses
// its operands from its beginning on this rank until all ranks have finished it, and is done on all ranks at once; so
// what holds for one rank holds with peers, as long as all run equal programs and skip no collective.
void verify(const ProgramSet& set, const MemoryPlan& plan);

}  // namespace snug
