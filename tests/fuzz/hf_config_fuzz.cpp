// config.json, generation_config.json and snug.json: anything but a UserError or a parsed config
// is a fault.
#include <cstdint>

#include "base/error.h"
#include "format/generation_config.h"
#include "format/prompt_format.h"
#include "model/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    snug::parse_model_config(json, "fuzz");
  } catch (const snug::UserError&) {
  }
  try {
    std::vector<std::string> notes;
    snug::parse_generation_config(json, "fuzz", 1000, notes);
  } catch (const snug::UserError&) {
  }
  try {
    snug::AdapterFormat format;
    snug::parse_snug_file(json, "fuzz", format);
  } catch (const snug::UserError&) {
  }
  return 0;
}
