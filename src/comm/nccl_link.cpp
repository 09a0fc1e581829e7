#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "comm/device_link.h"
#include "comm/rank_backend.h"

namespace snug {
namespace {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0), "NCCL 2.26 or later, which orders what lanes launch");

constexpr std::chrono::seconds kLongestStart{120}, kLastWords{3};

constexpr const char* kSyncPoint = "the connection of all GPUs";

// Connects one lane; lanes do not wait for each other.
class NcclLink final : public DeviceLink {
 public:
  NcclLink(Comm& comm, cudaStream_t stream) : comm_(comm), stream_(stream) {}
  ~NcclLink() override {
    if (link_) closed_ ? ncclCommDestroy(link_) : ncclCommAbort(link_);
  }

  void open(int blocks) {
    const Topology& here = comm_.topology();
    ncclUniqueId id{};
    if (here.rank == 0) expect(ncclGetUniqueId(&id), "a connection's name");
    id = allgather_host(comm_, id, kSyncPoint)[0];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = static_cast<int>(comm_.allgather_host(static_cast<uint64_t>(blocks), kSyncPoint)[0]);
    constexpr std::string_view kWhat = "connecting the GPUs of all ranks";
    const auto begin = std::chrono::steady_clock::now();
    settle(ncclCommInitRankConfig(&link_, here.ranks, id, here.rank, &config), kWhat, [&] {
      if (std::chrono::steady_clock::now() - begin > kLongestStart)
        device_error("{}: not done after {} s; NCCL_DEBUG=INFO shows how far it came", kWhat, kLongestStart.count());
      comm_.heartbeat();  // this rank works rather than waits, and may take long
    });
  }
  Launch bind(const ExchangeStep& step) override {
    return [this, step](const RuntimeScalars&) { enqueue(step); };
  }
  void close() override {
    settle(ncclCommFinalize(link_), "ending the connection of GPUs");
    closed_ = true;
  }

 private:
  void enqueue(const ExchangeStep& step) {
    if (step.bytes == 0) return;
    if (gathers_all(step)) {
      settle(ncclAllGather(step.send, step.receive, step.bytes, ncclUint8, link_, stream_), "an all-gather");
      return;
    }
    const Topology& here = comm_.topology();
    const int ranks = here.count(step.who), own = here.place(step.who);
    take_own_row(step, here, stream_);
    // The group is closed whatever happens in it, as calls after an open one only join it.
    ncclResult_t first = ncclGroupStart();
    const auto keep = [&](ncclResult_t result) {
      if (good(first)) first = result;
    };
    for (int i = 1; i < ranks && good(first); i++) {
      const int to = here.rank_at(step.who, (own + i) % ranks), place = (own + ranks - i) % ranks;
      keep(ncclSend(step.row_for(here.seen_by(to)), step.bytes, ncclUint8, to, link_, stream_));
      keep(ncclRecv(step.row_from(place), step.bytes, ncclUint8, here.rank_at(step.who, place), link_, stream_));
    }
    const ncclResult_t end = ncclGroupEnd();
    expect(first, "an exchange");
    settle(end, "an exchange");
  }

  // Returns whether every rank sends its one row to all, by their numbers.
  bool gathers_all(const ExchangeStep& step) const {
    const Topology& here = comm_.topology();
    if (here.count(step.who) != here.ranks || step.send_stride != 0 || step.receive_stride != step.bytes) return false;
    for (int rank = 0; rank < here.ranks; rank++)
      if (here.rank_at(step.who, rank) != rank) return false;
    return true;
  }

  static bool good(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

  // Checks a result. Where another rank gives up, NCCL may find its connection closed before that rank has said why.
  void expect(ncclResult_t result, std::string_view what) const {
    if (good(result)) [[likely]]
      return;
    const auto begin = std::chrono::steady_clock::now();
    comm_.wait_until([&] { return std::chrono::steady_clock::now() - begin > kLastWords; });
    device_error("{} with {} ranks: NCCL says {} ({})", what, comm_.topology().ranks, ncclGetErrorString(result),
                 ncclGetLastError(link_));
  }
  // Returns when the call has done its work on the host, such as enqueuing.
  void settle(ncclResult_t result, std::string_view what, const Heartbeat& heartbeat = {}) {
    if (result == ncclInProgress)
      comm_.wait_until([&] {
        call(heartbeat);
        expect(ncclCommGetAsyncError(link_, &result), what);
        return result != ncclInProgress;
      });
    expect(result, what);
  }

  Comm& comm_;
  cudaStream_t stream_;
  ncclComm_t link_ = nullptr;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<DeviceLink> nccl_link(Comm& comm, cudaStream_t stream, int blocks) {
  auto link = std::make_unique<NcclLink>(comm, stream);
  link->open(blocks);
  return link;
}

// Multicast stays off: on machines that several jobs share it may take all their cards out of service. Work of two
// lanes starts in the order in which it was enqueued, which is equal on all ranks: none waits for a card that is full
// of work that waits for it.
void prepare_nccl() {
  for (const auto& [name, value] : {std::pair("NCCL_NVLS_ENABLE", "0"), {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}) {
    const char* const set = std::getenv(name);
    if (!set || std::strcmp(set, value) != 0) setenv(name, value, 1);
  }
}

}  // namespace snug
