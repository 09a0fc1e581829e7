// Machine profiles: anything but a UserError or a profile that is read back as it is written is a fault.
#include <cstdint>

#include "base/error.h"
#include "plan/forecast/machine.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string json =
        snug::write_machine(snug::parse_machine(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz"));
    snug::check(snug::write_machine(snug::parse_machine(json, "fuzz")) == json, "written and read: {}", json);
  } catch (const snug::UserError&) {
  }
  return 0;
}
