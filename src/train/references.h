// Keeps what a reference model says of replies: log-probabilities, which are computed once and then read.
#pragma once

#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string_view>
#include <vector>

#include "data/packing.h"

namespace snug {

// Holds a reference's log-probability of each reply of a data set: of a pair's chosen and of its rejected one.
class References {
 public:
  explicit References(const Dataset& dataset)
      : documents_(dataset.has_pairs() ? 2 : 1),
        values_(static_cast<size_t>(dataset.samples()), {kUnknown, kUnknown}) {}

  // Returns whether it has those of all documents of a sample.
  bool knows(uint32_t sample) const {
    return !std::isnan(values_[sample][0]) && (documents_ == 1 || !std::isnan(values_[sample][1]));
  }
  const std::array<double, 2>& of(uint32_t sample) const { return values_[sample]; }
  void set(uint32_t sample, size_t half, double value) { values_[sample][half] = value; }
  const std::vector<std::array<double, 2>>& all() const { return values_; }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  size_t documents_;  // of a sample
  std::vector<std::array<double, 2>> values_;
};

// Files of them have this extension.
inline constexpr const char* kReferencesExtension = ".logps";

// A file of them keeps each reply by the hash of its tokens and of which of them carry loss, so that it serves whatever
// the order and number of the data, as long as the pairs are cut alike.
//
//   header     "snugref\n", a format number, the key (XXH3 of the text that says what the reference is), a count
//   entries    hash (8 bytes), log-probability (fp64), in ascending order of hash
//   checksum   XXH3 of all before (8 bytes)
//
// Numbers are little-endian.

// Returns a reply's hash: of its tokens and labels, in the document that `span` is of it.
uint64_t hash_of_reply(const Dataset& dataset, const DocumentSpan& span);

// Names documents of a data set, those of a sample one after the other, and where their references are.
struct Referenced {
  const Dataset& dataset;
  std::vector<DocumentSpan> documents;
  References& references;
};

// Sets the references that the file knows; there may be no file, or one of another key. Throws UserError for a file
// that is damaged.
void read_references(const std::filesystem::path& path, std::string_view key, std::span<const Referenced> all);

// Adds those that are known to the file, or makes it. Throws DeviceError if that fails.
void write_references(const std::filesystem::path& path, std::string_view key, std::span<const Referenced> all);

}  // namespace snug
