// Charts as SVG, with nothing but the numbers that they show.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "report/html.h"
#include "report/run_files.h"

namespace snug {

// How much of everything a page shows: halved until the page is small enough.
struct Detail {
  size_t columns = 320;  // of a chart: each shows the least and the largest value of its steps
  size_t rows = 40;      // of a chart's table
  size_t slots = 820;    // of a timeline: each shows what took most of its time
  size_t samples = 24;
  size_t text = 1200;  // bytes of a sample
  size_t cell = 240;   // bytes of any other value
};

struct Point {
  double step = 0, value = 0;
};

// At most two points a column of equal width in steps: the least and the largest value, in the order of steps; and
// always the first and the last value. Missing values are passed over.
std::vector<Point> thinned(std::span<const double> steps, std::span<const double> values, size_t columns);

// A mean over `width` values around each, of values that are there; kMissing where there is none.
std::vector<double> smoothed(std::span<const double> values, size_t width);

struct Series {
  std::string label;  // the run
  size_t style = 0;   // which of the page's colours and dashes
  std::span<const double> steps, values;
};

struct ChartSpec {
  std::string id;     // of the figure; letters, digits and dashes
  std::string title;  // "Loss"
  std::string about;  // what it is, in a sentence; may be empty
  std::vector<Series> series;
  std::function<std::string(double)> text = short_number;  // of a value
  bool from_zero = false;                                  // whether the axis begins at zero
  bool smooth = false;  // whether a mean over neighbours is drawn where steps are many
};

// A figure with its title, the curves, a legend where there are several runs, and a table of the same numbers, thinned.
// Nothing if no series has a value.
Html chart(const ChartSpec& spec, const Detail& detail);

inline constexpr ptrdiff_t kColours = 10;  // of parts, in the page's style: c0 to c9

// A bar of parts, one above another: bytes by name.
struct StackedBar {
  std::string label;
  std::vector<NamedBytes> parts;
};
// Bars on one scale, from zero. Parts of the same name have the same colour; the legend is the table that goes with
// them.
Html stacked_bars(const std::string& description, std::span<const StackedBar> bars, std::span<const std::string> names);

// Lanes as rows of bars over the time of a step.
Html timeline_chart(const Timeline& timeline, const std::string& description, const Detail& detail);

}  // namespace snug
