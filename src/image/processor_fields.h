// Visits the fields of how pictures become rows of patches (base/fields.h).
#pragma once

#include "base/fields.h"
#include "image/processor.h"

namespace snug {

template <RecordOf<BoundedPixels> R, class Visit>
void visit_fields(R& sizing, Visit&& visit) {
  auto& [min_pixels, max_pixels] = sizing;
  visit("min_pixels", min_pixels);
  visit("max_pixels", max_pixels);
}

template <RecordOf<FixedSize> R, class Visit>
void visit_fields(R& sizing, Visit&& visit) {
  auto& [width, height] = sizing;
  visit("width", width);
  visit("height", height);
}

template <RecordOf<OverviewAndSlices> R, class Visit>
void visit_fields(R& sizing, Visit&& visit) {
  auto& [resolution, max_slices] = sizing;
  visit("resolution", resolution);
  visit("max_slices", max_slices);
}

template <RecordOf<ImageProcessor> R, class Visit>
void visit_fields(R& processor, Visit&& visit) {
  auto& [sizing, resampling, patch, merge, frames, video_pixels, factor, mean, deviation, view_tokens] = processor;
  visit("sizing", sizing);
  visit("resampling", resampling);
  visit("patch", patch);
  visit("merge", merge);
  visit("frames", frames);
  visit("video_pixels", video_pixels);
  visit("factor", factor);
  visit("mean", mean);
  visit("deviation", deviation);
  visit("view_tokens", view_tokens);
}

}  // namespace snug
