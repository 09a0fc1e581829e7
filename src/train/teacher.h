// Keeps what a teacher says of the tokens that carry loss: of each, its most likely tokens and what share of the
// probability each of them and all others have. It is computed once and then read.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "data/packing.h"
#include "tensor/batch.h"

namespace snug {

// Names documents of a data set of which a teacher speaks.
struct TaughtDocuments {
  const Dataset& dataset;
  std::vector<DocumentSpan> documents;
};

// Files of them have this extension.
inline constexpr const char* kTeacherExtension = ".teacher";

// Returns the bytes of such a file, of so many documents with so many tokens that carry loss, k tokens for each.
uint64_t teacher_file_bytes(int64_t documents, int64_t loss_tokens, int64_t top_k);

// Is the file, which ranks read and write together: each document's rows have a place of their own.
//
//   header     "snugtch\n", a format number, the key (XXH3 of the text that says who teaches what), k, how many
//              documents and tokens that carry loss
//   checksums  of each document's rows (XXH3, 8 bytes); 0: the teacher has not been asked yet
//   rows       of each document the teacher's tokens [n, k] int32, then their log-probabilities [n, k + 1] fp32, as
//              TopTokens (program/loss_ops.h) writes them
//
// Numbers are little-endian. What it refers to must outlive it.
class TeacherFile {
 public:
  // Makes the file, with nothing in it yet, unless there is one of this key already. One rank calls it, before any
  // opens it. Throws UserError for a file of other sizes than its key has, and DeviceError where the disk has no room.
  static void prepare(const std::filesystem::path& path, std::string_view key, int64_t top_k,
                      std::span<const TaughtDocuments> taught, const Heartbeat& heartbeat);

  // Opens the file that prepare() has made. Throws UserError for another one.
  TeacherFile(const std::filesystem::path& path, std::string_view key, int64_t top_k,
              std::span<const TaughtDocuments> taught);

  int64_t top_k() const { return top_k_; }
  // Return whether a document was known, or how many of all were, when the file was opened.
  bool knew(const Dataset& dataset, const DocumentSpan& document) const;
  int64_t known() const;
  int64_t documents() const { return static_cast<int64_t>(places_.size()); }
  // Returns a hash of which were.
  uint64_t hash_of_known() const;
  // Returns the rows of a document.
  int64_t rows(const Dataset& dataset, const DocumentSpan& document) const { return place_of(dataset, document).rows; }

  // Keep and give the rows of a document: k, and k + 1, numbers for each. read() throws UserError if they are not those
  // that were kept, or hold what is no token of a vocabulary of so many.
  void write(const Dataset& dataset, const DocumentSpan& document, std::span<const int32_t> ids,
             std::span<const float> log_probs);
  void read(const Dataset& dataset, const DocumentSpan& document, std::span<int32_t> ids, std::span<float> log_probs,
            int64_t vocabulary) const;

 private:
  struct Place {
    const Dataset* dataset = nullptr;
    DocumentSpan document;
    int64_t number = 0, first_row = 0, rows = 0;
    bool operator<(const Place& other) const;
  };
  const Place& place_of(const Dataset& dataset, const DocumentSpan& document) const;
  static std::vector<Place> places_of(std::span<const TaughtDocuments> taught);
  uint64_t offset_of_rows(const Place& place) const;

  File file_;
  int64_t top_k_ = 0;
  std::vector<Place> places_;        // sorted by data set, sample and beginning
  std::vector<uint64_t> checksums_;  // by a document's number, when the file was opened
};

}  // namespace snug
