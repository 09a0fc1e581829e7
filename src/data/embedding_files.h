// Keeps what a frozen vision tower makes of images in files, one for each image, named by a hash of its bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/file_lock.h"
#include "tensor/view.h"

namespace snug {

// A file is
//
//   header  eight numbers of 8 bytes: "snugimg\n", a format number, the hash of the key, the image's hash, rows,
//           columns, bytes of an element, and the XXH3 of these seven and of the rows
//   rows    row after row, in the order of the tokens whose places they take
//
// Numbers are little-endian. Files may be those of other processes at work, of killed ones, and of anybody.
class EmbeddingFiles {
 public:
  // `key` says all that decides rows besides an image's bytes: files of another key lie in another directory. `dtype`
  // and `columns` are those of rows.
  EmbeddingFiles(const std::filesystem::path& parent, std::string_view key, DType dtype, int64_t columns);

  // Makes the directory and uses it until this object is gone: FileLock::is_used() tells those who would remove files.
  // Throws UserError if it cannot be made.
  void use();

  const std::filesystem::path& directory() const { return directory_; }
  std::filesystem::path path_of(uint64_t image) const;
  // Returns the bytes of a file of so many rows.
  uint64_t bytes_of(int64_t rows) const;

  // Returns whether the image has a file with this header, as long as that says; what its rows are is seen by read().
  bool has(uint64_t image, int64_t rows) const;
  // Fills all rows of the view, which is dense. Throws UserError for a file that is gone, or is not whole.
  void read(uint64_t image, const TensorView& rows) const;
  // Has the system read the image's file, if there is one, without waiting for that.
  void read_ahead(uint64_t image) const;
  // Makes the file, or replaces it, in one step. Throws DeviceError if that fails.
  void write(uint64_t image, const TensorView& rows) const;

 private:
  struct Header;
  Header header_of(uint64_t image, int64_t rows) const;

  uint64_t key_;
  std::filesystem::path directory_;
  DType dtype_;
  int64_t columns_;
  FileLock in_use_;
};

}  // namespace snug
