// The execution half of a backend: arenas, and ops bound to addresses. The planning half is program/facts.h.
#pragma once

#include <cstring>
#include <functional>
#include <span>

#include "program/program.h"

namespace snug {

// An op made ready: everything found out and prepared, nothing left to allocate. Called once a pass. It has done its
// work when it returns, or, of a backend with streams, has enqueued it.
using Launch = std::function<void(const RuntimeScalars&)>;

// The lanes of a backend whose launches only enqueue: work of one lane runs in the order of its launches, lanes run
// beside one another, and marks order them. All calls from one thread, but for wait_here(). Whatever is enqueued
// completes without this host; collectives when the other ranks have enqueued theirs.
class Streams {
 public:
  using Mark = size_t;
  virtual ~Streams() = default;
  // Once on every thread that calls launches or anything here.
  virtual void use_here() = 0;
  virtual Mark add_mark() = 0;
  // The mark stands behind what has been enqueued on the lane so far; where it stood before is forgotten.
  virtual void record(Lane lane, Mark mark) = 0;
  // What is enqueued on the lane from here on begins when all before the mark is done. A mark never recorded holds
  // nothing up.
  virtual void wait(Lane lane, Mark mark) = 0;
  // The calling thread waits. DeviceError if work has failed, or another rank that it waits for.
  virtual void wait_here(Mark mark) = 0;
  // Whether all before the mark is done; true for a mark never recorded. DeviceError likewise.
  virtual bool passed(Mark mark) = 0;
  // wait_here() for everything enqueued on all lanes.
  virtual void finish() = 0;
  // For traces, as it allocates: when() tells after finish(), once, when all enqueued on the lane before the stamp was
  // done, in nanoseconds of the monotone clock.
  using Stamp = size_t;
  virtual Stamp stamp(Lane lane) = 0;
  virtual int64_t when(Stamp stamp) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // One block of zeroed bytes for a space's arena, aligned to OpFacts::alignment(); called once a space, by Arena only.
  // Released with the backend. CapacityError with these bytes and those that are free if the machine has less.
  virtual std::byte* reserve(Space space, uint64_t bytes) = 0;
  // Prepares an op on given addresses (operands in ops.h's order). All allocation and look-up happens here, and ops may
  // be tried out, which overwrites their operands; the launch itself allocates nothing. InternalError if the operands
  // are not what the op's kind says, or if a library wants more scratch than the facts declared. HostTask, ReadFile and
  // WriteFile are the executor's, not the backend's; collectives are the backend's if it has streams and other ranks.
  virtual Launch bind(const Op& op, std::span<const TensorView> views) = 0;
  // Bytes of a space for the caller to look at, and from the caller, when nothing runs.
  virtual void read(void* to, const std::byte* from, uint64_t bytes) { std::memcpy(to, from, bytes); }
  virtual void write(std::byte* to, const void* from, uint64_t bytes) { std::memcpy(to, from, bytes); }
  // None where launches do their work before they return.
  virtual Streams* streams() { return nullptr; }
};

}  // namespace snug
