#include "data/embedding_files.h"

#include <random>
#include <span>

#include "base/file.h"
#include "base/hash.h"
#include "base/option_name.h"

namespace snug {

namespace fs = std::filesystem;

struct EmbeddingFiles::Header {
  static constexpr uint64_t kMagic = 0x0a'67'6d'69'67'75'6e'73;  // "snugimg\n"
  static constexpr uint64_t kFormat = 1;
  uint64_t magic = kMagic, format = kFormat, key = 0, image = 0, rows = 0, columns = 0, element_bytes = 0;
  uint64_t checksum = 0;

  // Returns whether another header is of the same rows, whatever their values.
  bool is_like(Header other) const {
    other.checksum = checksum;
    return other == *this;
  }
  bool operator==(const Header&) const = default;
};

namespace {

std::span<const std::byte> bytes_of_rows(const TensorView& rows) {
  check(rows.dense(), "rows of images that are {} apart, of {} columns", rows.row_stride, rows.cols());
  return {rows.data, static_cast<size_t>(rows.count()) * element_bytes(rows.dtype)};
}

}  // namespace

EmbeddingFiles::EmbeddingFiles(const fs::path& parent, std::string_view key, DType dtype, int64_t columns)
    : key_(hash_of(key)), directory_(parent / hex(key_)), dtype_(dtype), columns_(columns) {}

void EmbeddingFiles::use() {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) user_error("{}: cannot be made ({})", directory_.string(), error.message());
  in_use_ = FileLock::in_use(directory_);
}

fs::path EmbeddingFiles::path_of(uint64_t image) const { return directory_ / hex(image); }

uint64_t EmbeddingFiles::bytes_of(int64_t rows) const {
  return sizeof(Header) + static_cast<uint64_t>(rows * columns_) * element_bytes(dtype_);
}

EmbeddingFiles::Header EmbeddingFiles::header_of(uint64_t image, int64_t rows) const {
  Header header;
  header.key = key_;
  header.image = image;
  header.rows = static_cast<uint64_t>(rows);
  header.columns = static_cast<uint64_t>(columns_);
  header.element_bytes = element_bytes(dtype_);
  return header;
}

bool EmbeddingFiles::has(uint64_t image, int64_t rows) const {
  const fs::path path = path_of(image);
  if (!is_file(path)) return false;
  const File file = File::open_read(path, IoMode::Buffered);
  if (file.size() != bytes_of(rows)) return false;
  Header found;
  file.read(0, std::as_writable_bytes(std::span(&found, 1)));
  return header_of(image, rows).is_like(found);
}

void EmbeddingFiles::read(uint64_t image, const TensorView& rows) const {
  const fs::path path = path_of(image);
  const auto require = [&](bool holds, std::string_view found) {
    if (!holds)
      user_error(
          "{}: found {}, expected the {} rows that were made of an image; a run that begins, or goes on with {}, makes "
          "them again{}",
          path.string(), found, rows.rows(), option_name("resume"), is_file(path) ? " if this file is deleted" : "");
  };
  require(is_file(path), "nothing");
  const File file = File::open_read(path, IoMode::Buffered);
  require(file.size() == bytes_of(rows.rows()), fmt::format("{} bytes", file.size()));
  Header found;
  file.read(0, std::as_writable_bytes(std::span(&found, 1)));
  Header expected = header_of(image, rows.rows());
  require(expected.is_like(found), "another header");
  const std::span<const std::byte> bytes = bytes_of_rows(rows);
  file.read(sizeof(found), {rows.data, bytes.size()});
  const uint64_t checksum = hash_of(bytes, hash_of(std::span<const Header>(&expected, 1)));
  require(checksum == found.checksum, "another checksum");
}

void EmbeddingFiles::read_ahead(uint64_t image) const {
  const fs::path path = path_of(image);
  if (is_file(path)) File::open_read(path, IoMode::Buffered).read_ahead();
}

void EmbeddingFiles::write(uint64_t image, const TensorView& rows) const {
  check(rows.dtype == dtype_ && rows.cols() == columns_, "rows of {} and {} columns, expected {} and {}",
        name(rows.dtype), rows.cols(), name(dtype_), columns_);
  const std::span<const std::byte> bytes = bytes_of_rows(rows);
  Header header = header_of(image, rows.rows());
  header.checksum = hash_of(bytes, hash_of(std::span<const Header>(&header, 1)));
  // Other processes, also of other machines, may be making the same file: each has its own until it is whole.
  std::random_device random;
  const fs::path path = path_of(image), own = path.string() + fmt::format(".{:08x}{:08x}", random(), random());
  fs::create_directories(directory_);
  PendingFile pending(own, IoMode::Buffered);
  pending.file().write(0, std::as_bytes(std::span(&header, 1)));
  pending.file().write(sizeof(header), bytes);
  pending.publish();
  fs::rename(own, path);
}

}  // namespace snug
