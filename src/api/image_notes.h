// Says which images decoders found damaged and yet read.
#pragma once

#include <cstddef>
#include <mutex>
#include <set>
#include <string>

namespace snug {

// Says a line once an image, however often that is read: the first images are named, more are counted.
// Several threads may add lines.
class ImageNotes {
 public:
  // Takes a line as ImageRows::warning has it.
  void add(const std::string& warning);

 private:
  std::mutex mutex_;
  std::set<std::string> said_;
  size_t next_count_ = 10;  // at which they are counted
};

}  // namespace snug
