// The persistent bytes of a job on one rank: weights, what completes them, and optimizer state, as arrays over the
// segments of plan/layout.h.
#pragma once

#include <optional>

#include "plan/arrangement.h"
#include "plan/layout.h"
#include "program/emitter.h"

namespace snug {

// One array over a segment, as far as this rank keeps it.
struct Held {
  Operand array;        // a vector of span.count() / granule values, in any space
  Span span;            // of the segment
  int64_t granule = 1;  // elements of the segment for each value; divides units
  std::optional<Ranks>
      sharers;  // who hold the same span, each owning a part of it; nobody: the span is this rank's part
  bool exists() const { return span.count() > 0; }
};

// Elements of a vector that begins at element `start` of its segment.
Operand slice(const Operand& array, int64_t start, const Span& span);
// The values for elements of a segment; the last granule may be short.
Operand slice(const Held& held, const Span& span);

class Storage {
 public:
  // Adds the buffers to `set`. Without `states`, trainable parameters have their weights only (evaluation of an
  // adapter).
  Storage(ProgramSet& set, const ParamTable& table, const Layout& layout, const Numerics& numerics,
          const Strategy& strategy, bool states);

  const Layout& layout() const { return layout_; }

  const Held& weights(int group, bool trainable) const { return at(group, trainable).weights; }
  // Of a trainable segment: what optimizer and checkpoints keep of it, in a fixed order, each with its name.
  struct State {
    std::string name;  // "low", "first_moment", "second_moment_scales"
    Held held;
  };
  const std::vector<State>& states(int group) const { return at(group, true).states; }

  // Trainable weights that are split have their low bits as the first state.
  bool split(ParamId id) const { return table_[id].trainable && numerics_.split_master(); }
  const Held& low(int group) const { return states(group)[0].held; }
  // m and v, if there are states.
  bool has_moments() const { return states_; }

  // The parameters' values in an array over the whole segment: `count` joined ones are one matrix (or vector).
  Operand view(const Operand& whole, ParamId first, int count = 1) const;

 private:
  struct Arrays {
    Held weights;
    std::vector<State> states;
  };
  const Arrays& at(int group, bool trainable) const { return arrays_[static_cast<size_t>(2 * group + trainable)]; }

  const ParamTable& table_;
  const Layout& layout_;
  Numerics numerics_;
  bool states_;
  std::vector<Arrays> arrays_;  // by group, frozen then trainable
};

}  // namespace snug
