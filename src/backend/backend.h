// Declares the execution half of a backend: arenas, and ops bound to addresses. program/facts.h has the planning half.
#pragma once

#include <cstring>
#include <functional>
#include <optional>
#include <span>

#include "program/program.h"

namespace snug {

// Runs an op that was made ready: everything is looked up and prepared, nothing is left to allocate. It is called once
// a pass. When it returns it has done its work or, with streams, has enqueued it.
using Launch = std::function<void(const RuntimeScalars&)>;

// Gives the lanes of a backend whose launches only enqueue: work of one lane runs in the order of its launches, lanes
// run beside one another, and marks order them. All calls come from one thread, except wait_here(). Whatever is
// enqueued completes without this host; collectives do when the other ranks have enqueued theirs.
class Streams {
 public:
  using Mark = size_t;
  virtual ~Streams() = default;
  // It must be called once on every thread that calls launches or anything here.
  virtual void use_here() = 0;
  virtual Mark add_mark() = 0;
  // Puts the mark behind what has been enqueued on the lane so far, and forgets its earlier place.
  virtual void record(Lane lane, Mark mark) = 0;
  // Makes what is enqueued on the lane from here on begin when all before the mark is done. A mark never recorded holds
  // nothing up.
  virtual void wait(Lane lane, Mark mark) = 0;
  // Waits on the calling thread. Throws DeviceError if work has failed, or another rank for which it waits.
  virtual void wait_here(Mark mark) = 0;
  // Returns whether all before the mark is done; true for a mark never recorded. Throws DeviceError as wait_here()
  // does.
  virtual bool passed(Mark mark) = 0;
  // Waits for everything enqueued on all lanes, as wait_here() does.
  virtual void finish() = 0;
  // Puts a stamp on the lane, for traces only, as it allocates. After finish(), when() returns once when all that was
  // enqueued on the lane before the stamp was done, in nanoseconds of the monotone clock.
  using Stamp = size_t;
  virtual Stamp stamp(Lane lane) = 0;
  virtual int64_t when(Stamp stamp) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Returns one block of zeroed bytes for a space's arena, aligned to OpFacts::alignment(); only Arena calls it, once a
  // space. The bytes are released with the backend. Throws CapacityError with these bytes and those that are free if
  // the machine has less.
  virtual std::byte* reserve(Space space, uint64_t bytes) = 0;
  // Prepares an op on given addresses (operands in ops.h's order). All allocation and look-up happens here, and ops may
  // be tried out, which overwrites their operands; the launch itself allocates nothing. Throws InternalError if the
  // operands are not what the op's kind says, or if a library wants more scratch than the facts declared. The executor
  // runs HostTask, ReadFile and WriteFile itself; collectives are the backend's if it has streams and other ranks.
  virtual Launch bind(const Op& op, std::span<const TensorView> views) = 0;
  // Copy bytes of a space to the caller, and from the caller, when nothing runs.
  virtual void read(void* to, const std::byte* from, uint64_t bytes) { std::memcpy(to, from, bytes); }
  virtual void write(std::byte* to, const void* from, uint64_t bytes) { std::memcpy(to, from, bytes); }
  // Returns how many bytes of the device's memory all processes take together, as its driver counts them; nothing where
  // the device has no memory of its own.
  virtual std::optional<uint64_t> device_bytes_taken() const { return std::nullopt; }
  // Returns null if launches do their work before they return.
  virtual Streams* streams() { return nullptr; }
};

}  // namespace snug
