// Runs op cases on a backend and says what went wrong, in words; nothing if all is well.
#pragma once

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "op_cases.h"
#include "program/facts.h"

namespace snug {

// Copies bytes to or from the backend's memory, when nothing runs.
using CopyBytes = std::function<void(void* to, const void* from, size_t bytes)>;

// How tests name their cases.
inline std::string name_of(const testing::TestParamInfo<OpCase>& info) {
  std::string name = info.param.name;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

class OpRunner {
 public:
  // Takes the backend's one Device block. All must outlive the runner.
  OpRunner(Backend& backend, const OpFacts& facts, CopyBytes copy);

  // Called just before and just after every launch.
  std::function<void()> before_launch = [] {}, after_launch = [] {};

  // The bytes of every operand after a run.
  using Images = std::vector<std::vector<std::byte>>;

  // Fills, runs and checks: bytes around views and between rows untouched, inputs unchanged, results near the
  // reference, everything of them written. `images`, if given, takes the result's bytes.
  std::string run(const OpCase& c, Images* images = nullptr);
  // Binds operands that are not what the kind says (one missing, two too many, each of a wrong dtype and of a
  // wrong size): each must be an InternalError.
  std::string bind_wrongly(const OpCase& c);

 private:
  // One operand in the block.
  struct Place {
    TensorView view;
    uint64_t begin = 0, bytes = 0;  // of the region with its margins
  };
  std::vector<Place> place(const OpCase& c, Op& op) const;
  // Whether operand i may have any count: a program plans bounds for as many documents as its blocks may hold, which an
  // op cannot know unless its scratch follows from them.
  bool any_count(const Op& op, size_t i, const Shape& shape) const;
  void upload(const OpCase& c, const std::vector<ref::Tensor>& values, const std::vector<Place>& places,
              Images& images);
  std::string compare(const OpCase& c, const std::vector<ref::Tensor>& want, const std::vector<Place>& places,
                      const Images& before, const Images& after) const;

  Backend& backend_;
  const OpFacts& facts_;
  CopyBytes copy_;
  std::byte* block_;
};

// Whether a backward with `restore` gives the bits of the forward, in fp32 and bf16; what differs, in words.
std::string restore_wrongly(OpRunner& runner);

// Whether EmbeddingBackward adds long runs of equal ids, and others, in the order that ops.h says, to the bit; what
// differs, in words.
std::string runs_wrongly(OpRunner& runner);

// Whether a SwiGluGemm with h, or a SwiGluGemmBackward that restores nothing, gives the same bits as with the other
// attribute, and of its own gate and up, or dh, those of SwiGlu and SwiGluBackward; what differs, in words.
std::string fused_wrongly(OpRunner& runner, const OpCase& c);

// Whether a SwiGluQuantize or a SwiGluBackwardQuantize writes the bits of SwiGlu or SwiGluBackward, and of the Quantize
// of what those give; what differs, in words.
std::string codes_wrongly(OpRunner& runner, const OpCase& c);

// Whether an AdaptedGemm in bf16 adds what its adapter gives, in the mean over many numbers, where that is much less
// than what each is rounded to; what it adds instead, in words. `may_round_product`: or else rounds the product alone,
// its sum with that, and the sum with the addend, each number as if by itself.
std::string faint_adapter_wrongly(OpRunner& runner, bool may_round_product);

}  // namespace snug
