#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "backend/cuda/check.h"
#include "comm/device_link.h"

namespace snug {
namespace {

using cuda::check_cuda;

// Ranks that give up wait this long for others that still read their memory.
constexpr std::chrono::seconds kLastReads{3};

constexpr const char* kSyncPoint = "the connection of all GPUs";

// Returns a number that all ranks of a process share, and no other process has.
uint64_t process_name() {
  static const uint64_t name = (static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}();
  return name;
}

}  // namespace

// Holds what the ranks of a process share: by lane and rank, how far it is with what it enqueues.
class PeerHub {
 public:
  explicit PeerHub(int ranks) : ranks_(static_cast<size_t>(ranks)), posts_(kLanes * ranks_) {}

  // Describes a rank's call begun last. An event is recorded before its count says so. If it is recorded for a later
  // call before another rank waited for it, as groups of ranks may do, that rank waits for more of that stream, never
  // for less.
  struct Post {
    ~Post() {
      for (const cudaEvent_t event : {ready, copied})
        if (event) cudaEventDestroy(event);
    }
    ExchangeStep step;
    cudaEvent_t ready = nullptr, copied = nullptr;  // its rows are ready; it has copied all of the others' rows
    std::atomic<uint64_t> begun = 0, finished = 0;  // calls
  };
  Post& post(Lane lane, int rank) { return posts_[index(lane) * ranks_ + static_cast<size_t>(rank)]; }

  // Counts ranks whose work on the lane has ended, in success or error.
  std::atomic<size_t>& ended(Lane lane) { return ended_[index(lane)]; }
  bool all_ended(Lane lane) { return ended(lane) >= ranks_; }

 private:
  size_t ranks_;
  std::vector<Post> posts_;
  std::array<std::atomic<size_t>, kLanes> ended_{};
};

namespace {

// Streams wait only for what is already enqueued: the host enqueues a wait when the other rank's host has enqueued what
// is waited for. So a device comes to the end of what it was given, whatever happens to the other ranks' hosts, and the
// host may wait for it at any time, as loading a kernel onto a card does. A device that hangs holds up all others, and
// with them the threads that wait for theirs: the process is then ended from outside these threads (api/launch.h).
class PeerLink final : public DeviceLink {
 public:
  PeerLink(Comm& comm, std::shared_ptr<PeerHub> hub, Lane lane, cudaStream_t stream)
      : comm_(comm), hub_(std::move(hub)), lane_(lane), stream_(stream), mine_(hub_->post(lane, comm.topology().rank)) {
    for (cudaEvent_t* event : {&mine_.ready, &mine_.copied})
      check_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "an event");
  }
  ~PeerLink() override {
    cudaStreamSynchronize(stream_);
    hub_->ended(lane_)++;
    const auto begin = std::chrono::steady_clock::now();
    while (!closed_ && !hub_->all_ended(lane_) && std::chrono::steady_clock::now() - begin < kLastReads)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  Launch bind(const ExchangeStep& step) override {
    return [this, step](const RuntimeScalars&) { enqueue(step); };
  }
  void close() override { closed_ = true; }

 private:
  // Each rank begins with the one after it, so that not all read from one.
  void enqueue(const ExchangeStep& step) {
    if (step.bytes == 0) return;
    const Topology& here = comm_.topology();
    const int ranks = here.count(step.who), own = here.place(step.who);
    calls_++;
    mine_.step = step;
    check_cuda(cudaEventRecord(mine_.ready, stream_), "a rank's rows");
    mine_.begun = calls_;
    take_own_row(step, here, stream_);
    for (int i = 1; i < ranks; i++) {
      const int place = (own + i) % ranks, rank = here.rank_at(step.who, place);
      const PeerHub::Post& post = hub_->post(lane_, rank);
      comm_.wait_until([&] { return post.begun >= calls_; });
      check(post.step.bytes == step.bytes, "a collective of {} bytes on rank {}, and of {} on rank {}", step.bytes,
            here.rank, post.step.bytes, rank);
      check_cuda(cudaStreamWaitEvent(stream_, post.ready, 0), "another rank's rows");
      check_cuda(cudaMemcpyAsync(step.row_from(place), post.step.row_for(here), step.bytes, cudaMemcpyDefault, stream_),
                 "another rank's row");
    }
    check_cuda(cudaEventRecord(mine_.copied, stream_), "a rank's copies");
    mine_.finished = calls_;
    for (int i = 1; i < ranks; i++) {
      const PeerHub::Post& post = hub_->post(lane_, here.rank_at(step.who, (own + i) % ranks));
      comm_.wait_until([&] { return post.finished >= calls_; });
      check_cuda(cudaStreamWaitEvent(stream_, post.copied, 0), "another rank's copies");
    }
  }

  Comm& comm_;
  std::shared_ptr<PeerHub> hub_;
  Lane lane_;
  cudaStream_t stream_;
  PeerHub::Post& mine_;
  uint64_t calls_ = 0;
  bool closed_ = false;
};

}  // namespace

std::shared_ptr<PeerHub> meet_peers(Comm& comm) {
  const Topology& here = comm.topology();
  for (const uint64_t name : comm.allgather_host(process_name(), kSyncPoint))
    if (name != process_name()) return nullptr;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "choosing the device");
  const std::span<const uint64_t> gathered = comm.allgather_host(static_cast<uint64_t>(device), kSyncPoint);
  const std::vector<uint64_t> devices(gathered.begin(), gathered.end());
  const bool reached =
      std::ranges::all_of(devices, [&](uint64_t other) { return reaches(device, static_cast<int>(other)); });
  for (const uint64_t one : comm.allgather_host(static_cast<uint64_t>(reached), kSyncPoint))
    if (!one) return nullptr;
  for (const uint64_t other : devices) {
    if (static_cast<int>(other) == device) continue;
    const cudaError_t status = cudaDeviceEnablePeerAccess(static_cast<int>(other), 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();  // or a launch would report this error
    else
      check_cuda(status, "a peer's memory");
  }
  // Rank 0's hub goes when all have theirs. If a rank fails before that the hub stays, as others may use it, and the
  // job is over.
  const auto* const own = here.rank == 0 ? new auto(std::make_shared<PeerHub>(here.ranks)) : nullptr;
  const uint64_t first = comm.allgather_host(reinterpret_cast<uint64_t>(own), kSyncPoint)[0];
  std::shared_ptr<PeerHub> hub = *reinterpret_cast<const std::shared_ptr<PeerHub>*>(first);
  comm.barrier(kSyncPoint);
  delete own;
  return hub;
}

std::unique_ptr<DeviceLink> peer_link(Comm& comm, std::shared_ptr<PeerHub> hub, Lane lane, cudaStream_t stream) {
  return std::make_unique<PeerLink>(comm, std::move(hub), lane, stream);
}

}  // namespace snug
