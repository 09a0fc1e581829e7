// Describes what a job allocates and executes: flat lists of ops over a table of buffers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "program/ops.h"
#include "tensor/view.h"

namespace snug {

enum class Space : uint8_t { Device, Host, Disk };
inline constexpr std::array kSpaces{Space::Device, Space::Host, Space::Disk};

// Ops of one lane run in issue order; ops of different lanes are ordered by waits alone.
enum class Lane : uint8_t { Compute, Gather, Reduce, CopyIn, CopyOut, DiskIn, DiskOut, Host };
inline constexpr size_t kLanes = 8;

// Says which threads run the lanes: Inline is one thread for all of them, in issue order; Threads is one for each lane,
// ordered by waits alone, beside the team that computes (Host tasks stay on the thread that issues). Results are equal
// to the bit. A backend with streams has lanes of its own: then one thread issues in order, streams wait for each other
// (collectives are launches like others), and host tasks and the disk's ops run when what they wait for is done.
enum class LaneMode : uint8_t { Inline, Threads };

// Says how long a buffer's bytes hold nothing else. Program: within the one program that uses it. Carried: from the
// program that writes it to the last that reads it, found by liveness over the programs' successors (which may form a
// ring). Persistent: always.
enum class Life : uint8_t { Program, Carried, Persistent };

// Says what a buffer is for; the memory report lists bytes by these roles.
enum class Role : uint8_t {
  Weight,
  State,
  Gradient,
  Activation,
  Offload,
  Gather,
  Logits,
  Batch,
  Scratch,
  Staging,
  Cache,
  Metrics
};

template <class T>
using PerSpace = std::array<T, kSpaces.size()>;  // indexed by Space
constexpr size_t index(Space space) { return static_cast<size_t>(space); }
// Raises each space's bytes to those of `other`, where these are more.
inline void raise(PerSpace<uint64_t>& bytes, const PerSpace<uint64_t>& other) {
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = std::max(bytes[i], other[i]);
}
constexpr size_t index(Lane lane) { return static_cast<size_t>(lane); }

std::string_view name(Space space);
std::string_view name(Lane lane);
std::string_view name(Role role);

using BufferId = uint32_t;
using OpId = uint32_t;
using ProgramId = uint32_t;

struct Buffer {
  std::string name;
  uint64_t bytes = 0;
  Space space = Space::Device;
  Role role = Role::Activation;
  Life life = Life::Program;
};

enum class Access : uint8_t { Read, Write, ReadWrite };

// Describes a view into a buffer, as an op uses it.
struct Operand {
  BufferId buffer = 0;
  Access access = Access::Read;
  DType dtype = DType::F32;
  Shape shape;
  uint64_t offset = 0;     // bytes from the buffer's start
  int64_t row_stride = 0;  // elements

  bool reads() const { return access != Access::Write; }
  bool writes() const { return access != Access::Read; }
  // Returns the bytes from `offset` to the end of the last row. Hazards are derived from them.
  uint64_t extent() const;
};

// Names an op that must have finished first. If it stands before the waiting op in this program, it is that op of this
// run; otherwise the op of the program that ran just before. A wait for any other program is void.
struct Wait {
  ProgramId program = 0;
  OpId op = 0;
  bool operator==(const Wait&) const = default;
};

struct Op {
  Attrs attrs;
  Lane lane = Lane::Compute;
  std::vector<Operand> operands;
  int32_t pass = 0;           // the pass whose RuntimeScalars it reads, where a program has several
  int64_t min_loss_rows = 0;  // the op is skipped, as if it were done at once, in a pass with fewer loss rows than this
  OpId retire = 0;  // its buffers stay reserved until this op of its program has been issued; at least the op itself
  std::vector<Wait> waits;  // filled by sync(), never written by hand
  std::string site;         // "layer.3.bwd.down.dx": its name in every report, trace and error
};

struct Program {
  std::string name;
  std::vector<Op> ops;
  std::vector<ProgramId> next;  // programs that may follow it; empty if none may
};

// Holds all programs of a job over one table of buffers. A buffer with Life::Program is used by one program only.
struct ProgramSet {
  std::vector<Buffer> buffers;
  std::vector<Program> programs;

  size_t op_count() const;  // of all programs
  // Returns the programs that may run just before `program`.
  std::vector<ProgramId> predecessors(ProgramId program) const;
  // Returns a hash of everything that decides what runs and where bytes lie. It leaves out waits, which follow from the
  // rest, and is equal on every machine.
  uint64_t hash() const;
  // Returns one line for each op: index, lane, site, kind, operands, waits. It serves golden files and readers.
  std::string dump(ProgramId program) const;
};

// Says where every buffer lies.
struct MemoryPlan {
  std::vector<uint64_t> offset;          // by BufferId: bytes from the start of its space's arena
  PerSpace<uint64_t> reserved_bytes{};   // size of each arena
  PerSpace<uint64_t> live_peak_bytes{};  // largest sum of live buffers at any op: the bound that packing is judged by
  std::vector<PerSpace<uint64_t>>
      program_bytes;  // by ProgramId: the highest byte that the program, or a buffer live across it, uses
  struct Peak {
    ProgramId program = 0;
    OpId op = 0;
    std::vector<BufferId> live;
  };
  PerSpace<Peak> peak;  // where the live bytes peak, and the buffers that are live there
};

}  // namespace snug
