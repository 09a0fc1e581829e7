#include "program/sync.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace snug {
namespace {

// Holds the index of one op in each lane, in issue order; -1: none. Only a lane's last op matters, as the lane orders
// the others.
using LaneOps = std::array<int32_t, kLanes>;
constexpr LaneOps kNone = [] {
  LaneOps none{};
  none.fill(-1);
  return none;
}();

struct ByteSpan {
  size_t space = 0;
  uint64_t begin = 0, end = 0;
};

// Holds who used each byte of the arenas: the last op that wrote it, and by lane the last that has read it since. If a
// program is walked backwards, these are its first uses.
class Memory {
 public:
  struct Cell {
    uint64_t end = 0;
    int32_t writer = -1;
    LaneOps readers = kNone;
  };
  using Cells = std::map<uint64_t, Cell>;  // by begin, disjoint

  // Adds to `needed` the recorded ops that a read or write of these bytes must follow.
  void add_hazards(const ByteSpan& bytes, bool write, LaneOps& needed, const std::vector<Op>& ops) const {
    const Cells& cells = cells_[bytes.space];
    for (auto it = first_reaching(cells, bytes.begin); it != cells.end() && it->first < bytes.end; ++it)
      add_hazards(it->second, write, needed, ops);
  }

  static void add_hazards(const Cell& cell, bool write, LaneOps& needed, const std::vector<Op>& ops) {
    if (cell.writer >= 0) {
      int32_t& latest = needed[index(ops[static_cast<size_t>(cell.writer)].lane)];
      latest = std::max(latest, cell.writer);
    }
    if (write)
      for (size_t lane = 0; lane < kLanes; lane++) needed[lane] = std::max(needed[lane], cell.readers[lane]);
  }

  void read(const ByteSpan& bytes, size_t lane, int32_t op) {
    Cells& cells = cells_[bytes.space];
    auto it = first_from(cells, bytes.begin);
    for (uint64_t at = bytes.begin; at < bytes.end; at = it++->second.end) {
      if (it == cells.end() || it->first > at) {
        const uint64_t end = it == cells.end() ? bytes.end : std::min(bytes.end, it->first);
        it = cells.emplace_hint(it, at, Cell{end, -1, kNone});
      }
      if (it->second.end > bytes.end) split(cells, it, bytes.end);
      it->second.readers[lane] = op;
    }
  }

  void write(const ByteSpan& bytes, int32_t op) {
    if (bytes.begin == bytes.end) return;
    Cells& cells = cells_[bytes.space];
    auto it = first_from(cells, bytes.begin);
    if (it == cells.end() || it->first > bytes.begin) it = cells.emplace_hint(it, bytes.begin, Cell{});
    const auto own = it;
    while (it != cells.end() && it->first < bytes.end) {
      if (it->second.end > bytes.end) split(cells, it, bytes.end);
      it = it == own ? std::next(it) : cells.erase(it);
    }
    own->second = {bytes.end, op, kNone};
  }

  const Cells& cells(size_t space) const { return cells_[space]; }

 private:
  // Returns the first cell that ends beyond `begin`.
  template <class C>
  static auto first_reaching(C& cells, uint64_t begin) -> decltype(cells.begin()) {
    auto it = cells.upper_bound(begin);
    if (it != cells.begin() && std::prev(it)->second.end > begin) --it;
    return it;
  }

  // Makes `begin` a boundary between cells and returns the first cell that begins there or beyond.
  static Cells::iterator first_from(Cells& cells, uint64_t begin) {
    const auto it = first_reaching(cells, begin);
    return it == cells.end() || it->first >= begin ? it : split(cells, it, begin);
  }

  // Splits a cell at `at` and returns the part from `at` on.
  static Cells::iterator split(Cells& cells, Cells::iterator it, uint64_t at) {
    const Cell above = it->second;
    it->second.end = at;
    return cells.emplace_hint(std::next(it), at, above);
  }

  PerSpace<Cells> cells_;
};

// Records which ops have certainly finished when another starts, by their place in the lanes and by waits.
class Order {
 public:
  // Appends an op that waits for `given`. Returns those of `needed` that are not implied, which it then waits for too.
  LaneOps append(size_t lane, const LaneOps& given, LaneOps needed) {
    LaneOps finished = kNone;
    join(finished, last_of_lane_[lane], lane);
    for (size_t l = 0; l < kLanes; l++) join(finished, given[l], l);
    LaneOps kept = kNone;
    for (;;) {  // the latest first: an op implies earlier ones only
      const auto latest = static_cast<size_t>(std::ranges::max_element(needed) - needed.begin());
      const int32_t op = std::exchange(needed[latest], -1);
      if (op < 0) break;
      if (finished[latest] >= op) continue;
      kept[latest] = op;
      join(finished, op, latest);
    }
    last_of_lane_[lane] = static_cast<int32_t>(finished_.size());
    finished_.push_back(finished);
    return kept;
  }

 private:
  void join(LaneOps& finished, int32_t op, size_t lane) const {
    if (op < 0) return;
    const LaneOps& before = finished_[static_cast<size_t>(op)];
    for (size_t l = 0; l < kLanes; l++) finished[l] = std::max(finished[l], before[l]);
    finished[lane] = std::max(finished[lane], op);
  }

  std::vector<LaneOps> finished_;  // by op: of each lane the last that has finished before it starts
  LaneOps last_of_lane_ = kNone;
};

// Holds one program synchronised on its own, and what its neighbours in time must know of it.
struct Synced {
  const std::vector<Op>* ops = nullptr;
  std::vector<LaneOps> waits;  // by op: waits within the program
  Order order;
  Memory first_uses, last_uses;
};

Synced sync_within(const ProgramSet& set, const MemoryPlan& plan, const std::vector<Op>& ops) {
  auto bytes_of = [&](const Operand& operand) {
    const uint64_t begin = plan.offset[operand.buffer] + operand.offset;
    return ByteSpan{index(set.buffers[operand.buffer].space), begin, begin + operand.extent()};
  };
  auto record = [&](Memory& memory, OpId i) {
    for (const Operand& operand : ops[i].operands)
      if (operand.reads()) memory.read(bytes_of(operand), index(ops[i].lane), static_cast<int32_t>(i));
    for (const Operand& operand : ops[i].operands)
      if (operand.writes()) memory.write(bytes_of(operand), static_cast<int32_t>(i));
  };
  Synced synced;
  synced.ops = &ops;
  const auto size = static_cast<OpId>(ops.size());
  for (OpId i = 0; i < size; i++) {
    LaneOps needed = kNone;
    for (const Operand& operand : ops[i].operands)
      synced.last_uses.add_hazards(bytes_of(operand), operand.writes(), needed, ops);
    synced.waits.push_back(synced.order.append(index(ops[i].lane), kNone, needed));
    record(synced.last_uses, i);
  }
  for (OpId i = size; i-- > 0;) record(synced.first_uses, i);
  return synced;
}

// Returns, by op of `after`, the ops of `before` with which it conflicts on shared bytes, among the last uses in
// `before` and the first uses in `after`. These and the waits within each program order all other conflicts.
std::vector<LaneOps> hazards_between(const Synced& before, const Synced& after) {
  std::vector<LaneOps> needed(after.ops->size(), kNone);
  auto add = [&](int32_t op, bool write, const Memory::Cell& earlier) {
    if (op >= 0) Memory::add_hazards(earlier, write, needed[static_cast<size_t>(op)], *before.ops);
  };
  for (size_t space = 0; space < kSpaces.size(); space++) {
    const Memory::Cells &earlier = before.last_uses.cells(space), &later = after.first_uses.cells(space);
    for (auto a = earlier.begin(), b = later.begin(); a != earlier.end() && b != later.end();) {
      if (std::max(a->first, b->first) < std::min(a->second.end, b->second.end)) {
        add(b->second.writer, true, a->second);
        for (const int32_t reader : b->second.readers) add(reader, false, a->second);
      }
      a->second.end <= b->second.end ? ++a : ++b;
    }
  }
  return needed;
}

// Returns, by op of `after`, the ops of `before` that it must wait for when `after` directly follows.
std::vector<LaneOps> sync_between(const Synced& before, const Synced& after) {
  std::vector<LaneOps> waits = hazards_between(before, after);
  Order order = before.order;  // ops of `after` are numbered on from those of `before`
  const auto first = static_cast<int32_t>(before.ops->size());
  for (size_t i = 0; i < waits.size(); i++) {
    LaneOps within = after.waits[i];
    for (int32_t& op : within)
      if (op >= 0) op += first;
    waits[i] = order.append(index((*after.ops)[i].lane), within, waits[i]);
  }
  return waits;
}

void add_waits(Op& op, ProgramId program, const LaneOps& waits) {
  const size_t present = op.waits.size();
  for (const int32_t other : waits)
    if (other >= 0) op.waits.push_back({program, static_cast<OpId>(other)});
  std::ranges::sort(std::span(op.waits).subspan(present), {}, &Wait::op);
}

}  // namespace

void sync(ProgramSet& set, const MemoryPlan& plan) {
  std::vector<Synced> synced;
  for (const Program& program : set.programs) synced.push_back(sync_within(set, plan, program.ops));
  for (ProgramId p = 0; p < set.programs.size(); p++) {
    std::vector<Op>& ops = set.programs[p].ops;
    for (size_t i = 0; i < ops.size(); i++) {
      ops[i].waits.clear();
      add_waits(ops[i], p, synced[p].waits[i]);
    }
    for (const ProgramId before : set.predecessors(p)) {
      const std::vector<LaneOps> waits = sync_between(synced[before], synced[p]);
      for (size_t i = 0; i < ops.size(); i++) add_waits(ops[i], before, waits[i]);
    }
  }
}

}  // namespace snug
