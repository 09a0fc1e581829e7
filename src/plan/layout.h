// Where every parameter lies in the flat segments that ranks share.
//
// A group has up to two segments, what is trained and what is frozen. Parameters whose rows belong to one product are
// one run of elements; each run starts at a multiple of kUnit, and a segment is a multiple of ranks x kUnit elements
// long, so that parts hold whole units. Places do not depend on how many ranks there are.
#pragma once

#include <span>

#include "model/params.h"
#include "program/topology.h"

namespace snug {

// Elements [begin, end) of a segment.
struct Span {
  int64_t begin = 0, end = 0;
  int64_t count() const { return std::max<int64_t>(0, end - begin); }
  bool operator==(const Span&) const = default;
};
Span intersection(const Span& a, const Span& b);

class Layout {
 public:
  Layout(const ParamTable& table, const Topology& topology);

  const Topology& topology() const { return topology_; }

  // A joined chain of parameters.
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
  const Segment& segment(int group, bool trainable) const { return segments_[index(group, trainable)]; }
  int groups() const { return static_cast<int>(segments_.size() / 2); }

  // Of a parameter, in its segment.
  Span span(ParamId id) const;

  // What this rank has of a segment of so many elements: its part; or its shard, of which it shares the parts.
  Span part(int64_t elements) const;
  Span shard(int64_t elements) const;

 private:
  static size_t index(int group, bool trainable) { return static_cast<size_t>(2 * group + (trainable ? 1 : 0)); }

  Topology topology_;
  std::vector<Segment> segments_;
  std::vector<Span> spans_;  // by ParamId
};

}  // namespace snug
