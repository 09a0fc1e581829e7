// Keeps several requests in flight on one range of a file, through io_uring.
#pragma once

#include <liburing.h>

#include <cstddef>
#include <cstdint>

namespace snug {

enum class Transfer { Read, Write };

// Holds a queue shared with the kernel, for one thread. Making one allocates, moving bytes does not.
class IoRing {
 public:
  // One request has kPiece bytes, and kDepth requests are in flight: the fastest by bench/disk (bench/results/disk.md).
  static constexpr size_t kPiece = size_t{2} << 20;
  static constexpr unsigned kDepth = 8;

  explicit IoRing(unsigned depth = kDepth, size_t piece = kPiece);
  ~IoRing();
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;

  // Returns the calling thread's ring, made at its first call.
  static IoRing& of_this_thread();

  // Returns whether the kernel, or the container, permits io_uring.
  bool usable() const { return usable_; }

  // Moves a range between a file and memory and returns how many bytes, from its beginning, are where they belong.
  // These are fewer than asked for if the file ends, a request failed or io_uring is refused: ordinary calls from there
  // on do the rest, or say why it cannot be done. Nothing is in flight when this returns. If writing a range fails,
  // bytes further on may have been written.
  size_t move(Transfer transfer, int descriptor, uint64_t offset, std::byte* data, size_t bytes);

 private:
  struct Range;
  void queue(const Range& range, size_t piece);
  void close();

  const unsigned depth_;
  const size_t piece_;
  io_uring ring_{};
  bool usable_ = false;
};

}  // namespace snug
