#include "train/checksum.h"

#include "base/error.h"
#include "base/hash.h"

namespace snug {
namespace {

std::filesystem::path checksum_name(std::filesystem::path path) { return path += ".xxh3"; }

}  // namespace

void write_checksum(const File& file) { write_text(checksum_name(file.path()), hex(file.checksum()) + "\n"); }

void require_checksum(const std::filesystem::path& path, const Heartbeat& heartbeat) {
  const std::string expected = read_text(checksum_name(path), 64), found = hex(file_checksum(path, heartbeat));
  if (expected != found + "\n")
    user_error("{}: damaged: found checksum {}, expected {}", path.string(), found, expected.substr(0, found.size()));
}

}  // namespace snug
