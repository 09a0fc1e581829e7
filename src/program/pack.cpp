#include "program/pack.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <span>

#include "base/rounding.h"
#include "program/liveness.h"

namespace snug {
namespace {

// Holds a buffer to be placed. Sizes and offsets are multiples of the alignment.
struct Item {
  BufferId buffer = 0;
  uint64_t bytes = 0;
  std::span<const LiveSpan> spans;

  uint64_t lifetime() const {
    uint64_t ops = 0;
    for (const LiveSpan& span : spans) ops += span.end - span.begin;
    return ops;
  }
};

// Holds bytes [offset, end) of the arena.
struct ByteSpan {
  uint64_t offset = 0, end = 0;
};

// Returns the lowest place in the smallest gap between `neighbours` (ascending by offset) that holds `bytes`, or the
// place above all of them if no gap does.
uint64_t tightest_hole(std::span<const ByteSpan> neighbours, uint64_t floor, uint64_t bytes) {
  uint64_t best_gap = std::numeric_limits<uint64_t>::max(), best = 0, end = floor;
  for (const ByteSpan& taken : neighbours) {
    if (taken.offset > end && taken.offset - end >= bytes && taken.offset - end < best_gap) {
      best_gap = taken.offset - end;
      best = end;
    }
    end = std::max(end, taken.end);
  }
  return best_gap == std::numeric_limits<uint64_t>::max() ? end : best;
}

// Holds the buffers placed in one program, found by the ops at which they are live. In long programs most buffers are
// live for a few ops: a query about few ops looks at the pages of ops around them, any other at all buffers in order of
// offset.
class Placed {
 public:
  explicit Placed(size_t ops) : pages_(ops / kPage + 1) {}

  void add(const LiveSpan& span, const ByteSpan& bytes) {
    const Taken taken{span.begin, span.end, bytes};
    for (size_t page = span.begin / kPage; page <= (span.end - 1) / kPage; page++) {
      std::vector<Taken>& there = pages_[page];
      there.insert(std::ranges::upper_bound(there, taken, by_offset), taken);
    }
    recent_.push_back(taken);
  }

  // Appends the bytes of what is live at some op of the span, ascending by offset.
  void neighbours(const LiveSpan& span, std::vector<ByteSpan>& found) {
    const size_t first = span.begin / kPage, last = (span.end - 1) / kPage;
    if (kShortShare * (last - first + 1) >= pages_.size()) {
      sort_recent();
      append(sorted_, found, [&](const Taken& taken) { return taken.lives_in(span); });
      return;
    }
    const auto before = static_cast<std::ptrdiff_t>(found.size());
    for (size_t page = first; page <= last; page++) {
      const auto middle = static_cast<std::ptrdiff_t>(found.size());
      append(pages_[page], found, [&](const Taken& taken) {
        return taken.lives_in(span) & size_t{page == std::max(first, taken.begin / kPage)};
      });
      std::inplace_merge(found.begin() + before, found.begin() + middle, found.end(), lower);
    }
  }

 private:
  static constexpr size_t kPage = 64;        // ops
  static constexpr size_t kShortShare = 16;  // a span is short if it has fewer than one in this many of the pages

  struct Taken {
    OpId begin, end;
    ByteSpan bytes;

    size_t lives_in(const LiveSpan& span) const { return size_t{begin < span.end} & size_t{span.begin < end}; }
  };

  // Appends without branches, as which buffers are chosen is hard to predict and packing spends most of its time here.
  static void append(const std::vector<Taken>& from, std::vector<ByteSpan>& found, const auto& chosen) {
    size_t count = found.size();
    found.resize(count + from.size());
    for (const Taken& taken : from) {
      found[count] = taken.bytes;
      count += chosen(taken);
    }
    found.resize(count);
  }

  static bool lower(const ByteSpan& a, const ByteSpan& b) { return a.offset < b.offset; }
  static bool by_offset(const Taken& a, const Taken& b) { return lower(a.bytes, b.bytes); }

  void sort_recent() {
    std::ranges::sort(recent_, by_offset);
    const auto middle = static_cast<std::ptrdiff_t>(sorted_.size());
    sorted_.insert(sorted_.end(), recent_.begin(), recent_.end());
    std::inplace_merge(sorted_.begin(), sorted_.begin() + middle, sorted_.end(), by_offset);
    recent_.clear();
  }

  std::vector<std::vector<Taken>> pages_;  // all, once: merged in order of offset, and not merged yet
  std::vector<Taken> sorted_,
      recent_;  // every buffer once: those in order of offset, and those that sort_recent() has not merged yet
};

// Holds the arena of one space in each program, filled item by item.
class Layout {
 public:
  Layout(const ProgramSet& set, uint64_t floor) : floor_(floor) {
    for (const Program& program : set.programs) placed_.emplace_back(program.ops.size());
  }

  uint64_t place(const Item& item) {
    neighbours_.clear();
    for (const LiveSpan& span : item.spans) placed_[span.program].neighbours(span, neighbours_);
    if (item.spans.size() > 1) std::ranges::sort(neighbours_, {}, &ByteSpan::offset);
    const uint64_t offset = tightest_hole(neighbours_, floor_, item.bytes);
    for (const LiveSpan& span : item.spans) placed_[span.program].add(span, {offset, offset + item.bytes});
    return offset;
  }

 private:
  std::vector<Placed> placed_;  // by program
  std::vector<ByteSpan> neighbours_;
  uint64_t floor_;
};

// Says which items are placed first, which decides how well they fit. Size is best for most programs. Slots, in issue
// order and with room for the largest item in each, suits a ring of staging buffers whose last ones are shorter.
enum class Order : uint8_t { Size, SizeTimesLifetime, Lifetime, Slots };

double precedence(const Item& item, Order order) {
  const auto bytes = static_cast<double>(item.bytes), lifetime = static_cast<double>(item.lifetime());
  switch (order) {
    case Order::Size:
      return bytes;
    case Order::SizeTimesLifetime:
      return bytes * lifetime;
    case Order::Lifetime:
      return lifetime;
    case Order::Slots:
      return -static_cast<double>(item.spans[0].begin);
  }
  return 0;
}

// Returns indices of items in the order in which they are placed.
std::vector<size_t> ordered(const std::vector<Item>& items, Order order) {
  std::vector<double> weight;
  for (const Item& item : items) weight.push_back(precedence(item, order));
  std::vector<size_t> indices(items.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  std::ranges::stable_sort(indices, [&](size_t a, size_t b) {
    return weight[a] != weight[b] ? weight[a] > weight[b] : items[a].bytes > items[b].bytes;
  });
  return indices;
}

class Packer {
 public:
  Packer(const ProgramSet& set, uint64_t alignment) : set_(set), alignment_(alignment), spans_(live_spans(set)) {
    plan_.offset.assign(set.buffers.size(), 0);
    plan_.program_bytes.resize(set.programs.size());
  }

  MemoryPlan run() {
    for (const Space space : kSpaces) {
      const uint64_t floor = place_persistent(space);
      find_peak(space, floor);
      place_others(space, floor);
    }
    return std::move(plan_);
  }

 private:
  uint64_t aligned_bytes(BufferId b) const {
    const Buffer& buffer = set_.buffers[b];
    const uint64_t alignment = buffer.space == Space::Device ? alignment_ : std::max(alignment_, kDirectIo);
    check(buffer.bytes <= std::numeric_limits<uint64_t>::max() - alignment, "buffer '{}' has {} bytes", buffer.name,
          buffer.bytes);
    return round_up(buffer.bytes, alignment);
  }

  bool persistent(BufferId b, Space space) const {
    return set_.buffers[b].space == space && set_.buffers[b].life == Life::Persistent;
  }

  // Returns the byte from which the other buffers may be placed.
  uint64_t place_persistent(Space space) {
    uint64_t end = 0;
    for (BufferId b = 0; b < set_.buffers.size(); b++) {
      if (!persistent(b, space)) continue;
      plan_.offset[b] = end;
      end += aligned_bytes(b);
    }
    return end;
  }

  void place_others(Space space, uint64_t floor) {
    std::vector<Item> items;
    for (BufferId b = 0; b < set_.buffers.size(); b++)
      if (set_.buffers[b].space == space && !spans_[b].empty()) items.push_back({b, aligned_bytes(b), spans_[b]});

    uint64_t largest = 0;
    for (const Item& item : items) largest = std::max(largest, item.bytes);

    uint64_t& reserved = plan_.reserved_bytes[index(space)];
    reserved = std::numeric_limits<uint64_t>::max();
    const uint64_t live_peak = plan_.live_peak_bytes[index(space)];
    for (const Order order : {Order::Size, Order::SizeTimesLifetime, Order::Lifetime, Order::Slots}) {
      Layout layout(set_, floor);
      std::vector<uint64_t> offsets(items.size());
      for (const size_t i : ordered(items, order)) {
        Item item = items[i];
        if (order == Order::Slots) item.bytes = largest;
        offsets[i] = layout.place(item);
      }
      uint64_t top = floor;  // of what lies there: the last slot needs no more than its items
      for (size_t i = 0; i < items.size(); i++) top = std::max(top, offsets[i] + items[i].bytes);
      if (top < reserved) {
        reserved = top;
        for (size_t i = 0; i < items.size(); i++) plan_.offset[items[i].buffer] = offsets[i];
      }
      if (reserved - live_peak <= live_peak / 100) break;
    }
    note_program_bytes(space, floor, items);
  }

  void note_program_bytes(Space space, uint64_t floor, const std::vector<Item>& items) {
    for (PerSpace<uint64_t>& bytes : plan_.program_bytes) bytes[index(space)] = floor;
    for (const Item& item : items)
      for (const LiveSpan& span : item.spans) {
        uint64_t& bytes = plan_.program_bytes[span.program][index(space)];
        bytes = std::max(bytes, plan_.offset[item.buffer] + item.bytes);
      }
  }

  void find_peak(Space space, uint64_t floor) {
    std::vector<std::vector<int64_t>> change;  // by program and op: change of the live bytes
    for (const Program& program : set_.programs) change.emplace_back(program.ops.size() + 1, 0);
    for (BufferId b = 0; b < set_.buffers.size(); b++) {
      if (set_.buffers[b].space != space) continue;
      for (const LiveSpan& span : spans_[b]) {
        change[span.program][span.begin] += static_cast<int64_t>(aligned_bytes(b));
        change[span.program][span.end] -= static_cast<int64_t>(aligned_bytes(b));
      }
    }
    uint64_t& peak_bytes = plan_.live_peak_bytes[index(space)];
    MemoryPlan::Peak& peak = plan_.peak[index(space)];
    peak_bytes = floor;
    for (ProgramId p = 0; p < set_.programs.size(); p++) {
      uint64_t live = floor;
      for (OpId i = 0; i < set_.programs[p].ops.size(); i++) {
        live += static_cast<uint64_t>(change[p][i]);
        if (live > peak_bytes) peak_bytes = live, peak = {p, i, {}};
      }
    }
    for (BufferId b = 0; b < set_.buffers.size(); b++) {
      const bool is_live = std::ranges::any_of(spans_[b], [&](const LiveSpan& span) {
        return span.program == peak.program && span.begin <= peak.op && peak.op < span.end;
      });
      if (set_.buffers[b].space == space && (is_live || persistent(b, space))) peak.live.push_back(b);
    }
  }

  const ProgramSet& set_;
  uint64_t alignment_;
  std::vector<std::vector<LiveSpan>> spans_;  // by BufferId
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan pack(const ProgramSet& set, uint64_t alignment) {
  check(std::has_single_bit(alignment), "alignment is {}, expected a power of two", alignment);
  return Packer(set, alignment).run();
}

}  // namespace snug
