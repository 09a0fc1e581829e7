#include "plan/layout/layout.h"

#include <algorithm>

#include "base/rounding.h"

namespace snug {
namespace {}  // namespace

Span intersection(const Span& a, const Span& b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

Layout::Layout(const ParamTable& table, const Topology& topology, const std::vector<Form>& forms)
    : topology_(topology), segments_(static_cast<size_t>(table.group_count()) * kSegmentKinds.size()) {
  for (size_t i = 0; i < table.params.size(); i++) {
    const ParamSpec& param = table.params[i];
    const SegmentKind kind = param.trainable               ? SegmentKind::Trained
                             : forms[i] == Form::Quantized ? SegmentKind::Quantized
                                                           : SegmentKind::Frozen;
    const bool joined = param.joined && kind != SegmentKind::Quantized && kinds_.back() == kind;
    kinds_.push_back(kind);
    if (param.constant || (kind == SegmentKind::Frozen && forms[i] == Form::InFile)) {
      spans_.emplace_back();
      continue;
    }
    Segment& segment = segments_[index(param.group, kind)];
    if (!joined) {
      segment.elements = round_up(segment.elements, unit_of(kind));
      segment.runs.push_back({static_cast<ParamId>(i), 0, {segment.elements, segment.elements}});
    }
    spans_.push_back({segment.elements, segment.elements + param.shape.count()});
    segment.elements = spans_.back().end;
    Run& run = segment.runs.back();
    check(run.first + run.count == static_cast<ParamId>(i), "parameter '{}' does not follow its run", param.name);
    run.count++;
    run.span.end = segment.elements;
  }
  for (int g = 0; g < table.group_count(); g++)
    for (const SegmentKind kind : kSegmentKinds) {
      Segment& segment = segments_[index(g, kind)];
      segment.used = round_up(segment.elements, unit_of(kind));
      segment.elements = round_up(segment.used, topology.ranks * unit_of(kind));
    }
}

Span Layout::part(int64_t elements) const {
  const int64_t size = elements / topology_.ranks;
  return {topology_.part() * size, (topology_.part() + 1) * size};
}

Span Layout::shard(int64_t elements) const {
  const int64_t size = elements / topology_.shards();
  return {topology_.shard() * size, (topology_.shard() + 1) * size};
}

}  // namespace snug
