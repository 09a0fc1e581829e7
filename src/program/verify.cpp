#include <algorithm>

#include "program/sync.h"

namespace snug {
namespace {

struct Touched {
  uint64_t begin = 0, end = 0;  // bytes of the arena
  Space space = Space::Device;
  bool written = false;
};

// Holds, by lane, how many of a program's ops have certainly finished.
using Done = std::array<size_t, kLanes>;

void raise(Done& done, const Done& other) {
  for (size_t lane = 0; lane < kLanes; lane++) done[lane] = std::max(done[lane], other[lane]);
}

// Checks every pair of ops that neither lanes nor waits order: they may run at once, in either order, so they must not
// share bytes that one of them writes. There are few such pairs, as lanes follow each other closely.
class Verifier {
 public:
  Verifier(const ProgramSet& set, const MemoryPlan& plan) : set_(set), facts_(set.programs.size()) {
    for (ProgramId p = 0; p < set.programs.size(); p++) look_at(p, plan);
    for (ProgramId p = 0; p < set.programs.size(); p++) check_waits(p);
  }

  void check_within(ProgramId p) const {
    const ProgramIndex& facts = facts_[p];
    Done issued{};
    for (OpId i = 0; i < facts.done.size(); i++) {
      for (size_t lane = 0; lane < kLanes; lane++)
        for (size_t k = facts.done[i][lane]; k < issued[lane] && lane != facts.lane[i]; k++)
          demand_disjoint(p, facts.ops_of_lane[lane][k], p, i);
      issued[facts.lane[i]]++;
    }
  }

  void check_seam(ProgramId before, ProgramId after) const {
    const std::vector<Done> done = done_across(before, after);
    for (OpId i = 0; i < done.size(); i++)
      for (size_t lane = 0; lane < kLanes; lane++) {
        const std::vector<OpId>& others = facts_[before].ops_of_lane[lane];
        for (size_t k = done[i][lane]; k < others.size(); k++) demand_disjoint(before, others[k], after, i);
      }
  }

 private:
  struct ProgramIndex {
    std::vector<size_t> lane;                           // by op
    std::vector<size_t> rank;                           // by op: its place in its lane
    std::array<std::vector<OpId>, kLanes> ops_of_lane;  // in issue order
    std::vector<std::vector<Touched>> touched;          // by op
    std::vector<Done> done;  // by op: ops of this program that have finished before it starts
  };

  void look_at(ProgramId p, const MemoryPlan& plan) {
    ProgramIndex& facts = facts_[p];
    for (const Op& op : set_.programs[p].ops) {
      std::vector<OpId>& lane_ops = facts.ops_of_lane[index(op.lane)];
      check(op.min_loss_rows == 0 || !is_collective(op.attrs), "{}: op '{}' is a collective that may be skipped",
            set_.programs[p].name, op.site);
      facts.lane.push_back(index(op.lane));
      facts.rank.push_back(lane_ops.size());
      lane_ops.push_back(static_cast<OpId>(facts.touched.size()));
      std::vector<Touched>& touched = facts.touched.emplace_back();
      for (const Operand& operand : op.operands) {
        const uint64_t begin = plan.offset[operand.buffer] + operand.offset;
        touched.push_back({begin, begin + operand.extent(), set_.buffers[operand.buffer].space, operand.writes()});
      }
    }
  }

  // Checks that waits point backwards, and records what has finished within the program, which relies on that.
  void check_waits(ProgramId p) {
    ProgramIndex& facts = facts_[p];
    const std::vector<ProgramId> predecessors = set_.predecessors(p);
    const std::vector<Op>& ops = set_.programs[p].ops;
    for (OpId i = 0; i < ops.size(); i++) {
      Done done{};
      if (const size_t rank = facts.rank[i]) raise(done, done_after(p, facts.ops_of_lane[facts.lane[i]][rank - 1]));
      for (const Wait& wait : ops[i].waits) {
        if (wait.program == p && wait.op < i) {
          raise(done, done_after(p, wait.op));
          continue;
        }
        check(std::ranges::count(predecessors, wait.program) && wait.op < set_.programs[wait.program].ops.size() &&
                  !(wait.program == p && wait.op == i),
              "{}: op {} '{}' waits for op {} of program {}, which does not come before it", set_.programs[p].name, i,
              ops[i].site, wait.op, wait.program);
      }
      facts.done.push_back(done);
    }
  }

  // Returns what has finished of program p when its op i has.
  Done done_after(ProgramId p, OpId i) const {
    Done done = facts_[p].done[i];
    done[facts_[p].lane[i]] = facts_[p].rank[i] + 1;
    return done;
  }

  // Returns, by op of `after`, the ops of `before` that have finished when it starts, where `after` directly follows.
  std::vector<Done> done_across(ProgramId before, ProgramId after) const {
    const ProgramIndex& facts = facts_[after];
    const std::vector<Op>& ops = set_.programs[after].ops;
    std::vector<Done> across;
    for (OpId i = 0; i < ops.size(); i++) {
      Done done{};
      const std::vector<OpId>& lane_before = facts_[before].ops_of_lane[facts.lane[i]];
      if (facts.rank[i])
        raise(done, across[facts.ops_of_lane[facts.lane[i]][facts.rank[i] - 1]]);
      else if (!lane_before.empty())
        raise(done, done_after(before, lane_before.back()));
      for (const Wait& wait : ops[i].waits) {
        if (wait.program == after && wait.op < i)
          raise(done, across[wait.op]);
        else if (wait.program == before)
          raise(done, done_after(before, wait.op));
      }
      across.push_back(done);
    }
    return across;
  }

  void demand_disjoint(ProgramId p, OpId i, ProgramId q, OpId j) const {
    for (const Touched& a : facts_[p].touched[i])
      for (const Touched& b : facts_[q].touched[j]) {
        const uint64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
        if (begin >= end || a.space != b.space || !(a.written || b.written)) continue;
        internal_error(
            "nothing orders op {} '{}' of program '{}' and op {} '{}' of program '{}', and both use bytes "
            "[{}, {}) of the {} arena",
            i, set_.programs[p].ops[i].site, set_.programs[p].name, j, set_.programs[q].ops[j].site,
            set_.programs[q].name, begin, end, name(a.space));
      }
  }

  const ProgramSet& set_;
  std::vector<ProgramIndex> facts_;  // by ProgramId
};

}  // namespace

void verify(const ProgramSet& set, const MemoryPlan& plan) {
  const Verifier verifier(set, plan);
  for (ProgramId p = 0; p < set.programs.size(); p++) {
    verifier.check_within(p);
    for (const ProgramId next : set.programs[p].next) verifier.check_seam(p, next);
  }
}

}  // namespace snug
