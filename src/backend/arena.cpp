#include "backend/arena.h"

#include "base/disk.h"
#include "base/option_name.h"

namespace snug {

Arena::Arena(Backend& backend, const MemoryPlan& plan, const std::filesystem::path& disk_directory,
             const Heartbeat& heartbeat)
    : bytes_(plan.reserved_bytes) {
  for (const Space space : {Space::Device, Space::Host})
    if (bytes_[index(space)] > 0) base_[index(space)] = backend.reserve(space, bytes_[index(space)]);
  if (bytes_[index(Space::Disk)] == 0) return;
  const uint64_t needed = bytes_[index(Space::Disk)], free = free_bytes(disk_directory);
  if (free < needed)
    device_error("{}: found {} bytes free, expected {} for what is offloaded to disk; {} names another place",
                 disk_directory.string(), free, needed, option_name("disk_dir"));
  disk_ = File::create_unnamed(disk_directory, IoMode::Direct);
  disk_->allocate(needed, heartbeat);
}

uint64_t Arena::begin(const Operand& operand, const MemoryPlan& plan, const ProgramSet& set) const {
  const Buffer& buffer = set.buffers[operand.buffer];
  const uint64_t begin = plan.offset[operand.buffer] + operand.offset;
  check(operand.offset + operand.extent() <= buffer.bytes && begin + operand.extent() <= bytes_[index(buffer.space)],
        "a view of buffer '{}' ends at byte {}, the buffer has {}", buffer.name, operand.offset + operand.extent(),
        buffer.bytes);
  return begin;
}

TensorView Arena::view(const Operand& operand, const MemoryPlan& plan, const ProgramSet& set) const {
  const Space space = set.buffers[operand.buffer].space;
  check(space != Space::Disk, "buffer '{}' lies on the disk and has no view", set.buffers[operand.buffer].name);
  return {base_[index(space)] + begin(operand, plan, set), operand.dtype, operand.shape, operand.row_stride};
}

uint64_t Arena::disk_offset(const Operand& operand, const MemoryPlan& plan, const ProgramSet& set) const {
  check(operand.shape.rows() <= 1 || operand.row_stride == operand.shape.cols(), "rows of '{}' lie apart on the disk",
        set.buffers[operand.buffer].name);
  return begin(operand, plan, set);
}

}  // namespace snug
