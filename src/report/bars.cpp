// Charts of rows: bytes that stand beside one another, and what ran when.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <tuple>

#include "report/chart.h"

namespace snug {
namespace {

// In the drawing's own units.
constexpr double kWidth = 960, kLeft = 130, kRight = 12, kTop = 6, kBottom = 26;
constexpr double kRow = 30, kBar = 20;

double place(double value, double most) { return kLeft + value / most * (kWidth - kLeft - kRight); }

// About eight of 1, 2 or 5 times a power of ten.
double tick_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 8)));
  for (const double step : {1.0, 2.0, 5.0})
    if (step * power * 8 >= range) return step * power;
  return 10 * power;
}

std::string scale(double most, double unit, std::string_view unit_name, double bottom) {
  std::string svg;
  const double tick = tick_of(most / unit);
  for (double k = 0; k * tick * unit <= most; k++) {
    const double at = place(k * tick * unit, most);
    const std::string label = fmt::format("{:.4g}{}{}", k * tick, k == 0 ? " " : "", k == 0 ? unit_name : "");
    svg += html(R"(<path class="grid" d="M{} {}V{}"/><text class="middle" x="{}" y="{}">{}</text>)",
                fmt::format("{:.1f}", at), kTop, bottom, fmt::format("{:.1f}", at), bottom + 16, label)
               .text;
  }
  return svg;
}

std::string row_label(std::string_view text, double y) {
  return html(R"(<text class="end" x="{}" y="{}">{}</text>)", kLeft - 8, y + kBar / 2 + 4, cut_text(text, 24)).text;
}

Html drawing(double height, std::string_view description, std::string svg) {
  return html(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><svg class=\"wide\" viewBox=\"0 0 {} "
      "{}\" "
      "role=\"img\" aria-label=\"{}\">{}</svg></div>",
      description, kWidth, height, description, Html{std::move(svg)});
}

// A row of the drawing: a lane's ops, or what they waited for.
using RowKey = std::pair<size_t, bool>;

// What filled most of a slot of time.
struct Filling {
  double time = -1;
  OpGroup group{};
  const TimelineOp* op = nullptr;
};

// Neighbouring slots that one op filled most of, or ops of one group.
struct Bar {
  size_t begin = 0, end = 0;
  OpGroup group{};
  const TimelineOp* op = nullptr;  // null where there were several
};

void fill_slots(std::vector<Filling>& slots, const TimelineOp& op, double width) {
  const double end = op.begin + op.duration;
  const auto last = static_cast<double>(slots.size() - 1);
  const auto slot_of = [&](double time) { return static_cast<size_t>(std::clamp(time / width, 0.0, last)); };
  for (size_t i = slot_of(op.begin); i <= slot_of(end); i++) {
    const double begin = static_cast<double>(i) * width;
    const double time = std::min(end, begin + width) - std::max(op.begin, begin);
    if (time >= 0 && time > slots[i].time) slots[i] = {time, op.group, &op};
  }
}

std::vector<Bar> bars_of(std::span<const Filling> slots) {
  std::vector<Bar> bars;
  for (size_t i = 0; i < slots.size(); i++) {
    if (!slots[i].op) continue;
    Bar* const before = bars.empty() ? nullptr : &bars.back();
    if (before && before->end == i && before->group == slots[i].group) {
      before->end++;
      if (before->op != slots[i].op) before->op = nullptr;
    } else {
      bars.push_back({i, i + 1, slots[i].group, slots[i].op});
    }
  }
  return bars;
}

std::string title_of(const Bar& bar) {
  if (!bar.op) return "";
  return html("<title>{}, {}: {} ms</title>", cut_text(bar.op->name, 80), cut_text(bar.op->kind, 40),
              fmt::format("{:.3g}", bar.op->duration / 1e3))
      .text;
}

}  // namespace

Html stacked_bars(const std::string& description, std::span<const StackedBar> bars,
                  std::span<const std::string> names) {
  double most = 0;
  for (const StackedBar& bar : bars) {
    double sum = 0;
    for (const NamedBytes& part : bar.parts) sum += part.bytes;
    most = std::max(most, sum);
  }
  if (most < 1) return {};
  const double unit = most >= 0x1p30 ? 0x1p30 : 0x1p20;
  const double bottom = kTop + kRow * static_cast<double>(bars.size());
  std::string svg = scale(most, unit, unit == 0x1p30 ? "GiB" : "MiB", bottom);
  double y = kTop + (kRow - kBar) / 2;
  for (const StackedBar& bar : bars) {
    svg += row_label(bar.label, y);
    double begin = 0;
    for (const NamedBytes& part : bar.parts) {
      const double x = place(begin, most), end = place(begin + part.bytes, most);
      const auto found = std::ranges::find(names, part.name);
      const std::string colour =
          found == names.end() ? "plain" : fmt::format("c{}", (found - names.begin()) % kColours);
      svg += html(R"(<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}: {}</title></rect>)", colour,
                  fmt::format("{:.1f}", x), y, fmt::format("{:.1f}", std::max(0.0, end - x)), kBar,
                  cut_text(part.name, 60), bytes_text(part.bytes))
                 .text;
      begin += part.bytes;
    }
    y += kRow;
  }
  return drawing(bottom + kBottom, description, std::move(svg));
}

Html timeline_chart(const Timeline& timeline, const std::string& description, const Detail& detail) {
  if (timeline.duration < 1e-3) return {};  // a nanosecond, the trace's unit
  const double most = timeline.duration;
  std::map<RowKey, std::vector<Filling>> rows;
  for (const TimelineOp& op : timeline.ops) {
    const RowKey key(op.lane, op.group == OpGroup::Wait);
    fill_slots(rows.try_emplace(key, detail.slots).first->second, op, most / static_cast<double>(detail.slots));
  }
  const double unit = most >= 1e6 ? 1e6 : most >= 1e3 ? 1e3 : 1;
  const double bottom = kTop + kRow * static_cast<double>(timeline.lanes.size());
  std::string svg = scale(most, unit, unit == 1e6 ? "s" : unit == 1e3 ? "ms" : "us", bottom);
  for (size_t lane = 0; lane < timeline.lanes.size(); lane++)
    svg += row_label(timeline.lanes[lane], kTop + kRow * static_cast<double>(lane) + (kRow - kBar) / 2);
  const double width = (kWidth - kLeft - kRight) / static_cast<double>(detail.slots);
  for (const auto& [key, slots] : rows) {
    const auto [lane, waits] = key;
    const double y = kTop + kRow * static_cast<double>(lane) + (kRow - kBar) / 2 + (waits ? kBar : 0);
    for (const Bar& bar : bars_of(slots))
      fmt::format_to(std::back_inserter(svg),
                     R"(<rect class="g{}" x="{:.1f}" y="{:g}" width="{:.1f}" height="{}">{}</rect>)",
                     static_cast<int>(bar.group), kLeft + width * static_cast<double>(bar.begin), y,
                     width * static_cast<double>(bar.end - bar.begin), waits ? 4.0 : kBar, title_of(bar));
  }
  return drawing(bottom + kBottom, description, std::move(svg));
}

}  // namespace snug
