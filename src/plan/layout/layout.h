// Says where every parameter lies in the flat segments that ranks share.
//
// A group has up to three segments: for what is trained, for what is frozen, and for the frozen linears of a quantised
// base. A parameter that stays in its file is in none, nor is a constant. Parameters whose rows belong to one product
// are one run of elements (in a quantised base each is a run by itself). Each run starts at a multiple of the segment's
// unit, and a segment is a multiple of ranks x units long, so that parts hold whole units. Places do not depend on how
// many ranks there are.
#pragma once

#include <array>

#include "model/params.h"
#include "program/topology.h"

namespace snug {

// Names elements [begin, end) of a segment.
struct Span {
  int64_t begin = 0, end = 0;
  int64_t count() const { return std::max<int64_t>(0, end - begin); }
  bool operator==(const Span&) const = default;
};
Span intersection(const Span& a, const Span& b);

// Says how a parameter that is not trained is held: as numbers, in fewer bits, or not at all, as its bytes are copied
// from one file to another.
enum class Form : uint8_t { Plain, Quantized, InFile };

enum class SegmentKind : uint8_t { Frozen, Quantized, Trained };
inline constexpr std::array kSegmentKinds{SegmentKind::Frozen, SegmentKind::Quantized, SegmentKind::Trained};

// Returns the number of elements in a unit, which never lies on two ranks: norms are summed by units, and in a
// quantised base a unit has one scale of scales.
constexpr int64_t unit_of(SegmentKind kind) {
  return kind == SegmentKind::Quantized ? kNf4Block * kNf4ScaleBlock : kUnit;
}

class Layout {
 public:
  // `forms` is indexed by ParamId.
  Layout(const ParamTable& table, const Topology& topology, const std::vector<Form>& forms);

  const Topology& topology() const { return topology_; }

  // Holds neighbouring parameters that belong to one product.
  struct Run {
    ParamId first = kNoParam;
    int count = 0;
    Span span;
  };
  struct Segment {
    std::vector<Run> runs;
    int64_t elements = 0;  // padding included
    int64_t used = 0;      // up to the end of the last run, rounded up to a unit
  };
  const Segment& segment(int group, SegmentKind kind) const { return segments_[index(group, kind)]; }

  // Return the segment of its group that a parameter is in, and where in that segment it lies.
  SegmentKind kind(ParamId id) const { return kinds_[static_cast<size_t>(id)]; }
  Span span(ParamId id) const { return spans_[static_cast<size_t>(id)]; }
  // Returns whether the parameter lies in a segment; false for a constant, and for one that stays in its file.
  bool holds(ParamId id) const { return span(id).count() > 0; }

  // Return what this rank has of a segment of `elements` elements: the part that it owns, or its shard, whose parts are
  // owned by the ranks that share it.
  Span part(int64_t elements) const;
  Span shard(int64_t elements) const;

 private:
  static size_t index(int group, SegmentKind kind) {
    return static_cast<size_t>(group) * kSegmentKinds.size() + static_cast<size_t>(kind);
  }

  Topology topology_;
  std::vector<Segment> segments_;
  std::vector<SegmentKind> kinds_;  // by ParamId
  std::vector<Span> spans_;         //   by ParamId
};

}  // namespace snug
