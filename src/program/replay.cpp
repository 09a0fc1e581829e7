#include "program/replay.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <random>

namespace snug {
namespace {

// What a byte holds: the contents that one execution of an op gave a buffer.
struct Tag {
  BufferId buffer = 0;
  int64_t version = 0;  // the writer, counted over the whole sequence in issue order; kInitial: from before
  bool operator==(const Tag&) const = default;
};
constexpr int64_t kInitial = -1;

// Tags of the bytes of an arena, or of one buffer.
class TaggedBytes {
 public:
  void write(uint64_t begin, uint64_t end, Tag tag) {
    if (begin == end) return;
    split(begin), split(end);
    runs_.erase(runs_.lower_bound(begin), runs_.lower_bound(end));
    runs_[begin] = {end, tag};
  }

  // Calls f(begin, end, tag) for every run of equal tags in [begin, end); bytes never written are left out.
  template <class F>
  void visit(uint64_t begin, uint64_t end, F&& f) const {
    auto it = runs_.upper_bound(begin);
    if (it != runs_.begin() && std::prev(it)->second.end > begin) --it;
    for (; it != runs_.end() && it->first < end; ++it)
      f(std::max(begin, it->first), std::min(end, it->second.end), it->second.tag);
  }

  bool all_carry(uint64_t begin, uint64_t end, Tag tag) const {
    uint64_t reached = begin;
    visit(begin, end, [&](uint64_t from, uint64_t to, Tag found) {
      if (from == reached && found == tag) reached = to;
    });
    return reached == end;
  }

 private:
  struct Run {
    uint64_t end = 0;
    Tag tag;
  };

  // Makes `at` a boundary between runs.
  void split(uint64_t at) {
    const auto above = runs_.lower_bound(at);
    if (above == runs_.begin()) return;
    Run& run = std::prev(above)->second;
    if (run.end <= at) return;
    runs_.emplace_hint(above, at, run);
    run.end = at;
  }

  std::map<uint64_t, Run> runs_;  // by begin, disjoint
};

// One op of one program of the sequence.
struct Execution {
  size_t position = 0;  // in the sequence
  ProgramId program = 0;
  OpId op = 0;
};

class Replay {
 public:
  Replay(const ProgramSet& set, const MemoryPlan& plan, const std::vector<ProgramId>& sequence, uint64_t seed)
      : set_(set),
        plan_(plan),
        sequence_(sequence),
        random_(seed),
        mode_(static_cast<Mode>(random_() % 3)),
        special_lane_(random_() % kLanes) {
    issue();
    for (const Buffer& buffer : set.buffers)
      if (buffer.life == Life::Persistent) {
        const auto b = static_cast<BufferId>(&buffer - set.buffers.data());
        arena(b).write(plan.offset[b], plan.offset[b] + buffer.bytes, {b, kInitial});
      }
  }

  ReplayResult run() {
    for (size_t left = executions_.size(); left > 0; left--) execute(next_ready(choose_lane()));
    return std::move(result_);
  }

 private:
  enum class Mode : uint8_t { Random, LaneAhead, LaneBehind };

  // Bytes of a buffer that an execution must find tagged as issue order leaves them.
  struct Expected {
    BufferId buffer = 0;
    uint64_t begin = 0, end = 0;
    Tag tag;
  };

  const Op& op(const Execution& e) const { return set_.programs[e.program].ops[e.op]; }
  TaggedBytes& arena(BufferId buffer) { return arenas_[index(set_.buffers[buffer].space)]; }

  // Lists all executions in issue order and what each must find.
  void issue() {
    std::vector<TaggedBytes> contents(set_.buffers.size());
    for (BufferId b = 0; b < set_.buffers.size(); b++)
      if (set_.buffers[b].life == Life::Persistent) contents[b].write(0, set_.buffers[b].bytes, {b, kInitial});
    for (size_t n = 0; n < sequence_.size(); n++) {
      const std::vector<Op>& ops = set_.programs[sequence_[n]].ops;
      first_.push_back(executions_.size());
      unfinished_.push_back(ops.size());
      for (OpId i = 0; i < ops.size(); i++) {
        const size_t id = executions_.size();
        lanes_[index(ops[i].lane)].executions.push_back(id);
        executions_.push_back({n, sequence_[n], i});
        expected_.push_back(expect(ops[i], contents));
        for (const Operand& o : ops[i].operands)
          if (o.writes())
            contents[o.buffer].write(o.offset, o.offset + o.extent(), {o.buffer, static_cast<int64_t>(id)});
      }
    }
    done_.assign(executions_.size(), false);
  }

  static std::vector<Expected> expect(const Op& op, const std::vector<TaggedBytes>& contents) {
    std::vector<Expected> all;
    for (const Operand& o : op.operands)
      if (o.reads())
        contents[o.buffer].visit(o.offset, o.offset + o.extent(), [&](uint64_t begin, uint64_t end, Tag tag) {
          all.push_back({o.buffer, begin, end, tag});
        });
    return all;
  }

  size_t choose_lane() {
    if (mode_ == Mode::LaneAhead && !lanes_[special_lane_].exhausted()) return special_lane_;
    std::array<size_t, kLanes> candidates{};
    size_t count = 0;
    for (size_t lane = 0; lane < kLanes; lane++)
      if (!lanes_[lane].exhausted() && !(mode_ == Mode::LaneBehind && lane == special_lane_))
        candidates[count++] = lane;
    return count == 0 ? special_lane_ : candidates[random_() % count];
  }

  // The next execution of the lane; or, where that has to wait, one that it waits for. Whatever it waits for was issued
  // before it, so this comes to an end.
  size_t next_ready(size_t lane) const {
    for (;;) {
      const size_t id = lanes_[lane].next();
      const std::optional<size_t> blocking = blocked_by(executions_[id]);
      if (!blocking) return id;
      lane = *blocking;
    }
  }

  // The lane of something that must finish before `e` may start.
  std::optional<size_t> blocked_by(const Execution& e) const {
    if (e.position >= 2 && unfinished_[e.position - 2] > 0)
      for (size_t lane = 0; lane < kLanes; lane++)
        if (!lanes_[lane].exhausted() && executions_[lanes_[lane].next()].position <= e.position - 2) return lane;
    for (const Wait& wait : op(e).waits) {
      check(wait.op < set_.programs[wait.program].ops.size(), "op '{}' waits for op {} of program '{}', which has {}",
            op(e).site, wait.op, set_.programs[wait.program].name, set_.programs[wait.program].ops.size());
      const bool within = wait.program == e.program && wait.op < e.op;
      if (!within && (e.position == 0 || sequence_[e.position - 1] != wait.program)) continue;
      if (!done_[first_[within ? e.position : e.position - 1] + wait.op])
        return index(set_.programs[wait.program].ops[wait.op].lane);
    }
    return std::nullopt;
  }

  void execute(size_t id) {
    const Execution& e = executions_[id];
    for (const Expected& x : expected_[id]) {
      const uint64_t start = plan_.offset[x.buffer];
      if (!arena(x.buffer).all_carry(start + x.begin, start + x.end, x.tag)) report(e, x.buffer);
    }
    for (const Operand& o : op(e).operands) {
      const uint64_t begin = plan_.offset[o.buffer] + o.offset;
      if (o.writes()) arena(o.buffer).write(begin, begin + o.extent(), {o.buffer, static_cast<int64_t>(id)});
    }
    done_[id] = true;
    unfinished_[e.position]--;
    lanes_[index(op(e).lane)].position++;
  }

  void report(const Execution& e, BufferId buffer) {
    if (result_.corrupted_reads++ > 0) return;
    result_.first = fmt::format("program {} of the sequence, '{}', op {} '{}', buffer '{}'", e.position,
                                set_.programs[e.program].name, e.op, op(e).site, set_.buffers[buffer].name);
  }

  struct LaneState {
    std::vector<size_t> executions;
    size_t position = 0;
    bool exhausted() const { return position == executions.size(); }
    size_t next() const { return executions[position]; }
  };

  const ProgramSet& set_;
  const MemoryPlan& plan_;
  const std::vector<ProgramId>& sequence_;
  std::mt19937_64 random_;
  Mode mode_;
  size_t special_lane_;
  std::vector<Execution> executions_;            // in issue order
  std::vector<std::vector<Expected>> expected_;  // by execution
  std::vector<bool> done_;                       // by execution
  std::vector<size_t> first_, unfinished_;       // by position in the sequence: first execution, executions left
  std::array<LaneState, kLanes> lanes_;
  PerSpace<TaggedBytes> arenas_;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const ProgramSet& set, const MemoryPlan& plan, const std::vector<ProgramId>& sequence,
                    uint64_t seed) {
  for (size_t n = 1; n < sequence.size(); n++)
    check(std::ranges::count(set.programs[sequence[n - 1]].next, sequence[n]), "program '{}' may not follow '{}'",
          set.programs[sequence[n]].name, set.programs[sequence[n - 1]].name);
  return Replay(set, plan, sequence, seed).run();
}

}  // namespace snug
