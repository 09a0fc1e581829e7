// Keeps checksums beside the files of a checkpoint.
#pragma once

#include <filesystem>

#include "base/file.h"
#include "base/heartbeat.h"

namespace snug {

// Writes the checksum of a file; the file kept its sum while it was written.
void write_checksum(const File& file);
// Throws UserError unless the file has the checksum that was written beside it; reads all of it.
void require_checksum(const std::filesystem::path& path, const Heartbeat& heartbeat);

}  // namespace snug
