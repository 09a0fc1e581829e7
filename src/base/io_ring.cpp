#include "base/io_ring.h"

#include <algorithm>
#include <cerrno>

namespace snug {

struct IoRing::Range {
  Transfer transfer;
  int descriptor;
  uint64_t offset;
  std::byte* data;
  size_t bytes;
};

IoRing::IoRing(unsigned depth, size_t piece) : depth_(depth), piece_(piece) {
  if (io_uring_queue_init(depth, &ring_, 0) != 0) return;
  usable_ = true;
  if (!(ring_.features & IORING_FEAT_RW_CUR_POS))
    close();  // the kernel is older than the requests used here (Linux 5.6)
}

IoRing::~IoRing() { close(); }

void IoRing::close() {
  if (usable_) io_uring_queue_exit(&ring_);
  usable_ = false;
}

IoRing& IoRing::of_this_thread() {
  thread_local IoRing ring;
  return ring;
}

void IoRing::queue(const Range& range, size_t piece) {
  const size_t begin = piece * piece_;
  const auto bytes = static_cast<unsigned>(std::min(piece_, range.bytes - begin));
  io_uring_sqe* request = io_uring_get_sqe(&ring_);  // never null: the queue has room for `depth_`
  if (range.transfer == Transfer::Read)
    io_uring_prep_read(request, range.descriptor, range.data + begin, bytes, range.offset + begin);
  else
    io_uring_prep_write(request, range.descriptor, range.data + begin, bytes, range.offset + begin);
  io_uring_sqe_set_data64(request, piece);
}

size_t IoRing::move(Transfer transfer, int descriptor, uint64_t offset, std::byte* data, size_t bytes) {
  const Range range{transfer, descriptor, offset, data, bytes};
  size_t end = bytes;  // no request before this is known to have failed
  size_t next = 0;     // index of the next piece
  unsigned queued = 0, in_flight = 0;
  bool refused = false;
  while (usable_) {
    for (; !refused && next * piece_ < end && queued + in_flight < depth_; next++, queued++) queue(range, next);
    if (in_flight == 0 && (queued == 0 || refused)) break;
    io_uring_cqe* first = nullptr;
    const int submitted = refused ? io_uring_wait_cqe(&ring_, &first) : io_uring_submit_and_wait(&ring_, 1);
    if (submitted > 0) {
      queued -= static_cast<unsigned>(submitted);
      in_flight += static_cast<unsigned>(submitted);
    } else if (submitted < 0 && submitted != -EINTR && !refused) {
      refused = true;  // queued requests stay there: only those in flight are waited for
      end = std::min(end, (next - queued) * piece_);
    }
    unsigned head = 0, seen = 0;
    io_uring_cqe* done = nullptr;
    io_uring_for_each_cqe(&ring_, head, done) {
      const size_t begin = static_cast<size_t>(io_uring_cqe_get_data64(done)) * piece_;
      const auto moved = static_cast<size_t>(std::max(done->res, 0));
      if (moved < std::min(piece_, bytes - begin)) end = std::min(end, begin + moved);
      seen++;
    }
    io_uring_cq_advance(&ring_, seen);
    in_flight -= seen;
  }
  if (refused) close();
  return usable_ || refused ? end : 0;
}

}  // namespace snug
