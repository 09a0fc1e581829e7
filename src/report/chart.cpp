#include "report/chart.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/rounding.h"

namespace snug {
namespace {

// In the chart's own units.
constexpr double kWidth = 480, kHeight = 250, kLeft = 58, kRight = 8, kTop = 8, kBottom = 34;
constexpr size_t kSmoothedFrom = 80;  // values, above which a mean over neighbours says more than they do

// Of an axis: what is shown and how it is divided.
struct Axis {
  double low = 0, high = 1, tick = 1, begin = 0, end = 1;  // the last two: of the drawing

  double place(double value) const { return begin + (value - low) / (high - low) * (end - begin); }
};

// 1, 2 or 5 times a power of ten, so that about `count` fit.
double tick_of(double range, double count) {
  const double raw = range / count, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double step : {1.0, 2.0, 5.0})
    if (step * power >= raw) return step * power;
  return 10 * power;
}

Axis value_axis(double least, double most, bool from_zero) {
  if (from_zero) least = std::min(least, 0.0), most = std::max(most, 0.0);
  double range = most - least;
  // Values that are alike get an axis all the same.
  if (range < std::max(1e-12 * std::fabs(most), 1e-100)) range = std::max(std::fabs(most), 1e-6);
  const double room = 0.05 * range;
  const bool at_zero = from_zero && least == 0;
  return {at_zero ? 0 : least - room, most + room, tick_of(range, 5), kHeight - kBottom, kTop};
}

Axis step_axis(double first, double last) {
  if (first == last) first -= 1, last += 1;
  return {first, last, std::max(1.0, tick_of(last - first, 5)), kLeft, kWidth - kRight};
}

struct Limits {
  double first = INFINITY, last = -INFINITY, least = INFINITY, most = -INFINITY;

  void add(const Point& point) {
    first = std::min(first, point.step), last = std::max(last, point.step);
    least = std::min(least, point.value), most = std::max(most, point.value);
  }
};

std::string grid(const Axis& x, const Axis& y, const std::function<std::string(double)>& text) {
  std::string svg;
  auto out = std::back_inserter(svg);
  for (double k = std::ceil(y.low / y.tick); k * y.tick <= y.high; k++) {
    const double at = y.place(k * y.tick);
    fmt::format_to(out, R"(<path class="grid" d="M{} {:.1f}H{}"/>)", kLeft, at, kWidth - kRight);
    const std::string label = text(k == 0 ? 0 : k * y.tick);
    fmt::format_to(out, R"(<text class="end" x="{}" y="{:.1f}">{}</text>)", kLeft - 6, at + 4, escape_html(label));
  }
  for (double k = std::ceil(x.low / x.tick); k * x.tick <= x.high; k++) {
    const double at = x.place(k * x.tick);
    const bool near_end = at > kWidth - kRight - 20;
    fmt::format_to(out, R"(<text class="{}" x="{:.1f}" y="{}">{}</text>)", near_end ? "end" : "middle",
                   near_end ? kWidth - kRight : at, kHeight - kBottom + 16, short_number(k * x.tick));
  }
  fmt::format_to(out, R"(<path class="axis" d="M{} {}H{}"/>)", kLeft, kHeight - kBottom, kWidth - kRight);
  return svg + fmt::format(R"(<text class="end" x="{}" y="{}">step</text>)", kWidth - kRight, kHeight - 4);
}

std::string path_of(std::span<const Point> points, const Axis& x, const Axis& y) {
  std::string d;
  for (const Point& point : points)
    fmt::format_to(std::back_inserter(d), "{}{:.1f} {:.1f}", d.empty() ? "M" : "L", x.place(point.step),
                   y.place(point.value));
  // A line without length is not drawn.
  if (points.size() == 1) d += "h0.01";
  return d;
}

// What a curve is, for who does not see it: "loss: 4.043 at step 1, 2.51 at step 60; least 2.4 at step 55, most ...".
std::string words_of(const Series& series, std::span<const Point> points, const ChartSpec& spec) {
  const auto [least, most] = std::ranges::minmax_element(points, {}, &Point::value);
  const auto at = [&](const Point& p) {
    return fmt::format("{} at step {}", spec.text(p.value), short_number(p.step));
  };
  return fmt::format("{}: {}, {}; least {}, most {}. ", series.label, at(points.front()), at(points.back()), at(*least),
                     at(*most));
}

std::string curve(const Series& series, std::span<const Point> points, const ChartSpec& spec, const Axis& x,
                  const Axis& y, const Detail& detail) {
  std::string data;
  for (const Point& point : points)
    fmt::format_to(std::back_inserter(data), "{}{}={}", data.empty() ? "" : ";", short_number(point.step),
                   spec.text(point.value));
  const bool smooth = spec.smooth && series.values.size() >= kSmoothedFrom;
  const char* const look = smooth ? " faint" : points.size() == 1 ? " dot" : "";
  std::string svg = html(R"(<path class="line s{}{}" data-label="{}" data-points="{}" d="{}"/>)", series.style, look,
                         series.label, data, path_of(points, x, y))
                        .text;
  if (!smooth) return svg;
  const std::vector<double> means = smoothed(series.values, series.values.size() / 40);
  const std::vector<Point> mean_points = thinned(series.steps, means, detail.columns / 2);
  return svg + fmt::format(R"(<path class="line s{}" d="{}"/>)", series.style, path_of(mean_points, x, y));
}

// So many of all values as there are rows, at equal distances, and the last.
Html table_of(const ChartSpec& spec, const Detail& detail) {
  Html body;
  for (const Series& series : spec.series) {
    std::vector<size_t> there;
    for (size_t i = 0; i < series.values.size(); i++)
      if (std::isfinite(series.values[i])) there.push_back(i);
    const size_t stride = std::max<size_t>(1, ceil_div(there.size(), detail.rows));
    for (size_t i = 0; i < there.size(); i++)
      if (i % stride == 0 || i + 1 == there.size())
        body.text += html("<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>", series.label,
                          short_number(series.steps[there[i]]), spec.text(series.values[there[i]]))
                         .text;
  }
  return html(
      "<details><summary>{} as a table</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" "
      "aria-label=\"{} as a table\"><table><thead><tr><th scope=\"col\">run</th><th scope=\"col\">step</th>"
      "<th scope=\"col\">value</th></tr></thead><tbody>{}</tbody></table></div></details>",
      spec.title, spec.title, body);
}

Html legend_of(const ChartSpec& spec) {
  Html items;
  for (const Series& series : spec.series)
    items.text += html(
                      "<li><svg viewBox=\"0 0 28 10\" aria-hidden=\"true\"><path class=\"line s{}\" d=\"M0 5H28\"/>"
                      "</svg> {}</li>",
                      series.style, series.label)
                      .text;
  return html("<ul class=\"legend\">{}</ul>", items);
}

}  // namespace

std::vector<Point> thinned(std::span<const double> steps, std::span<const double> values, size_t columns) {
  std::vector<Point> all;
  for (size_t i = 0; i < values.size(); i++)
    if (std::isfinite(values[i])) all.push_back({steps[i], values[i]});
  if (all.size() <= 2 * columns + 2) return all;
  const double first = all.front().step, width = (all.back().step - first) / static_cast<double>(columns);
  std::vector<Point> kept{all.front()};
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    const auto column = [&](size_t i) { return std::floor((all[i].step - first) / width); };
    while (end < all.size() && column(end) == column(begin)) end++;
    const auto [least, most] =
        std::minmax_element(all.begin() + static_cast<ptrdiff_t>(begin), all.begin() + static_cast<ptrdiff_t>(end),
                            [](const Point& a, const Point& b) { return a.value < b.value; });
    for (const auto& point : {std::min(least, most), std::max(least, most)})
      if (point->step > kept.back().step) kept.push_back(*point);
  }
  if (kept.back().step < all.back().step) kept.push_back(all.back());
  return kept;
}

std::vector<double> smoothed(std::span<const double> values, size_t width) {
  // Sums of what comes before, so that a window's is a difference.
  std::vector<double> sums{0}, counts{0};
  for (const double value : values) {
    const bool there = std::isfinite(value);
    sums.push_back(sums.back() + (there ? value : 0));
    counts.push_back(counts.back() + (there ? 1 : 0));
  }
  std::vector<double> means;
  for (size_t i = 0; i < values.size(); i++) {
    const size_t begin = i - std::min(i, width / 2), end = std::min(values.size(), i + width / 2 + 1);
    const double count = counts[end] - counts[begin];
    means.push_back(count > 0 ? (sums[end] - sums[begin]) / count : kMissing);
  }
  return means;
}

Html chart(const ChartSpec& spec, const Detail& detail) {
  std::vector<std::vector<Point>> curves;
  Limits limits;
  for (const Series& series : spec.series) {
    curves.push_back(thinned(series.steps, series.values, detail.columns));
    for (const Point& point : curves.back()) limits.add(point);
  }
  if (limits.first > limits.last) return {};
  const Axis x = step_axis(limits.first, limits.last);
  const Axis y = value_axis(limits.least, limits.most, spec.from_zero);
  std::string svg = grid(x, y, spec.text), words;
  bool smooth = false;
  for (size_t i = 0; i < curves.size(); i++) {
    if (curves[i].empty()) continue;
    svg += curve(spec.series[i], curves[i], spec, x, y, detail);
    words += words_of(spec.series[i], curves[i], spec);
    smooth = smooth || (spec.smooth && spec.series[i].values.size() >= kSmoothedFrom);
  }
  const std::string about =
      smooth ? spec.about + " The bold line is the mean over a fortieth of the steps around each." : spec.about;
  return html(
      "<figure id=\"{}\"><figcaption><h3>{}</h3><p>{}</p></figcaption><div class=\"plot\" data-title=\"{}\" "
      "data-left=\"{}\" data-right=\"{}\" data-first=\"{}\" data-last=\"{}\"><svg viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}. {}\">{}</svg></div>{}{}</figure>\n",
      spec.id, spec.title, about, spec.title, kLeft / kWidth, 1 - kRight / kWidth, x.low, x.high, kWidth, kHeight,
      spec.title, words, Html{svg}, spec.series.size() > 1 ? legend_of(spec) : Html(), table_of(spec, detail));
}

}  // namespace snug
