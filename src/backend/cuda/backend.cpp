#include "backend/cuda/backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "backend/cuda/check.h"
#include "backend/cuda/expect.h"
#include "backend/cuda/fused.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/kernels.h"
#include "backend/shortage.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/rounding.h"
#include "program/adapter.h"
#include "program/swiglu_gemm.h"
#include "program/swiglu_quantize.h"

namespace snug {
namespace {

using cuda::check_cuda;

// Binds an op by its kind.
struct Bind {
  const Op& op;
  std::span<const TensorView> views;
  cuda::Products& products;
  cudaStream_t stream;
  Operands operands{op, views};

  Launch operator()(const Gemm& a) const { return products.bind(a, views, stream); }
  Launch operator()(const Fp8Gemm& a) const {
    return cuda::warpgroups() ? products.bind(a, views, stream) : cuda::bind_fp8_product(a, views, stream);
  }
  Launch operator()(const AdaptedGemm& a) const { return fused(a); }
  Launch operator()(const AdapterBackward& a) const { return fused(a); }
  Launch operator()(const Attention& a) const { return cuda::bind_attention(a, operands, stream); }
  Launch operator()(const AttentionBackward& a) const { return cuda::bind_attention_backward(a, operands, stream); }
  Launch operator()(const CacheAppend& a) const { return cuda::bind_cache_append(a, operands, stream); }
  Launch operator()(const CachedAttention& a) const { return cuda::bind_cached_attention(a, operands, stream); }
  Launch operator()(const RowNorms&) const { return cuda::bind_row_norms(operands, stream); }
  Launch operator()(const AdaptedNorms& a) const { return cuda::bind_adapted_norms(a, operands, stream); }
  Launch operator()(const ScaleColumns& a) const { return cuda::bind_scale_columns(a, operands, stream); }
  Launch operator()(const ScaleColumnsBackward& a) const {
    return cuda::bind_scale_columns_backward(a, operands, stream);
  }
  Launch operator()(const SetRowNorms&) const { return cuda::bind_set_row_norms(operands, stream); }
  Launch operator()(const ColumnSum&) const { return cuda::bind_column_sum(operands, stream); }
  Launch operator()(const RopeTable& a) const { return cuda::bind_rope_table(a, operands, stream); }
  Launch operator()(const Rope& a) const { return cuda::bind_rope(a, operands, stream); }
  Launch operator()(const RmsNorm& a) const { return cuda::bind_rms_norm(a, operands, stream); }
  Launch operator()(const RmsNormBackward& a) const { return cuda::bind_rms_norm_backward(a, operands, stream); }
  Launch operator()(const LayerNorm& a) const { return cuda::bind_layer_norm(a, operands, stream); }
  Launch operator()(const LayerNormBackward& a) const { return cuda::bind_layer_norm_backward(a, operands, stream); }
  Launch operator()(const Activate& a) const { return cuda::bind_activate(a, operands, stream); }
  Launch operator()(const ActivateBackward& a) const { return cuda::bind_activate_backward(a, operands, stream); }
  Launch operator()(const SwiGlu& a) const { return cuda::bind_swiglu(a, operands, stream); }
  Launch operator()(const SwiGluBackward& a) const { return cuda::bind_swiglu_backward(a, operands, stream); }
  Launch operator()(const SwiGluGemm& a) const { return fused(a); }
  Launch operator()(const SwiGluGemmBackward& a) const { return fused(a); }
  Launch operator()(const SwiGluQuantize& a) const { return fused(a); }
  Launch operator()(const SwiGluBackwardQuantize& a) const { return fused(a); }
  Launch operator()(const Accumulate&) const { return cuda::bind_accumulate(operands, stream); }
  Launch operator()(const Rescale& a) const { return cuda::bind_rescale(a, operands, stream); }
  Launch operator()(const Cast&) const { return cuda::bind_cast(operands, stream); }
  Launch operator()(const Transpose&) const { return cuda::bind_transpose(operands, stream); }
  Launch operator()(const Copy&) const { return cuda::bind_copy(operands, stream); }
  Launch operator()(const Fill&) const { return cuda::bind_fill(operands, stream); }
  Launch operator()(const FitColumns&) const { return cuda::bind_fit_columns(operands, stream); }
  Launch operator()(const SplitMaster&) const { return cuda::bind_split_master(operands, stream); }
  Launch operator()(const JoinMaster&) const { return cuda::bind_join_master(operands, stream); }
  Launch operator()(const RandomFill& a) const { return cuda::bind_random_fill(a, operands, stream); }
  Launch operator()(const Dropout& a) const { return cuda::bind_dropout(a, operands, stream); }
  Launch operator()(const Quantize& a) const { return cuda::bind_quantize(a, operands, stream); }
  Launch operator()(const QuantizeScales&) const { return cuda::bind_quantize_scales(operands, stream); }
  Launch operator()(const Dequantize& a) const { return cuda::bind_dequantize(a, operands, stream); }
  Launch operator()(const SumRanks& a) const { return cuda::bind_sum_ranks(a, operands, stream); }
  Launch operator()(const TreeSum& a) const { return cuda::bind_tree_sum(a, operands, stream); }
  Launch operator()(const Embedding&) const { return cuda::bind_embedding(operands, stream); }
  Launch operator()(const EmbeddingNoise& a) const { return cuda::bind_embedding_noise(a, operands, stream); }
  Launch operator()(const EmbeddingBackward& a) const { return cuda::bind_embedding_backward(a, operands, stream); }
  Launch operator()(const ResizeRows& a) const { return cuda::bind_resize_rows(a, operands, stream); }
  Launch operator()(const ResizeRowsBackward& a) const { return cuda::bind_resize_rows_backward(a, operands, stream); }
  Launch operator()(const GatherRows&) const { return cuda::bind_gather_rows(operands, stream); }
  Launch operator()(const ScatterRows& a) const { return cuda::bind_scatter_rows(a, operands, stream); }
  Launch operator()(const CrossEntropy& a) const { return cuda::bind_cross_entropy(a, operands, stream); }
  Launch operator()(const TopTokens& a) const { return cuda::bind_top_tokens(a, operands, stream); }
  Launch operator()(const Distillation& a) const { return cuda::bind_distillation(a, operands, stream); }
  Launch operator()(const SoftCap& a) const { return cuda::bind_soft_cap(a, operands, stream); }
  Launch operator()(const LossSum& a) const { return cuda::bind_loss_sum(a, operands, stream); }
  Launch operator()(const NormPartials&) const { return cuda::bind_norm_partials(operands, stream); }
  Launch operator()(const ClipFactor& a) const { return cuda::bind_clip_factor(a, operands, stream); }
  Launch operator()(const AdamW& a) const { return cuda::bind_adamw(a, operands, stream); }
  Launch operator()(const Lion& a) const { return cuda::bind_lion(a, operands, stream); }
  Launch operator()(const Momentum& a) const { return cuda::bind_momentum(a, operands, stream); }
  Launch operator()(const Normalize&) const { return cuda::bind_normalize(operands, stream); }
  Launch operator()(const Descend& a) const { return cuda::bind_descend(a, operands, stream); }
  Launch operator()(const FactoredMeans& a) const { return cuda::bind_factored_means(a, operands, stream); }
  Launch operator()(const FactoredScales&) const { return cuda::bind_factored_scales(operands, stream); }
  Launch operator()(const SquareLimit& a) const { return cuda::bind_square_limit(a, operands, stream); }
  Launch operator()(const ScaledSquares& a) const { return cuda::bind_scaled_squares(a, operands, stream); }
  Launch operator()(const ScaleMatrix& a) const { return cuda::bind_scale_matrix(a, operands, stream); }
  Launch operator()(const ProjectedMoments& a) const { return cuda::bind_projected_moments(a, operands, stream); }
  Launch operator()(const ChannelScales&) const { return cuda::bind_channel_scales(operands, stream); }
  Launch operator()(const GrowthLimit& a) const { return cuda::bind_growth_limit(a, operands, stream); }
  Launch operator()(const ScheduleFreeAdamW& a) const { return cuda::bind_schedule_free_adamw(a, operands, stream); }
  Launch operator()(const ScheduleFreeAverage& a) const {
    return cuda::bind_schedule_free_average(a, operands, stream);
  }
  Launch operator()(const AllGather&) const { return refuse(); }  // of one rank only
  Launch operator()(const Exchange&) const { return refuse(); }
  Launch operator()(const HostTask&) const { return refuse(); }
  Launch operator()(const ReadFile&) const { return refuse(); }
  Launch operator()(const WriteFile&) const { return refuse(); }

  // Binds the op's single kernel if there is one, else one op after the other.
  template <class Kind>
  Launch fused(const Kind& a) const {
    cuda::expect_fused(a, views);
    if (const cuda::MaybeLaunch launch = cuda::bind_kernel(a, views, stream)) return *launch;
    return bind_ops(a, views, op.site, [this](const Op& part, std::span<const TensorView> part_views) {
      return std::visit(Bind{part, part_views, products, stream}, part.attrs);
    });
  }
  Launch refuse() const {
    internal_error("{}: '{}' is no op for the CUDA backend of one rank", op.site, kind(op.attrs));
  }
};

// Lists the lanes that the device serves; the others are the host's.
constexpr std::array kStreamLanes{Lane::Compute, Lane::Gather, Lane::Reduce, Lane::CopyIn, Lane::CopyOut};

// Returns a lane's priority. Work for which ranks wait goes first, and takes few of the card's processors; copies need
// none.
int priority_of(Lane lane) {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
  if (lane == Lane::CopyIn || lane == Lane::CopyOut) return least;
  return lane == Lane::Compute ? std::min(greatest + 1, least) : greatest;
}

class CudaStreams : public Streams {
 public:
  explicit CudaStreams(int device) : device_(device) {
    use_here();
    for (const Lane lane : kStreamLanes)
      check_cuda(cudaStreamCreateWithPriority(&streams_[index(lane)], cudaStreamNonBlocking, priority_of(lane)),
                 "a stream");
  }
  ~CudaStreams() override {
    for (const cudaEvent_t event : marks_) cudaEventDestroy(event);
    for (const cudaEvent_t event : stamps_) cudaEventDestroy(event);
    for (const Lane lane : kStreamLanes) cudaStreamDestroy(streams_[index(lane)]);
  }
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  void use_here() override { check_cuda(cudaSetDevice(device_), "choosing the device"); }
  Mark add_mark() override {
    marks_.push_back(new_event(cudaEventDisableTiming));
    return marks_.size() - 1;
  }
  void record(Lane lane, Mark mark) override { check_cuda(cudaEventRecord(marks_[mark], of(lane)), "an event"); }
  void wait(Lane lane, Mark mark) override { check_cuda(cudaStreamWaitEvent(of(lane), marks_[mark], 0), "a wait"); }
  void wait_here(Mark mark) override {
    if (wait_until_)
      wait_until_([&] { return done(cudaEventQuery(marks_[mark])); });
    else
      check_cuda(cudaEventSynchronize(marks_[mark]), "the device's work");
  }
  bool passed(Mark mark) override { return done(cudaEventQuery(marks_[mark])); }
  void finish() override {
    for (const Lane lane : kStreamLanes)
      if (wait_until_)
        wait_until_([&] { return done(cudaStreamQuery(of(lane))); });
      else
        check_cuda(cudaStreamSynchronize(of(lane)), "the device's work");
  }
  Stamp stamp(Lane lane) override {
    if (stamps_.empty()) {  // the first stamp is where the device's clock and the host's meet
      add_stamp(lane);
      check_cuda(cudaEventSynchronize(stamps_[0]), "the device's work");
      start_ = std::chrono::steady_clock::now();
    }
    add_stamp(lane);
    return stamps_.size() - 1;
  }
  int64_t when(Stamp stamp) override {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, stamps_[0], stamps_[stamp]), "an event's time");
    return std::chrono::nanoseconds(start_.time_since_epoch()).count() +
           static_cast<int64_t>(1e6 * static_cast<double>(milliseconds));
  }
  void wait_by(std::function<void(const std::function<bool()>&)> wait_until) { wait_until_ = std::move(wait_until); }

  bool serves(Lane lane) const { return streams_[index(lane)] != nullptr; }
  cudaStream_t of(Lane lane) const { return streams_[index(lane)]; }

 private:
  static cudaEvent_t new_event(unsigned flags) {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, flags), "an event");
    return event;
  }
  void add_stamp(Lane lane) {
    stamps_.push_back(new_event(cudaEventDefault));
    check_cuda(cudaEventRecord(stamps_.back(), of(lane)), "an event");
  }
  static bool done(cudaError_t status) {
    if (status == cudaErrorNotReady) return cudaGetLastError(), false;  // or a launch would report it
    check_cuda(status, "the device's work");
    return true;
  }

  int device_;
  std::function<void(const std::function<bool()>&)> wait_until_;  // empty: by the runtime
  std::array<cudaStream_t, kLanes> streams_{};
  std::vector<cudaEvent_t> marks_, stamps_;
  std::chrono::steady_clock::time_point start_;  // when stamps_[0] was done
};

}  // namespace

struct CudaBackend::State {
  State(int device, std::shared_ptr<ProductTable> table) : streams(device), products(std::move(table)) {}
  ~State() {
    for (const Lane lane : kStreamLanes) cudaStreamSynchronize(streams.of(lane));  // nothing may use what goes now
    cudaFree(device_bytes);
    if (host_bytes) cudaHostUnregister(host_bytes);
    if (host_bytes) munmap(host_bytes, host_size);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  CudaStreams streams;
  cuda::Products products;
  void *device_bytes = nullptr, *host_bytes = nullptr;
  uint64_t host_size = 0;
};

CudaBackend::CudaBackend(int device, std::shared_ptr<ProductTable> products)
    : state_(std::make_unique<State>(device, std::move(products))) {}
CudaBackend::~CudaBackend() = default;

CUstream_st* CudaBackend::stream(Lane lane) const { return state_->streams.of(lane); }
void CudaBackend::wait_by(std::function<void(const std::function<bool()>& done)> wait_until) {
  state_->streams.wait_by(std::move(wait_until));
}

namespace {

void* reserve_device(uint64_t bytes) {
  void* start = nullptr;
  check_cuda(cudaMalloc(&start, bytes), fmt::format("reserving {} bytes for the device space", bytes));
  check_cuda(cudaMemset(start, 0, bytes), "zeroing the device space");
  check_cuda(cudaDeviceSynchronize(), "zeroing the device space");  // lanes do not wait for it by themselves
  return start;
}

// Reserves the host space. All threads touch it and it is locked afterwards, which takes an eighth of the time of the
// driver's own allocation.
void* reserve_host(uint64_t bytes) {
  void* const start = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const std::string what = fmt::format("reserving {} bytes for the host space", bytes);
  if (start == MAP_FAILED && errno == ENOMEM) refuse_shortage(what, free_memory(), "host_memory");
  if (start == MAP_FAILED) device_error("{}: {}", what, std::strerror(errno));
  madvise(start, bytes, MADV_HUGEPAGE);  // advice only: small pages serve as well
  constexpr uint64_t kPiece = 64 << 20, kPage = 4096;
  parallel_for(static_cast<int64_t>(ceil_div(bytes, kPiece)), [&](int64_t piece) {
    const uint64_t begin = static_cast<uint64_t>(piece) * kPiece, end = std::min(bytes, begin + kPiece);
    for (uint64_t at = begin; at < end; at += kPage) static_cast<volatile char*>(start)[at] = 0;
  });
  const cudaError_t status = cudaHostRegister(start, bytes, cudaHostRegisterDefault);
  if (status != cudaSuccess) munmap(start, bytes);
  if (status == cudaErrorMemoryAllocation) refuse_shortage(what + ", locked", free_memory(), "host_memory");
  check_cuda(status, what);
  return start;
}

}  // namespace

std::byte* CudaBackend::reserve(Space space, uint64_t bytes) {
  check(space != Space::Disk, "{} bytes of the disk space were asked of the CUDA backend, it has memory only", bytes);
  void*& block = space == Space::Device ? state_->device_bytes : state_->host_bytes;
  check(!block, "the {} space was reserved twice", name(space));
  if (bytes == 0) return nullptr;
  state_->streams.use_here();
  block = space == Space::Device ? reserve_device(bytes) : reserve_host(bytes);
  if (space == Space::Host) state_->host_size = bytes;
  return static_cast<std::byte*>(block);
}

Launch CudaBackend::bind(const Op& op, std::span<const TensorView> views) {
  check(state_->streams.serves(op.lane), "{}: '{}' stands on lane {}, which the host serves", op.site, kind(op.attrs),
        name(op.lane));
  return std::visit(Bind{op, views, state_->products, state_->streams.of(op.lane)}, op.attrs);
}

void CudaBackend::read(void* to, const std::byte* from, uint64_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "reading an arena");
}

void CudaBackend::write(std::byte* to, const void* from, uint64_t bytes) {
  check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "writing to an arena");
  // Copies of pageable memory may return while bytes are on their way, and lanes do not wait for them by themselves.
  check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "writing to an arena");
}

std::optional<uint64_t> CudaBackend::device_bytes_taken() const {
  size_t free = 0, total = 0;
  state_->streams.use_here();
  check_cuda(cudaMemGetInfo(&free, &total), "asking for the device's memory");
  return total - free;
}

Streams* CudaBackend::streams() { return &state_->streams; }

}  // namespace snug
