// Checksums beside the files of a checkpoint.
#pragma once

#include <filesystem>

#include "base/file.h"
#include "base/heartbeat.h"

namespace snug {

// Writes the checksum of a file that has been written, and whose sum was kept the while.
void write_checksum(const File& file);
// UserError unless the file has the checksum that was written beside it; reads all of it.
void require_checksum(const std::filesystem::path& path, const Heartbeat& heartbeat);

}  // namespace snug
