// Keeps a data set as a file, which a few large reads bring back without encoding its texts again.
//
//   header    what it is, a format number and the sizes of all that follows (DatasetHeader)
//   key       the text that tells what the data set was made of
//   notes     each: the number of its file (4 bytes, -1 for none), its length (8 bytes), its text
//   arrays    ids (4 bytes a token), a bit a token that has a label in words of 8 bytes, the ends of samples (8 bytes
//             each), the ends of files in samples (8 bytes each), starts of second documents (4 bytes a sample, of
//             pairs alone), values (4 bytes a sample, where there are any), places (8 bytes) and values (4 bytes) of
//             labels that are not their token, and of labels' weights that are not 1; of images which samples have some
//             (32 bytes each), where each is (64 bytes), views (20 bytes each), and texts
//   checksum  XXH3 of all before (8 bytes)
//
// Numbers are little-endian.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/dataset.h"

namespace snug {

struct DatasetHeader {
  static constexpr uint64_t kMagic = 0x0a'73'64'69'67'75'6e'73;  // "snugids\n"
  static constexpr uint64_t kFormat = 5;                         // a file with another number is another program's
  uint64_t magic = kMagic, format = kFormat;
  uint64_t key_bytes = 0, notes = 0, notes_bytes = 0;
  uint64_t kinds = 0;  // 1: conversations, 2: texts
  uint64_t tokens = 0, samples = 0, other_labels = 0, weights = 0;
  uint64_t seconds = 0, values = 0;  // each none, or as many as samples
  uint64_t files = 0;
  uint64_t samples_with_images = 0, images = 0, views = 0, image_text = 0;
  uint64_t image_state = 0;  // DatasetImages::state() when it was written
};

// Holds a line that was noted of a file of the data when it was read, without the name that begins the line. `file` is
// the file's number, or -1 for a line that begins with none.
struct DatasetNote {
  int32_t file = -1;
  std::string text;
  bool operator==(const DatasetNote&) const = default;
};

class DatasetFile {
 public:
  struct Content {
    Dataset dataset;
    std::vector<DatasetNote> notes;
  };

  // Returns the bytes that write() writes.
  static uint64_t bytes(const Dataset& dataset, const std::vector<DatasetNote>& notes, std::string_view key);
  // Writes to an empty file. Throws DeviceError if that fails.
  static void write(const Dataset& dataset, const std::vector<DatasetNote>& notes, std::string_view key, File& file,
                    const Heartbeat& heartbeat);
  // Returns nothing if the file is of another key, or if a file of an image has been written since. Throws UserError
  // for a file that is not whole, or that holds no data set of these options (number of files, ids below the
  // vocabulary); options.take() is asked before memory is taken.
  static std::optional<Content> read(const std::filesystem::path& path, std::string_view key,
                                     const DataOptions& options);

 private:
  class Reader;
};

}  // namespace snug
