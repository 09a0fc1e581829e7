#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/shared_library.h"
#include "comm/device_link.h"
#include "comm/rank_backend.h"

namespace snug {
namespace {

constexpr int kOldest = NCCL_VERSION(2, 26, 0);  // from which on it orders what lanes launch
static_assert(NCCL_VERSION_CODE >= kOldest, "NCCL 2.26 or later");

// Holds the library's functions that snug calls. It is opened when cards are first connected.
struct Nccl {
  Nccl() {
    library.get("ncclAllGather", all_gather);
    library.get("ncclCommAbort", comm_abort);
    library.get("ncclCommDestroy", comm_destroy);
    library.get("ncclCommFinalize", comm_finalize);
    library.get("ncclCommGetAsyncError", comm_get_async_error);
    library.get("ncclCommInitRankConfig", comm_init_rank_config);
    library.get("ncclGetErrorString", get_error_string);
    library.get("ncclGetLastError", get_last_error);
    library.get("ncclGetUniqueId", get_unique_id);
    library.get("ncclGetVersion", get_version);
    library.get("ncclGroupEnd", group_end);
    library.get("ncclGroupStart", group_start);
    library.get("ncclRecv", recv);
    library.get("ncclSend", send);
    if (get_version(&version) != ncclSuccess || version < kOldest)
      device_error("NCCL's version is {}, expected {} or later", version_text(version), version_text(kOldest));
  }

  SharedLibrary library{{"libnccl.so.2", SNUG_NCCL},
                        "NCCL comes with NVIDIA's package libnccl2, or with `pip install nvidia-nccl-cu13`"};
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclSend) send = nullptr;
  int version = 0;  // 22809
};

const Nccl& nccl() {
  static const Nccl library;
  return library;
}

constexpr std::chrono::seconds kLongestStart{120}, kLastWords{3};

constexpr const char* kSyncPoint = "the connection of all GPUs";

// Connects one lane; lanes do not wait for each other.
class NcclLink final : public DeviceLink {
 public:
  NcclLink(Comm& comm, cudaStream_t stream) : comm_(comm), stream_(stream) {}
  ~NcclLink() override {
    if (link_) closed_ ? nccl_.comm_destroy(link_) : nccl_.comm_abort(link_);
  }

  void open(int blocks) {
    const Topology& here = comm_.topology();
    ncclUniqueId id{};
    if (here.rank == 0) expect(nccl_.get_unique_id(&id), "a connection's name");
    id = allgather_host(comm_, id, kSyncPoint)[0];
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = static_cast<int>(comm_.allgather_host(static_cast<uint64_t>(blocks), kSyncPoint)[0]);
    constexpr std::string_view kWhat = "connecting the GPUs of all ranks";
    const auto begin = std::chrono::steady_clock::now();
    settle(nccl_.comm_init_rank_config(&link_, here.ranks, id, here.rank, &config), kWhat, [&] {
      if (std::chrono::steady_clock::now() - begin > kLongestStart)
        device_error("{}: not done after {} s; NCCL_DEBUG=INFO shows how far it came", kWhat, kLongestStart.count());
      comm_.heartbeat();  // this rank works rather than waits, and may take long
    });
  }
  Launch bind(const ExchangeStep& step) override {
    return [this, step](const RuntimeScalars&) { enqueue(step); };
  }
  void close() override {
    settle(nccl_.comm_finalize(link_), "ending the connection of GPUs");
    closed_ = true;
  }

 private:
  void enqueue(const ExchangeStep& step) {
    if (step.bytes == 0) return;
    if (gathers_all(step)) {
      settle(nccl_.all_gather(step.send, step.receive, step.bytes, ncclUint8, link_, stream_), "an all-gather");
      return;
    }
    const Topology& here = comm_.topology();
    const int ranks = here.count(step.who), own = here.place(step.who);
    take_own_row(step, here, stream_);
    // The group is closed whatever happens in it, as calls after an open one only join it.
    ncclResult_t first = nccl_.group_start();
    const auto keep = [&](ncclResult_t result) {
      if (good(first)) first = result;
    };
    for (int i = 1; i < ranks && good(first); i++) {
      const int to = here.rank_at(step.who, (own + i) % ranks), place = (own + ranks - i) % ranks;
      keep(nccl_.send(step.row_for(here.seen_by(to)), step.bytes, ncclUint8, to, link_, stream_));
      keep(nccl_.recv(step.row_from(place), step.bytes, ncclUint8, here.rank_at(step.who, place), link_, stream_));
    }
    const ncclResult_t end = nccl_.group_end();
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
    device_error("{} with {} ranks: NCCL says {} ({})", what, comm_.topology().ranks, nccl_.get_error_string(result),
                 nccl_.get_last_error(link_));
  }
  // Returns when the call has done its work on the host, such as enqueuing.
  void settle(ncclResult_t result, std::string_view what, const Heartbeat& heartbeat = {}) {
    if (result == ncclInProgress)
      comm_.wait_until([&] {
        call(heartbeat);
        expect(nccl_.comm_get_async_error(link_, &result), what);
        return result != ncclInProgress;
      });
    expect(result, what);
  }

  Comm& comm_;
  cudaStream_t stream_;
  const Nccl& nccl_ = nccl();
  ncclComm_t link_ = nullptr;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<DeviceLink> nccl_link(Comm& comm, cudaStream_t stream, int blocks) {
  auto link = std::make_unique<NcclLink>(comm, stream);
  link->open(blocks);
  return link;
}

std::string nccl_version() { return version_text(nccl().version); }

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
