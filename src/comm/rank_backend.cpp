#include "comm/rank_backend.h"

#include <exception>
#include <thread>

#include "backend/cuda/check.h"
#include "comm/device_link.h"

namespace snug {
namespace {

constexpr std::array kCollectiveLanes{Lane::Gather, Lane::Reduce};

}  // namespace

bool reaches(int card, int other) {
  int reached = 1;
  if (card != other) cuda::check_cuda(cudaDeviceCanAccessPeer(&reached, card, other), "a peer's memory");
  return reached != 0;
}

bool cards_reach_each_other(int count) {
  for (int card = 0; card < count; card++)
    for (int other = 0; other < count; other++)
      if (!reaches(card, other)) return false;
  return true;
}

void take_own_row(const ExchangeStep& step, const Topology& here, cudaStream_t stream) {
  const std::byte* const row = step.row_for(here);
  std::byte* const place = step.row_from(here.place(step.who));
  if (row != place)
    cuda::check_cuda(cudaMemcpyAsync(place, row, step.bytes, cudaMemcpyDeviceToDevice, stream), "a rank's own row");
}

RankBackend::RankBackend(int device, std::shared_ptr<ProductTable> products, Comm& comm, CardTransport transport)
    : CudaBackend(device, std::move(products)), comm_(comm), exceptions_(std::uncaught_exceptions()) {
  wait_by([&comm](const std::function<bool()>& done) { comm.wait_until(done); });
  const std::shared_ptr<PeerHub> hub = transport.route == Route::Copies ? meet_peers(comm) : nullptr;
  for (const Lane lane : kCollectiveLanes)
    links_[index(lane)] =
        hub ? peer_link(comm, hub, lane, stream(lane)) : nccl_link(comm, stream(lane), transport.nccl_blocks);
}

RankBackend::~RankBackend() {
  try {
    if (std::uncaught_exceptions() <= exceptions_) {
      streams()->finish();
      for (const Lane lane : kCollectiveLanes) links_[index(lane)]->close();
    }
  } catch (const std::exception&) {
    // Another rank is gone at the very end: what has been done is done, and the connection is given up.
  }
  std::vector<std::jthread> ending;
  for (const Lane lane : kCollectiveLanes) ending.emplace_back([&link = links_[index(lane)]] { link.reset(); });
}

Launch RankBackend::bind(const Op& op, std::span<const TensorView> views) {
  const auto launch = [&](const ExchangeStep& step) {
    DeviceLink* const link = links_[index(op.lane)].get();
    check(link, "{}: '{}' stands on lane {}, expected Gather or Reduce", op.site, kind(op.attrs), name(op.lane));
    return link->bind(step);
  };
  if (const auto* gather = std::get_if<AllGather>(&op.attrs))
    return launch(gather_of(comm_.topology(), gather->ranks, views[0], views[1]));
  if (std::holds_alternative<Exchange>(op.attrs)) return launch(exchange_of(comm_.topology(), views[0], views[1]));
  return CudaBackend::bind(op, views);
}

}  // namespace snug
