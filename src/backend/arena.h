// Holds the one block of bytes of each space, and gives views into it. Only this calls Backend::reserve.
#pragma once

#include <filesystem>
#include <optional>

#include "backend/backend.h"
#include "base/file.h"

namespace snug {

class Arena {
 public:
  // Reserves each space's bytes of the plan, once; those of the disk in a file without a name in `disk_directory`.
  // Throws CapacityError if the memory is no longer free, DeviceError for the disk. `heartbeat` is called while the
  // disk is reserved.
  Arena(Backend& backend, const MemoryPlan& plan, const std::filesystem::path& disk_directory,
        const Heartbeat& heartbeat = {});

  // Returns an operand's bytes under a plan whose reserved bytes do not exceed this arena's. Not for the disk space.
  TensorView view(const Operand& operand, const MemoryPlan& plan, const ProgramSet& set) const;
  uint64_t bytes(Space space) const { return bytes_[index(space)]; }

  // Returns where a dense operand of the disk space lies in disk().
  uint64_t disk_offset(const Operand& operand, const MemoryPlan& plan, const ProgramSet& set) const;
  File& disk() { return *disk_; }

 private:
  uint64_t begin(const Operand& operand, const MemoryPlan& plan, const ProgramSet& set) const;

  PerSpace<std::byte*> base_{};
  PerSpace<uint64_t> bytes_{};
  std::optional<File> disk_;
};

}  // namespace snug
