// Keeps what a reference model says of the replies of pairs: log-probabilities, which are computed once and then read.
#pragma once

#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string_view>
#include <vector>

#include "data/packing.h"

namespace snug {

// Holds a reference's log-probability of each reply of a data set's pairs: of the chosen and of the rejected one.
class References {
 public:
  explicit References(int64_t samples) : values_(static_cast<size_t>(samples), {kUnknown, kUnknown}) {}

  bool knows(uint32_t sample) const { return !std::isnan(values_[sample][0]) && !std::isnan(values_[sample][1]); }
  const std::array<double, 2>& of(uint32_t sample) const { return values_[sample]; }
  void set(uint32_t sample, const std::array<double, 2>& values) { values_[sample] = values; }
  const std::vector<std::array<double, 2>>& all() const { return values_; }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::vector<std::array<double, 2>> values_;
};

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

// Names pairs of a data set, and where their references are.
struct ReferencedPairs {
  const Dataset& dataset;
  std::vector<std::array<DocumentSpan, 2>> pairs;
  References& references;

  // Returns the number of pairs whose references are known.
  int64_t known() const;
};

// Sets the references that the file knows; there may be no file, or one of another key. Throws UserError for a file
// that is damaged.
void read_references(const std::filesystem::path& path, std::string_view key, std::span<const ReferencedPairs> all);

// Writes those that are known, in the place of the file if there is one. Throws DeviceError if that fails.
void write_references(const std::filesystem::path& path, std::string_view key, std::span<const ReferencedPairs> all);

}  // namespace snug
