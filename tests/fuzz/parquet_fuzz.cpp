// Parquet files: anything but a UserError or rows of JSON is a fault.
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "format/json.h"
#include "format/parquet.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("snug-parquet-fuzz-" + std::to_string(getpid()) + ".parquet");
  std::ofstream(file, std::ios::binary) << std::string(reinterpret_cast<const char*>(data), size);
  try {
    snug::ParquetReader reader(file, {"messages"});
    std::string row;
    // A few bytes can say that a thousand million rows are null.
    for (int rows = 0; rows < 1000 && reader.next(row, 1 << 16); ++rows) {
      if (!snug::Json::accept(row)) abort();
      row.clear();
    }
  } catch (const snug::UserError&) {
  }
  return 0;
}
