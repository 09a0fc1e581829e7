#include "measure/op_timer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <ctime>
#include <map>

#include "base/rng.h"
#include "program/emitter.h"

namespace snug {
namespace {

constexpr uint64_t kMostSets = 8;
constexpr uint64_t kNumbers = 64u << 20;  // bytes of random numbers, repeated to fill the room
// Where launches only enqueue, at most this many are timed together.
constexpr double kTogether = 32;
// An op is launched for this many seconds, with these least and most launches.
constexpr double kEnough = 0.006;
constexpr size_t kLeastLaunches = 3, kMostLaunches = 64;
constexpr double kLong = 0.03;  // one launch of such an op, after the first, is enough, and it needs no rounds

// A card is kept hot for these seconds before an op longer than kShort is timed, and before the first. Products keep it
// hot, with copies of an operand between them that stand for the rest of a step: a seventh of the time on an H100.
constexpr double kHeat = 0.04, kFirstHeat = 3, kShort = 5e-5;
constexpr int64_t kHotSize = 8192;
constexpr int kHotCopies = 3;
// Rounds have these figures: their number, the seconds for which the card is kept hot before each op and before the
// first, the seconds of an op's turn, and those of an op that is too short to draw as much power as the others.
constexpr size_t kRounds = 5;
constexpr double kBetween = 0.004, kBefore = 1, kTurn = 0.004, kTooShort = 1e-5;

// The arena begins with these bytes for integers, which must keep their values while other ops' operands change.
constexpr uint64_t kIntegers = 1u << 20;

// Fills with numbers that are normally distributed in bf16, and thus in the upper halves of fp32: sums of four bytes.
void fill_floats(std::byte* bytes, uint64_t count) {
  auto* words = reinterpret_cast<uint16_t*>(bytes);
  const Random random(1, RandomPurpose::DataOrder);
  std::array<uint32_t, 1024> bits;
  for (uint64_t i = 0; i < count / 2; i++) {
    if (i % bits.size() == 0) random.bits(i, bits);
    const uint32_t pairs = (bits[i % bits.size()] & 0x00ff00ff) + (bits[i % bits.size()] >> 8 & 0x00ff00ff);
    const auto sum = static_cast<float>((pairs & 0xffff) + (pairs >> 16));
    words[i] = std::bit_cast<uint16_t>(BFloat16((sum - 509.5f) / 148));
  }
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

OpTimer::OpTimer(Backend& backend, const OpFacts& facts, Clock clock, const Room& room)
    : backend_(backend), facts_(facts), clock_(clock), room_(room) {
  const uint64_t bytes = 2 * room.half;
  plan_.offset = {0};
  plan_.reserved_bytes[index(Space::Device)] = bytes;
  set_.buffers.push_back({"arena", bytes});
  arena_ = std::make_unique<Arena>(backend_, plan_, ".");
  std::vector<std::byte> numbers(kNumbers);
  fill_floats(numbers.data(), numbers.size());
  std::byte* const start = arena_->view({0, Access::Write, DType::U8, {1}, 0, 1}, plan_, set_).data;
  for (uint64_t at = 0; at < bytes; at += kNumbers)
    backend.write(start + at, numbers.data(), std::min(kNumbers, bytes - at));
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
    uint64_t& end = writes(operand.buffer) ? write_end : integers(operand) ? integers_ : read_end;
    placed[operand.buffer] = end;
    end += (operand.extent() + 255) / 256 * 256;
  }
  check(integers_ <= kIntegers, "integers of ops to be timed need {} bytes", integers_);
  for (Operand& operand : operands) {
    operand.offset = placed.at(operand.buffer);
    operand.buffer = 0;
    views.push_back(arena_->view(operand, plan_, set_));
  }
  return views;
}

void OpTimer::prepare(std::span<const Operand> operands, std::span<const TensorView> views, const FillOperands& fill) {
  std::vector<std::vector<std::byte>> bytes(operands.size());
  std::vector<TensorView> here(views.begin(), views.end());
  for (size_t i = 0; i < operands.size(); i++) {
    if (!integers(operands[i]) && operands[i].access != Access::ReadWrite) continue;
    bytes[i].resize(operands[i].extent());
    here[i].data = bytes[i].data();
    if (integers(operands[i]))
      for (int64_t j = 0; j < here[i].count(); j++) here[i].as<int32_t>()[j] = static_cast<int32_t>(j % 512);
    else
      fill_floats(bytes[i].data(), bytes[i].size());
  }
  if (fill) fill(here);
  for (size_t i = 0; i < bytes.size(); i++)
    if (!bytes[i].empty()) backend_.write(views[i].data, bytes[i].data(), bytes[i].size());
}

OpTimer::Bound OpTimer::bind(const Sample& sample) {
  const Op measured = with_scratch(sample.attrs, sample.list);
  uint64_t bytes = 0;
  for (const Operand& operand : measured.operands) bytes += operand.extent();
  const uint64_t sets = std::clamp<uint64_t>(room_.round / std::max<uint64_t>(bytes, 1), 1, kMostSets);
  uint64_t read_end = kIntegers, write_end = room_.half;
  Bound bound{.launches = {}, .pass = sample.pass};
  for (uint64_t i = 0; i < sets; i++) {
    Op op = measured;
    const std::vector<TensorView> views = place(op.operands, read_end, write_end);
    check(read_end <= room_.half && write_end <= 2 * room_.half,
          "operands of {} to be timed need {} bytes to read and {} to write", kind(sample.attrs), read_end,
          write_end - room_.half);
    prepare(op.operands, views, sample.fill);
    bound.launches.push_back(backend_.bind(op, views));
  }
  for (const Launch& launch : bound.launches) launch(bound.pass);
  if (Streams* const streams = backend_.streams()) {
    streams->finish();
    bound.once = burst(bound, 1);
  }
  return bound;
}

double OpTimer::burst(Bound& bound, size_t launches) {
  const double begin = clock_();
  for (size_t i = 0; i < launches; i++) bound.launches[bound.next++ % bound.launches.size()](bound.pass);
  if (backend_.streams()) backend_.streams()->finish();
  return (clock_() - begin) / static_cast<double>(launches);
}

double OpTimer::time(Bound& bound) {
  size_t together = 1;
  if (backend_.streams()) {
    together = static_cast<size_t>(std::clamp(kEnough / bound.once, 1.0, kTogether));
    if (!heat_.empty() && bound.once > kShort) heat(kHeat);
  }
  std::vector<double> times;
  double total = 0;
  while (times.size() < kMostLaunches && (times.size() < kLeastLaunches || total < kEnough)) {
    times.push_back(burst(bound, together));
    const double spent = times.back() * static_cast<double>(together);
    total += spent;
    if (spent > kLong) break;
  }
  std::ranges::sort(times);
  return times[times.size() / 4];
}

std::vector<double> OpTimer::time_in_rounds(std::vector<Bound>& bound, std::span<const size_t> which) {
  std::vector<std::vector<double>> times(which.size());
  heat(kBefore);
  for (size_t round = 0; round < kRounds; round++)
    for (size_t i = 0; i < which.size(); i++) {
      Bound& turn = bound[which[i]];
      heat(kBetween);
      times[i].push_back(burst(turn, static_cast<size_t>(std::clamp(kTurn / turn.once, 1.0, kTogether))));
    }
  std::vector<double> medians;
  for (std::vector<double>& of_op : times) {
    std::ranges::sort(of_op);
    medians.push_back(of_op[kRounds / 2]);
  }
  return medians;
}

void OpTimer::heat(double seconds) {
  for (const double begin = clock_(); clock_() - begin < seconds; backend_.streams()->finish())
    for (const Launch& launch : heat_) launch({});
}

void OpTimer::keep_hot() {
  const auto side = static_cast<uint64_t>(kHotSize) * sizeof(BFloat16) * static_cast<uint64_t>(kHotSize);
  const Shape square{kHotSize, kHotSize};
  Op op = with_scratch(Gemm{}, OperandList().r(DType::BF16, square).r(DType::BF16, square).w(DType::BF16, square));
  room_.half -= 2 * side;
  uint64_t read_end = 2 * room_.half, write_end = read_end + 2 * side;
  const std::vector<TensorView> views = place(op.operands, read_end, write_end);
  heat_.push_back(backend_.bind(op, views));
  const Op copy = with_scratch(Copy{}, OperandList().r(DType::BF16, square).w(DType::BF16, square));
  for (int i = 0; i < kHotCopies; i++) heat_.push_back(backend_.bind(copy, std::array{views[0], views[2]}));
  heat(kFirstHeat);
}

Op OpTimer::with_scratch(const Attrs& attrs, const OperandList& list) const {
  Op op;
  op.attrs = attrs;
  op.operands = list.operands();
  op.site = "measured";
  if (const auto scratch = static_cast<int64_t>(facts_.scratch_bytes(attrs, op.operands)))
    op.operands.push_back({static_cast<BufferId>(op.operands.size()), Access::Write, DType::U8, {scratch}, 0, scratch});
  return op;
}

double OpTimer::seconds(const Sample& sample) {
  integers_ = 0;
  Bound bound = bind(sample);
  return time(bound);
}

std::vector<double> OpTimer::seconds(std::span<const Sample> samples) {
  integers_ = 0;
  std::vector<Bound> bound;
  for (const Sample& sample : samples) bound.push_back(bind(sample));
  std::vector<double> seconds(samples.size());
  std::vector<size_t> in_rounds;
  for (size_t i = 0; i < samples.size(); i++)
    if (!heat_.empty() && bound[i].once > kTooShort && bound[i].once < kLong)
      in_rounds.push_back(i);
    else
      seconds[i] = time(bound[i]);
  if (in_rounds.empty()) return seconds;
  const std::vector<double> timed = time_in_rounds(bound, in_rounds);
  for (size_t i = 0; i < timed.size(); i++) seconds[in_rounds[i]] = timed[i];
  return seconds;
}

}  // namespace snug
