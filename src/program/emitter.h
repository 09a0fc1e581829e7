// Writes ops and their buffers into one program of a set.
#pragma once

#include <string>
#include <vector>

#include "program/facts.h"
#include "program/program.h"

namespace snug {

// Return the operand's bytes as an operand that is read, written or both.
Operand read(Operand operand);
Operand write(Operand operand);
Operand update(Operand operand);
// Return rows or columns [begin, end) of an operand seen as a matrix.
Operand rows(const Operand& operand, int64_t begin, int64_t end);
Operand columns(const Operand& operand, int64_t begin, int64_t end);
// Returns elements [begin, end) of a dense operand, as a vector.
Operand elements(const Operand& operand, int64_t begin, int64_t end);
// Return the whole of a dense operand in another shape; as one vector; as a matrix of so many rows.
Operand reshaped(const Operand& operand, const Shape& shape);
Operand flat(const Operand& operand);
Operand in_rows(const Operand& operand, int64_t count);

// Adds a buffer to the table and returns the whole of it as a dense operand that is to be written.
Operand new_tensor(ProgramSet& set, std::string name, DType dtype, const Shape& shape, Role role,
                   Space space = Space::Device, Life life = Life::Program);

class Emitter {
 public:
  // `set` and `facts` must outlive the emitter; programs may be added to the set meanwhile.
  Emitter(ProgramSet& set, ProgramId program, const OpFacts& facts) : set_(set), program_(program), facts_(facts) {}

  // Sets the text that names of ops and buffers start with from now on, such as "layer.3.bwd".
  void scope(std::string text) { scope_ = std::move(text); }
  const std::string& scope() const { return scope_; }

  // Sets the pass to which the ops emitted from now on belong.
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
