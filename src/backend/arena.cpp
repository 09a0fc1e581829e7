#include "backend/arena.h"

namespace snug {

Arena::Arena(Backend& backend, const MemoryPlan& plan) : bytes_(plan.reserved_bytes) {
  for (const Space space : kSpaces)
    if (bytes_[index(space)] > 0) base_[index(space)] = backend.reserve(space, bytes_[index(space)]);
}

TensorView Arena::view(const Operand& operand, const MemoryPlan& plan, const ProgramSet& set) const {
  const Buffer& buffer = set.buffers[operand.buffer];
  const uint64_t begin = plan.offset[operand.buffer] + operand.offset;
  check(operand.offset + operand.extent() <= buffer.bytes && begin + operand.extent() <= bytes_[index(buffer.space)],
        "a view of buffer '{}' ends at byte {}, the buffer has {}", buffer.name, operand.offset + operand.extent(),
        buffer.bytes);
  return {base_[index(buffer.space)] + begin, operand.dtype, operand.shape, operand.row_stride};
}

}  // namespace snug
