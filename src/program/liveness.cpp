#include "program/liveness.h"

#include <algorithm>
#include <optional>
#include <span>

namespace snug {
namespace {

// Holds a set of bytes of one buffer.
class ByteRanges {
 public:
  void add(uint64_t begin, uint64_t end) {
    if (begin == end) return;
    auto first = std::ranges::find_if(ranges_, [&](const Range& r) { return r.end >= begin; });
    auto last = first;
    for (; last != ranges_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    ranges_.insert(ranges_.erase(first, last), {begin, end});
  }

  bool contains(uint64_t begin, uint64_t end) const {
    return begin == end ||
           std::ranges::any_of(ranges_, [&](const Range& r) { return r.begin <= begin && end <= r.end; });
  }

  bool contains(const ByteRanges& other) const {
    return std::ranges::all_of(other.ranges_, [&](const Range& r) { return contains(r.begin, r.end); });
  }

 private:
  struct Range {
    uint64_t begin, end;
  };
  std::vector<Range> ranges_;  // ascending, with gaps between them
};

// Describes a read or a write of a buffer's bytes [begin, end).
struct Use {
  ProgramId program = 0;
  OpId op = 0, retired = 0;  // reserved for ops [op, retired)
  bool write = false;
  bool dense = false;  // touches every byte of its range
  uint64_t begin = 0, end = 0;
};
using Uses = std::span<const Use>;

// Returns the uses of every buffer in the order of programs and ops; an op reads before it writes.
std::vector<std::vector<Use>> collect_uses(const ProgramSet& set) {
  std::vector<std::vector<Use>> uses(set.buffers.size());
  for (ProgramId p = 0; p < set.programs.size(); p++) {
    const std::vector<Op>& ops = set.programs[p].ops;
    for (OpId i = 0; i < ops.size(); i++) {
      const Op& op = ops[i];
      check(op.retire >= i && op.retire < ops.size(), "op {} '{}' of {} ops retires at op {}", i, op.site, ops.size(),
            op.retire);
      for (const bool write : {false, true})
        for (const Operand& operand : op.operands) {
          if (!(write ? operand.writes() : operand.reads())) continue;
          const Buffer& buffer = set.buffers[operand.buffer];
          const uint64_t bytes = operand.extent();
          check(operand.offset <= buffer.bytes && bytes <= buffer.bytes - operand.offset,
                "op '{}' uses bytes [{}, {}) of buffer '{}', which has {}", op.site, operand.offset,
                operand.offset + bytes, buffer.name, buffer.bytes);
          const bool dense = operand.shape.rows() <= 1 || operand.row_stride == operand.shape.cols();
          uses[operand.buffer].push_back({p, i, op.retire + 1, write, dense, operand.offset, operand.offset + bytes});
        }
    }
  }
  return uses;
}

[[noreturn]] void unwritten(const ProgramSet& set, const Use& use, const Buffer& buffer) {
  const Program& program = set.programs[use.program];
  internal_error("{}: op {} '{}' reads bytes [{}, {}) of buffer '{}', which no earlier op writes", program.name, use.op,
                 program.ops[use.op].site, use.begin, use.end, buffer.name);
}

// Returns the first read of bytes that no op of the program has written before, or null.
const Use* first_unwritten(Uses uses) {
  ByteRanges written;
  for (const Use& use : uses) {
    if (use.write)
      written.add(use.begin, use.end);
    else if (!written.contains(use.begin, use.end))
      return &use;
  }
  return nullptr;
}

LiveSpan span_of_program_buffer(const ProgramSet& set, const Buffer& buffer, Uses uses) {
  LiveSpan span{uses[0].program, uses[0].op, 0};
  for (const Use& use : uses) {
    check(use.program == span.program, "buffer '{}' is used by programs '{}' and '{}' but not carried", buffer.name,
          set.programs[span.program].name, set.programs[use.program].name);
    span.end = std::max(span.end, use.retired);
  }
  if (const Use* use = first_unwritten(uses)) unwritten(set, *use, buffer);
  return span;
}

// Describes a carried buffer within one program: its content on entry, then each content that replaces it as a whole.
struct Passage {
  struct Content {
    OpId begin = 0, end = 0;  // empty if not used
  };
  Content entry;
  std::vector<Content> replaced;
  bool reads_entry = false;
  bool writes = false;
  const Use* unwritten = nullptr;
};

// Returns the passage through one program. `read_anywhere` holds the bytes that make up a whole content.
Passage passage(Uses uses, const ByteRanges& read_anywhere) {
  Passage result;
  result.unwritten = first_unwritten(uses);
  struct Attempt : Passage::Content {  // writes that may turn out to replace the whole
    ByteRanges written;
  };
  std::optional<Attempt> attempt;
  auto extend_current = [&](OpId begin, OpId end) {
    Passage::Content& current = result.replaced.empty() ? result.entry : result.replaced.back();
    if (current.end == 0) current.begin = begin;
    current.end = std::max(current.end, end);
  };
  auto give_up_attempt = [&] {
    if (attempt) extend_current(attempt->begin, attempt->end);
    attempt.reset();
  };
  for (const Use& use : uses) {
    if (use.write) {
      result.writes = true;
      if (!attempt) attempt = Attempt{{use.op, 0}, {}};
      attempt->end = std::max(attempt->end, use.retired);
      if (use.dense) attempt->written.add(use.begin, use.end);
      if (attempt->written.contains(read_anywhere)) {
        result.replaced.push_back(*attempt);
        attempt.reset();
      }
    } else if (attempt && attempt->written.contains(use.begin, use.end)) {
      attempt->end = std::max(attempt->end, use.retired);
    } else {
      give_up_attempt();
      if (result.replaced.empty()) result.reads_entry = true;
      extend_current(use.op, use.retired);
    }
  }
  give_up_attempt();
  return result;
}

// Computes the liveness of one carried buffer over the graph of programs.
class CarriedLife {
 public:
  CarriedLife(const ProgramSet& set, const std::vector<std::vector<ProgramId>>& predecessors, const Buffer& buffer,
              Uses uses)
      : set_(set), predecessors_(predecessors), passages_(set.programs.size()) {
    ByteRanges read_anywhere;
    for (const Use& use : uses)
      if (!use.write) read_anywhere.add(use.begin, use.end);
    for (auto begin = uses.begin(); begin != uses.end();) {
      const auto end = std::find_if(begin, uses.end(), [&](const Use& use) { return use.program != begin->program; });
      passages_[begin->program] = passage({begin, end}, read_anywhere);
      begin = end;
    }
    solve();
    for (ProgramId p = 0; p < passages_.size(); p++)
      if (passages_[p].unwritten && !written_before_[p]) unwritten(set, *passages_[p].unwritten, buffer);
  }

  std::vector<LiveSpan> spans() const {
    std::vector<LiveSpan> all;
    for (ProgramId p = 0; p < passages_.size(); p++) append_spans(p, all);
    return all;
  }

 private:
  // Finds the least fixed points of "may be read from the start of p on" and "may have been written before the start of
  // p".
  void solve() {
    wanted_.assign(passages_.size(), false);
    written_before_.assign(passages_.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      for (ProgramId p = 0; p < passages_.size(); p++) {
        const bool wanted = passages_[p].reads_entry || (passages_[p].replaced.empty() && wanted_after(p));
        const bool produced = std::ranges::any_of(
            predecessors_[p], [&](ProgramId before) { return written_before_[before] || passages_[before].writes; });
        changed |= wanted != wanted_[p] || produced != written_before_[p];
        wanted_[p] = wanted;
        written_before_[p] = produced;
      }
    }
  }

  bool wanted_after(ProgramId p) const {
    return std::ranges::any_of(set_.programs[p].next, [&](ProgramId next) { return wanted_[next]; });
  }

  void append_spans(ProgramId p, std::vector<LiveSpan>& all) const {
    const Passage& passage = passages_[p];
    std::vector<Passage::Content> contents{passage.entry};
    contents.insert(contents.end(), passage.replaced.begin(), passage.replaced.end());
    const bool live_in = wanted_[p] && written_before_[p];
    const bool live_out = wanted_after(p) && (written_before_[p] || passage.writes);
    if (live_in) contents.front().begin = 0;
    if (live_out && (live_in || contents.back().end > 0))
      contents.back().end = static_cast<OpId>(set_.programs[p].ops.size());
    for (const auto& [begin, end] : contents) {
      if (begin >= end) continue;
      if (!all.empty() && all.back().program == p && begin <= all.back().end)
        all.back().end = std::max(all.back().end, end);
      else
        all.push_back({p, begin, end});
    }
  }

  const ProgramSet& set_;
  const std::vector<std::vector<ProgramId>>& predecessors_;
  std::vector<Passage> passages_;  // by ProgramId
  std::vector<bool> wanted_, written_before_;
};

}  // namespace

std::vector<std::vector<LiveSpan>> live_spans(const ProgramSet& set) {
  const std::vector<std::vector<Use>> uses = collect_uses(set);
  std::vector<std::vector<ProgramId>> predecessors;
  for (ProgramId p = 0; p < set.programs.size(); p++) predecessors.push_back(set.predecessors(p));
  std::vector<std::vector<LiveSpan>> spans(set.buffers.size());
  for (BufferId b = 0; b < set.buffers.size(); b++) {
    const Buffer& buffer = set.buffers[b];
    if (uses[b].empty() || buffer.life == Life::Persistent) continue;
    if (buffer.life == Life::Program)
      spans[b] = {span_of_program_buffer(set, buffer, uses[b])};
    else
      spans[b] = CarriedLife(set, predecessors, buffer, uses[b]).spans();
  }
  return spans;
}

}  // namespace snug
