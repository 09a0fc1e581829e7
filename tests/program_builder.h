// Programs written by hand, for tests: buffers of so many bytes, ops that read and write them.
#pragma once

#include "program/program.h"

namespace snug {

// All of a buffer, or bytes [begin, end) of it.
struct Part {
  Part(BufferId buffer) : buffer(buffer) {}
  Part(BufferId buffer, uint64_t begin, uint64_t end) : buffer(buffer), begin(begin), end(end) {}
  BufferId buffer = 0;
  uint64_t begin = 0, end = ~uint64_t{0};
};

struct OpDraft {
  Lane lane = Lane::Compute;
  std::vector<Part> reads = {}, writes = {}, updates = {};
  OpId retire_after = 0;  // ops
  Attrs attrs = Copy{};
};

class ProgramBuilder {
 public:
  // Ops are added to the program begun last; the first one is there already.
  ProgramBuilder() { begin_program("p"); }
  explicit ProgramBuilder(std::string first_program) { begin_program(std::move(first_program)); }

  ProgramId begin_program(std::string name) {
    set_.programs.push_back({std::move(name), {}, {}});
    return static_cast<ProgramId>(set_.programs.size() - 1);
  }

  void follow(ProgramId before, std::initializer_list<ProgramId> next) {
    set_.programs[before].next.insert(set_.programs[before].next.end(), next);
  }

  BufferId buffer(std::string name, uint64_t bytes, Life life = Life::Program, Space space = Space::Device,
                  Role role = Role::Activation) {
    set_.buffers.push_back({std::move(name), bytes, space, role, life});
    return static_cast<BufferId>(set_.buffers.size() - 1);
  }

  uint64_t bytes(BufferId buffer) const { return set_.buffers[buffer].bytes; }

  OpId op(std::string site, const OpDraft& draft) {
    std::vector<Op>& ops = set_.programs.back().ops;
    const auto id = static_cast<OpId>(ops.size());
    Op op;
    op.attrs = draft.attrs;
    op.lane = draft.lane;
    op.retire = id + draft.retire_after;
    op.site = std::move(site);
    for (const Part& part : draft.reads) op.operands.push_back(operand(part, Access::Read));
    for (const Part& part : draft.updates) op.operands.push_back(operand(part, Access::ReadWrite));
    for (const Part& part : draft.writes) op.operands.push_back(operand(part, Access::Write));
    ops.push_back(std::move(op));
    return id;
  }

  // Retires that reach beyond the end of a program are brought back to its last op.
  ProgramSet build() const {
    ProgramSet set = set_;
    for (Program& program : set.programs)
      for (Op& op : program.ops) op.retire = std::min(op.retire, static_cast<OpId>(program.ops.size() - 1));
    return set;
  }

 private:
  Operand operand(const Part& part, Access access) const {
    const uint64_t end = std::min(part.end, set_.buffers[part.buffer].bytes);
    const auto bytes = static_cast<int64_t>(end - part.begin);
    return {part.buffer, access, DType::U8, {bytes}, part.begin, bytes};
  }

  ProgramSet set_;
};

// Two programs in a ring: `first` makes a buffer on the copy lane that `second` reads.
inline ProgramSet two_programs() {
  ProgramBuilder p("first");
  const BufferId weights = p.buffer("weights", 64, Life::Persistent);
  const BufferId host = p.buffer("host", 96, Life::Carried, Space::Host), x = p.buffer("x", 96);
  p.op("norm", {.reads = {weights}, .writes = {x}, .attrs = RmsNorm{.epsilon = 0.5f}});
  p.op("copy", {.lane = Lane::CopyOut, .reads = {x}, .writes = {host}, .retire_after = 1});
  p.op("clear", {.writes = {{x, 32, 64}}, .attrs = Fill{}});
  const ProgramId second = p.begin_program("second");
  p.op("take", {.lane = Lane::Host, .reads = {host}, .attrs = HostTask{HostJob::TakeLoss, 3}});
  p.follow(0, {second});
  p.follow(second, {0});
  return p.build();
}

}  // namespace snug
