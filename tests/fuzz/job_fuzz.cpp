// Job files: anything but a UserError, or options that are read back as they are written, is a fault.
#include <cstdint>

#include "api/job_file.h"
#include "base/error.h"

namespace {

std::string written(const std::string& yaml) {
  snug::JobConfig options;
  snug::parse_job(yaml, "fuzz", options);
  return snug::write_job_file(options);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string first;
  try {
    first = written(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const snug::UserError&) {
    return 0;
  }
  snug::check(written(first) == first, "written and read: {}", first);
  return 0;
}
