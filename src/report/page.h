// A page about runs: one file of HTML that needs nothing else.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "report/run_files.h"

namespace snug {

inline constexpr size_t kMaxRuns = 8;
inline constexpr size_t kMaxPage = 1'000'000;  // bytes

// How every page begins.
inline constexpr std::string_view kPageBegin = "<!doctype html>";

// `made` says when, for people. Curves and tables are thinned until the page is small enough; 1 to kMaxRuns runs.
// UserError where it does not get so small.
std::string report_page(std::span<const RunFiles> runs, const std::string& made);

}  // namespace snug
