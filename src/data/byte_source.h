// Reads the bytes of a data file from front to end, decompressed if they are compressed.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "data/data_files.h"

namespace snug {

class ByteSource {
 public:
  // Opens a file and holds it open, with what the format of a compressed one needs: 32 KiB for gzip, at most 128 MiB
  // for zstd. Throws UserError for a file that cannot be read.
  static std::unique_ptr<ByteSource> open(const std::filesystem::path& path, Compression compression);
  virtual ~ByteSource() = default;

  // Fills `out` from its front and returns the number of bytes; fewer than asked for only at the end. Members and
  // frames that follow one another are one stream. Throws UserError with the offset in the file for a stream that is
  // damaged, that ends early, or that has something else behind it.
  virtual size_t read(std::span<std::byte> out) = 0;
};

}  // namespace snug
