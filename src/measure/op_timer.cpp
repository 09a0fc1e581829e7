#include "measure/op_timer.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>

namespace snug {
namespace {

// What is only read lies in the arena's lower half, which stays as it was filled: sums do not grow from op to op.
constexpr uint64_t kHalf = 112u << 20, kArena = 2 * kHalf;
// Sets of operands together fill about so many bytes, beyond what a core's own caches hold.
constexpr uint64_t kRound = 24u << 20;
constexpr uint64_t kMostSets = 8;
// An op is launched until it has taken so long, but so often at least and at most.
constexpr double kEnough = 0.006;
constexpr size_t kLeastLaunches = 3, kMostLaunches = 64;
constexpr double kLong = 0.03;  // one launch of such an op, after the first, is enough

// Small numbers in every format: fp32 0.25, bf16 0.25 and 0.25 to 0.37.
void fill_floats(std::byte* bytes, uint64_t count) {
  auto* words = reinterpret_cast<uint16_t*>(bytes);
  for (uint64_t i = 0; i < count / 2; i++) words[i] = static_cast<uint16_t>(0x3e80 + i * 7919 % 61);
}

bool integers(const Operand& operand) { return operand.dtype == DType::I32; }

}  // namespace

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

OperandList& OperandList::add(Access access, DType dtype, const Shape& shape) {
  const auto buffer = static_cast<BufferId>(operands_.size());
  operands_.push_back({buffer, access, dtype, shape, 0, shape.cols()});
  return *this;
}

OperandList& OperandList::again(Access access) {
  operands_.push_back(operands_.back());
  operands_.back().access = access;
  return *this;
}

OpTimer::OpTimer(Clock clock) : clock_(clock) {
  plan_.offset = {0};
  plan_.reserved_bytes[index(Space::Device)] = kArena;
  set_.buffers.push_back({"arena", kArena});
  arena_ = std::make_unique<Arena>(backend_, plan_, ".");
  fill_floats(arena_->view({0, Access::Write, DType::U8, {int64_t{kArena}}, 0, int64_t{kArena}}, plan_, set_).data,
              kArena);
}

Work OpTimer::work_of(const Attrs& attrs, const OperandList& list) {
  Op op;
  op.attrs = attrs;
  op.operands = list.operands();
  return work(op);
}

std::vector<TensorView> OpTimer::place(std::vector<Operand>& operands, uint64_t& read_end, uint64_t& write_end) {
  std::vector<TensorView> views;
  std::map<BufferId, uint64_t> placed;
  auto writes = [&](BufferId id) {
    return std::ranges::any_of(operands, [id](const Operand& o) { return o.buffer == id && o.writes(); });
  };
  for (const Operand& operand : operands) {
    if (placed.contains(operand.buffer)) continue;
    uint64_t& end = writes(operand.buffer) ? write_end : read_end;
    placed[operand.buffer] = end;
    end += (operand.extent() + 255) / 256 * 256;
  }
  for (Operand& operand : operands) {
    operand.offset = placed.at(operand.buffer);
    operand.buffer = 0;
    views.push_back(arena_->view(operand, plan_, set_));
  }
  return views;
}

void OpTimer::prepare(std::span<const Operand> operands, std::span<const TensorView> views, const FillOperands& fill) {
  for (size_t i = 0; i < operands.size(); i++) {
    if (integers(operands[i]))
      for (int64_t j = 0; j < views[i].count(); j++) views[i].as<int32_t>()[j] = static_cast<int32_t>(j % 512);
    else if (operands[i].access == Access::ReadWrite)
      fill_floats(views[i].data, operands[i].extent());
  }
  if (fill) fill(views);
}

double OpTimer::seconds(const Attrs& attrs, const OperandList& list, const PassFacts& pass, const FillOperands& fill) {
  std::vector<Operand> operands = list.operands();
  if (const auto scratch = static_cast<int64_t>(facts_.scratch_bytes(attrs, operands)))
    operands.push_back({static_cast<BufferId>(operands.size()), Access::Write, DType::U8, {scratch}, 0, scratch});
  uint64_t bytes = 0;
  for (const Operand& operand : operands) bytes += operand.extent();
  const uint64_t sets = std::clamp<uint64_t>(kRound / std::max<uint64_t>(bytes, 1), 1, kMostSets);
  uint64_t read_end = 0, write_end = kHalf;
  std::vector<Launch> launches;
  for (uint64_t i = 0; i < sets; i++) {
    Op op{.attrs = attrs, .operands = operands, .waits = {}, .site = "measured"};
    const std::vector<TensorView> views = place(op.operands, read_end, write_end);
    check(read_end <= kHalf, "operands of {} to be timed need {} bytes", kind(attrs), read_end);
    prepare(op.operands, views, fill);
    launches.push_back(backend_.bind(op, views));
  }
  for (const Launch& launch : launches) launch(pass);
  std::vector<double> times;
  double total = 0;
  while (times.size() < kMostLaunches && (times.size() < kLeastLaunches || total < kEnough)) {
    const double begin = clock_();
    launches[times.size() % launches.size()](pass);
    times.push_back(clock_() - begin);
    total += times.back();
    if (times.back() > kLong) break;
  }
  std::ranges::sort(times);
  return times[times.size() / 4];
}

}  // namespace snug
