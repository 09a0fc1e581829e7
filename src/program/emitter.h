// Writes ops and their buffers into one program of a set.
#pragma once

#include <string>
#include <vector>

#include "program/facts.h"
#include "program/program.h"

namespace snug {

// The same bytes, read, written or both.
Operand read(Operand operand);
Operand write(Operand operand);
Operand update(Operand operand);
// Rows or columns [begin, end) of an operand seen as a matrix.
Operand rows(const Operand& operand, int64_t begin, int64_t end);
Operand columns(const Operand& operand, int64_t begin, int64_t end);
// Elements [begin, end) of a dense operand, as a vector.
Operand elements(const Operand& operand, int64_t begin, int64_t end);
// The whole of a dense operand as one vector.
Operand flat(const Operand& operand);

// A new buffer in the table, and the whole of it as a dense operand (to be written).
Operand new_tensor(ProgramSet& set, std::string name, DType dtype, const Shape& shape, Role role,
                   Space space = Space::Device, Life life = Life::Program);

class Emitter {
 public:
  // `set` and `facts` must outlive the emitter; programs may be added to the set meanwhile.
  Emitter(ProgramSet& set, ProgramId program, const OpFacts& facts) : set_(set), program_(program), facts_(facts) {}

  // What the names of ops and buffers start with from now on: "layer.3.bwd".
  void scope(std::string text) { scope_ = std::move(text); }
  const std::string& scope() const { return scope_; }

  // Ops from here on belong to this pass of the program.
  void pass(size_t number) { pass_ = static_cast<int32_t>(number); }

  Operand tensor(std::string_view what, DType dtype, const Shape& shape, Role role = Role::Activation,
                 Space space = Space::Device, Life life = Life::Program);
  // Appends an op, with scratch as its last operand where the facts ask for it.
  OpId op(std::string_view what, Attrs attrs, std::vector<Operand> operands, Lane lane = Lane::Compute);
  // Appends an op that a pass with fewer loss rows than this skips.
  OpId op_if(int64_t min_loss_rows, std::string_view what, Attrs attrs, std::vector<Operand> operands);

  Program& program() { return set_.programs[program_]; }
  const ProgramSet& set() const { return set_; }

 private:
  std::string full_name(std::string_view what) const;

  ProgramSet& set_;
  ProgramId program_;
  const OpFacts& facts_;
  std::string scope_;
  int32_t pass_ = 0;
};

}  // namespace snug
