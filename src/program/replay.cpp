#include "program/replay.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <tuple>

namespace snug {
namespace {

// Identifies what a byte holds: the contents that one execution of an op gave a buffer.
struct Tag {
  BufferId buffer = 0;
  int64_t version = 0;  // the writer, counted over the sequence in issue order; kInitial: before it
  bool operator==(const Tag&) const = default;
};
constexpr int64_t kInitial = -1;

// Holds the tags of an arena's bytes, or of one buffer's.
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

// Identifies one op of one program of the sequence.
struct Execution {
  size_t position = 0;  // in the sequence
  ProgramId program = 0;
  OpId op = 0;
};

// Describes what a collective takes from one rank, and where the bytes go on another.
struct Row {
  BufferId from = 0, to = 0;
  uint64_t from_begin = 0, from_end = 0, to_begin = 0, to_end = 0;  // bytes of the buffers
};

// Describes a collective by its operands.
class Collective {
 public:
  // Returns nothing if the op is not a collective.
  static std::optional<Collective> of(const Op& op, const Topology& topology) {
    if (!is_collective(op.attrs)) return std::nullopt;
    const auto* gather = std::get_if<AllGather>(&op.attrs);
    check(op.operands.size() == 2 && op.operands[0].access == Access::Read && op.operands[1].access == Access::Write,
          "op '{}' is a collective of other operands than one it reads and one it writes", op.site);
    check(op.min_loss_rows == 0, "op '{}' is a collective that may be skipped", op.site);
    Collective collective{gather ? gather->ranks : Ranks::Everyone, !gather, op.operands[0], op.operands[1]};
    const int64_t ranks = topology.count(collective.ranks);
    check(collective.out.shape.count() == collective.in.shape.count() * (gather ? ranks : 1) &&
              (gather || (collective.in.shape.rows() == ranks && collective.out.shape.rows() == ranks)),
          "op '{}' among {} ranks: {} into {}", op.site, ranks, to_string(collective.in.shape),
          to_string(collective.out.shape));
    return collective;
  }

  Ranks ranks = Ranks::Everyone;
  bool exchange = false;
  Operand in, out;

  bool in_place() const {
    return in.buffer == out.buffer && in.offset >= out.offset && in.offset < out.offset + out.extent();
  }
  // Returns the operand of this rank that other ranks may read.
  const Operand& source() const { return in_place() ? out : in; }

  // Returns the bytes that `to` takes from the rank at `place`.
  Row row(const Topology& to, int place) const {
    Row row{in.buffer, out.buffer};
    const auto at = static_cast<uint64_t>(place);
    if (exchange) {
      std::tie(row.from_begin, row.from_end) = row_of(in, static_cast<uint64_t>(to.part()));
      std::tie(row.to_begin, row.to_end) = row_of(out, at);
      return row;
    }
    row.to_begin = out.offset + at * in.extent();
    row.to_end = row.to_begin + in.extent();
    row.from_begin = in_place() ? row.to_begin : in.offset;
    row.from_end = row.from_begin + in.extent();
    return row;
  }

 private:
  static std::pair<uint64_t, uint64_t> row_of(const Operand& o, uint64_t row) {
    const uint64_t begin = o.offset + row * static_cast<uint64_t>(o.row_stride) * element_bytes(o.dtype);
    return {begin, begin + static_cast<uint64_t>(o.shape.cols()) * element_bytes(o.dtype)};
  }
};

// Holds how far one rank is in one run of a collective.
struct CollectiveState {
  bool begun = false;
  std::vector<int> to_take;  // places, the next one last
};

// Names a lane of a rank.
struct Actor {
  size_t rank = 0, lane = 0;
};

class Replay {
 public:
  Replay(const ProgramSet& set, const MemoryPlan& plan, const std::vector<ProgramId>& sequence, uint64_t seed,
         const Topology& topology)
      : set_(set),
        plan_(plan),
        sequence_(sequence),
        topology_(topology),
        random_(seed),
        mode_(static_cast<Mode>(random_() % 3)),
        special_{one_of_or_all(static_cast<size_t>(topology.ranks)),
                 topology.ranks == 1 ? random_() % kLanes : one_of_or_all(kLanes)} {
    for (const Program& program : set.programs) {
      auto& collectives = collectives_.emplace_back(program.ops.size());
      for (OpId i = 0; i < program.ops.size() && topology.ranks > 1; i++)
        collectives[i] = Collective::of(program.ops[i], topology);
    }
    issue();
    RankState state;
    state.done.assign(executions_.size(), false);
    for (const ProgramId program : sequence) state.unfinished.push_back(set.programs[program].ops.size());
    for (BufferId b = 0; b < set.buffers.size(); b++)
      if (set.buffers[b].life == Life::Persistent)
        state.arenas[index(set.buffers[b].space)].write(plan.offset[b], plan.offset[b] + set.buffers[b].bytes,
                                                        {b, kInitial});
    ranks_.assign(static_cast<size_t>(topology.ranks), state);
  }

  ReplayResult run() {
    while (const std::optional<Actor> actor = choose()) advance(*actor);
    return std::move(result_);
  }

 private:
  enum class Mode : uint8_t { Random, LaneAhead, LaneBehind };

  // Holds bytes of a buffer that an execution must find tagged as issue order leaves them.
  struct Expected {
    BufferId buffer = 0;
    uint64_t begin = 0, end = 0;
    Tag tag;
  };

  struct RankState {
    std::vector<bool> done;                 // by execution
    std::vector<size_t> unfinished;         // by position in the sequence: executions left
    std::array<size_t, kLanes> position{};  // by lane: of its next execution
    PerSpace<TaggedBytes> arenas;
  };

  const Op& op(const Execution& e) const { return set_.programs[e.program].ops[e.op]; }
  const std::optional<Collective>& collective(const Execution& e) const { return collectives_[e.program][e.op]; }
  TaggedBytes& arena(size_t rank, BufferId buffer) { return ranks_[rank].arenas[index(set_.buffers[buffer].space)]; }
  Topology seen_by(size_t rank) const { return {topology_.ranks, topology_.replicas, static_cast<int>(rank)}; }
  bool exhausted(Actor a) const { return ranks_[a.rank].position[a.lane] == lanes_[a.lane].size(); }
  size_t next(Actor a) const { return lanes_[a.lane][ranks_[a.rank].position[a.lane]]; }
  // Draws an index below `count`, or `count` itself, which stands for all; with one thing there is no choice to draw.
  size_t one_of_or_all(size_t count) { return count == 1 ? 0 : random_() % (count + 1); }

  // Lists all executions in issue order and what each must find.
  void issue() {
    std::vector<TaggedBytes> contents(set_.buffers.size());
    for (BufferId b = 0; b < set_.buffers.size(); b++)
      if (set_.buffers[b].life == Life::Persistent) contents[b].write(0, set_.buffers[b].bytes, {b, kInitial});
    for (size_t n = 0; n < sequence_.size(); n++) {
      const std::vector<Op>& ops = set_.programs[sequence_[n]].ops;
      first_.push_back(executions_.size());
      for (OpId i = 0; i < ops.size(); i++) {
        const size_t id = executions_.size();
        lanes_[index(ops[i].lane)].push_back(id);
        executions_.push_back({n, sequence_[n], i});
        std::vector<Expected>& expected = expected_.emplace_back();
        if (const std::optional<Collective>& collective = collectives_[sequence_[n]][i])
          expect(collective->source(), contents, expected);
        else
          for (const Operand& o : ops[i].operands)
            if (o.reads()) expect(o, contents, expected);
        for (const Operand& o : ops[i].operands)
          if (o.writes())
            contents[o.buffer].write(o.offset, o.offset + o.extent(), {o.buffer, static_cast<int64_t>(id)});
      }
    }
  }

  static void expect(const Operand& o, const std::vector<TaggedBytes>& contents, std::vector<Expected>& all) {
    contents[o.buffer].visit(o.offset, o.offset + o.extent(), [&](uint64_t begin, uint64_t end, Tag tag) {
      all.push_back({o.buffer, begin, end, tag});
    });
  }

  bool special(Actor a) const {
    return (special_.rank == ranks_.size() || special_.rank == a.rank) &&
           (special_.lane == kLanes || special_.lane == a.lane);
  }

  std::optional<Actor> choose() {
    std::vector<Actor>&first = candidates_[0], &last = candidates_[1];
    first.clear(), last.clear();
    for (size_t rank = 0; rank < ranks_.size(); rank++)
      for (size_t lane = 0; lane < kLanes; lane++)
        if (const Actor a{rank, lane}; !exhausted(a))
          (mode_ == Mode::Random || special(a) == (mode_ == Mode::LaneAhead) ? first : last).push_back(a);
    const std::vector<Actor>& candidates = first.empty() ? last : first;
    if (candidates.empty()) return std::nullopt;
    return candidates[random_() % candidates.size()];
  }

  // Takes the next step of the lane or, where that has to wait, of a lane that it waits for. An op waits only for ops
  // issued before it or for the same collective on another rank, so this comes to an end.
  void advance(Actor a) {
    for (;;) {
      const size_t id = next(a);
      const Execution& e = executions_[id];
      if (const std::optional<size_t> lane = blocked_by(a.rank, e))
        a.lane = *lane;
      else if (!collective(e))
        return execute(a.rank, id);
      else if (const size_t rank = next_rank(a.rank, id); rank == a.rank)
        return meet(rank, id);
      else
        a.rank = rank;
    }
  }

  // Returns the lane of an op that must finish on this rank before `e` may start.
  std::optional<size_t> blocked_by(size_t rank, const Execution& e) const {
    const RankState& state = ranks_[rank];
    if (e.position >= 2 && state.unfinished[e.position - 2] > 0)
      for (size_t lane = 0; lane < kLanes; lane++)
        if (!exhausted({rank, lane}) && executions_[next({rank, lane})].position <= e.position - 2) return lane;
    for (const Wait& wait : op(e).waits) {
      check(wait.op < set_.programs[wait.program].ops.size(), "op '{}' waits for op {} of program '{}', which has {}",
            op(e).site, wait.op, set_.programs[wait.program].name, set_.programs[wait.program].ops.size());
      const bool within = wait.program == e.program && wait.op < e.op;
      if (!within && (e.position == 0 || sequence_[e.position - 1] != wait.program)) continue;
      if (!state.done[first_[within ? e.position : e.position - 1] + wait.op])
        return index(set_.programs[wait.program].ops[wait.op].lane);
    }
    return std::nullopt;
  }

  void execute(size_t rank, size_t id) {
    const Execution& e = executions_[id];
    for (const Expected& x : expected_[id]) look(rank, rank, id, x, x.begin, x.end);
    for (const Operand& o : op(e).operands)
      if (o.writes()) write(rank, id, o.buffer, o.offset, o.offset + o.extent());
    finish(rank, id);
  }

  // Checks the bytes that rank `reader` reads from rank `owner`.
  void look(size_t reader, size_t owner, size_t id, const Expected& x, uint64_t begin, uint64_t end) {
    const uint64_t start = plan_.offset[x.buffer];
    if (begin >= end || arena(owner, x.buffer).all_carry(start + begin, start + end, x.tag)) return;
    if (result_.corrupted_reads++ > 0) return;
    const Execution& e = executions_[id];
    result_.first =
        fmt::format("{}program {} of the sequence, '{}', op {} '{}', buffer '{}'",
                    ranks_.size() == 1 ? "" : fmt::format("rank {} from rank {}, ", reader, owner), e.position,
                    set_.programs[e.program].name, e.op, op(e).site, set_.buffers[x.buffer].name);
  }

  void write(size_t rank, size_t id, BufferId buffer, uint64_t begin, uint64_t end) {
    arena(rank, buffer)
        .write(plan_.offset[buffer] + begin, plan_.offset[buffer] + end, {buffer, static_cast<int64_t>(id)});
  }

  void finish(size_t rank, size_t id) {
    const Execution& e = executions_[id];
    ranks_[rank].done[id] = true;
    ranks_[rank].unfinished[e.position]--;
    ranks_[rank].position[index(op(e).lane)]++;
  }

  // ---- Collectives ----

  std::vector<CollectiveState>& states_of(size_t id) {
    std::vector<CollectiveState>& states = collective_states_[id];
    states.resize(ranks_.size());
    return states;
  }

  template <class F>
  void for_each_rank(size_t rank, size_t id, F&& f) const {
    const Topology here = seen_by(rank);
    const Ranks scope = collective(executions_[id])->ranks;
    for (int place = 0; place < here.count(scope); place++) f(static_cast<size_t>(here.rank_at(scope, place)), place);
  }

  // Returns this rank if it has a step to make, else one for which it waits.
  size_t next_rank(size_t rank, size_t id) {
    std::vector<CollectiveState>& states = states_of(id);
    if (!states[rank].begun) return rank;
    size_t not_begun = rank, not_done = rank;
    for_each_rank(rank, id, [&](size_t other, int) {
      if (!states[other].begun) not_begun = other;
      if (!states[other].to_take.empty()) not_done = other;
    });
    return not_begun != rank ? not_begun : states[rank].to_take.empty() ? not_done : rank;
  }

  // Begins the collective, or takes one rank's row.
  void meet(size_t rank, size_t id) {
    const Collective& collective = *this->collective(executions_[id]);
    std::vector<CollectiveState>& states = states_of(id);
    CollectiveState& mine = states[rank];
    if (!mine.begun) {
      mine.begun = true;
      for_each_rank(rank, id, [&](size_t other, int place) {
        if (other != rank || !collective.in_place()) mine.to_take.push_back(place);
      });
      std::ranges::shuffle(mine.to_take, random_);
    } else {
      const int place = mine.to_take.back();
      mine.to_take.pop_back();
      const auto owner = static_cast<size_t>(seen_by(rank).rank_at(collective.ranks, place));
      const Row row = collective.row(seen_by(rank), place);
      for (const Expected& x : expected_[id])
        look(rank, owner, id, x, std::max(x.begin, row.from_begin), std::min(x.end, row.from_end));
      write(rank, id, row.to, row.to_begin, row.to_end);
    }
    bool all = true;
    for_each_rank(rank, id,
                  [&](size_t other, int) { all = all && states[other].begun && states[other].to_take.empty(); });
    if (!all) return;
    for_each_rank(rank, id, [&](size_t other, int place) {
      const Row own = collective.row(seen_by(other), place);
      if (collective.in_place()) write(other, id, own.to, own.to_begin, own.to_end);
      finish(other, id);
    });
    if (std::ranges::all_of(ranks_, [&](const RankState& state) { return state.done[id]; }))
      collective_states_.erase(id);
  }

  const ProgramSet& set_;
  const MemoryPlan& plan_;
  const std::vector<ProgramId>& sequence_;
  const Topology topology_;
  std::mt19937_64 random_;
  Mode mode_;
  Actor special_;                                                    // count: all ranks, all lanes
  std::vector<std::vector<std::optional<Collective>>> collectives_;  // by program, op
  std::vector<Execution> executions_;                                // in issue order
  std::vector<std::vector<Expected>> expected_;                      // by execution
  std::vector<size_t> first_;                                        // by position in the sequence: first execution
  std::array<std::vector<size_t>, kLanes> lanes_;                    // executions
  std::vector<RankState> ranks_;
  std::map<size_t, std::vector<CollectiveState>> collective_states_;  // by execution, rank
  std::array<std::vector<Actor>, 2> candidates_;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const ProgramSet& set, const MemoryPlan& plan, const std::vector<ProgramId>& sequence,
                    uint64_t seed, const Topology& topology) {
  for (size_t n = 1; n < sequence.size(); n++)
    check(std::ranges::count(set.programs[sequence[n - 1]].next, sequence[n]), "program '{}' may not follow '{}'",
          set.programs[sequence[n]].name, set.programs[sequence[n - 1]].name);
  return Replay(set, plan, sequence, seed, topology).run();
}

}  // namespace snug
