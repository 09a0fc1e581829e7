#include "backend/update_operands.h"

namespace snug {

UpdatedWeight updated_weight(Operands& operands, bool split, int64_t count) {
  UpdatedWeight taken;
  taken.split = split;
  taken.weight = operands.vector("w", {split ? DType::BF16 : DType::F32}, count);
  if (split) taken.lo = operands.vector("lo", {DType::I16}, count);
  return taken;
}

}  // namespace snug
