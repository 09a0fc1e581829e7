// States of checkpoints: anything but a UserError, or the state that was written, is a fault.
#include <cstdint>

#include "base/error.h"
#include "train/checkpoint_state.h"

namespace {

// Empty if it is refused.
std::string read_and_written(std::string_view json) {
  try {
    return snug::write_state(snug::parse_state(json, "fuzz"));
  } catch (const snug::UserError&) {
    return "";
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string state = read_and_written(bytes);
  snug::check(state.empty() || read_and_written(state) == state, "written and read: {}", state);
  // A state that was damaged: the checksum covers all that is read.
  const std::string whole =
      snug::write_state({12, {{"model", "rope_theta", "500000"}, {"data", "samples", "40"}}, 0x9abc, 2.5, 8});
  if (bytes.empty()) return 0;
  std::string damaged = whole;
  damaged.replace(data[0] % whole.size(), bytes.size() - 1, bytes.substr(1));
  const std::string read = read_and_written(damaged);
  snug::check(read.empty() || read == whole, "a damaged state was read: {}", damaged);
  return 0;
}
