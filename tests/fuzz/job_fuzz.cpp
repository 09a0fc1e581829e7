// Job files: anything but a UserError is a fault; and, of files in printable ASCII, options that are not read back as
// they are written.
#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "cli/options.h"

namespace {

std::string written(const std::string& yaml) {
  snug::Options options;
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
  const auto plain = [](uint8_t c) { return (c >= ' ' && c < 0x7f) || c == '\n'; };
  if (!std::all_of(data, data + size, plain)) return 0;
  snug::check(written(first) == first, "written and read: {}", first);
  return 0;
}
