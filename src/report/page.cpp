#include "report/page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/option_name.h"
#include "base/statistics.h"
#include "report/chart.h"
#include "report/page_template.h"

namespace snug {
namespace {

using Runs = std::span<const RunFiles>;

constexpr size_t kMostRows = 400;  // of a table of keys: snug writes some sixty options and fields

// Metrics that have a chart of their own, in this order; others follow under their keys.
struct KnownMetric {
  const char *key, *title, *about;
  bool from_zero, smooth;
};
constexpr KnownMetric kKnown[] = {
    {"loss", "Loss",
     "Mean over what a step learns from, before its update: loss tokens, or pairs or replies that are judged.", false,
     true},
    {"eval_loss", "Held-out loss", "The same of the validation data.", false, false},
    {"grad_norm", "Gradient norm", "Of all trained parameters together, before clipping.", true, true},
    {"learning_rate", "Learning rate", "As the schedule has it at each step.", true, false},
    {"tokens_per_second", "Tokens per second", "Over all ranks.", true, true},
};
// Shown in tables, or a fact of the data.
constexpr const char* kNoChart[] = {"tokens", "loss_tokens", "step_seconds", "device_bytes", "host_bytes"};

// ---- Facts of a run -------------------------------------------------------------------------------------------------

double last_of(const std::vector<double>& values) {
  const auto found = std::find_if(values.rbegin(), values.rend(), [](double v) { return std::isfinite(v); });
  return found == values.rend() ? kMissing : *found;
}

double most_of(const std::vector<double>& values) {
  double most = kMissing;
  for (const double value : values)
    if (std::isfinite(value) && !(value <= most)) most = value;
  return most;
}

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0,
                         [](double sum, double value) { return std::isfinite(value) ? sum + value : sum; });
}

std::string best_text(const MetricsTable& metrics) {
  const std::vector<double>& losses = metrics.of("eval_loss");
  const size_t best = least_of(losses);
  if (best == losses.size()) return "-";
  return fmt::format("{} at step {}", short_number(losses[best]), short_number(metrics.steps[best]));
}

// ---- Tables ---------------------------------------------------------------------------------------------------------

// A row of a table with a column for each run.
struct Row {
  std::string name;
  std::vector<std::string> cells;

  bool differs() const {
    return std::ranges::any_of(cells, [&](const std::string& c) { return c != cells.front(); });
  }
};

// `marks`: whether rows in which runs differ are said to.
Html table_by_run(Runs runs, const std::string& caption, const std::vector<Row>& rows, const Detail& detail,
                  bool marks) {
  Html head, body;
  for (const RunFiles& run : runs) head.text += html("<th scope=\"col\">{}</th>", run.name).text;
  for (const Row& row : rows) {
    Html cells;
    for (const std::string& cell : row.cells) cells.text += html("<td>{}</td>", cut_text(cell, detail.cell)).text;
    const bool marked = marks && row.differs();
    body.text += html("<tr{}><th scope=\"row\">{}{}</th>{}</tr>", Html{marked ? " class=\"differs\"" : ""},
                      cut_text(row.name, detail.cell), marked ? " (differs)" : "", cells)
                     .text;
  }
  return html("<table><caption>{}</caption><thead><tr><td></td>{}</tr></thead><tbody>{}</tbody></table>\n", caption,
              head, body);
}

// What may be wider than the page: it takes the focus, so that keys scroll it.
Html scrollable(const std::string& label, const Html& table) {
  return html("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">{}</div>\n", label, table);
}

Row row_of(Runs runs, const std::string& name, const auto& cell) {
  Row row{name, {}};
  for (const RunFiles& run : runs) row.cells.push_back(cell(run));
  return row;
}

// Rows of all keys of all runs, in the order in which the first run that has one has it.
std::vector<Row> rows_by_key(Runs runs, TextByKey RunFiles::*list) {
  std::vector<std::string> keys;
  std::map<std::string, std::map<size_t, std::string>> values;
  for (size_t i = 0; i < runs.size(); i++)
    for (const auto& [key, value] : runs[i].*list) {
      if (!values.contains(key)) {
        if (keys.size() == kMostRows) continue;
        keys.push_back(key);
      }
      values[key][i] = value;
    }
  std::vector<Row> rows;
  for (const std::string& key : keys) {
    Row row{key, {}};
    for (size_t i = 0; i < runs.size(); i++) row.cells.push_back(values[key].contains(i) ? values[key][i] : "-");
    rows.push_back(std::move(row));
  }
  return rows;
}

Html section(const char* id, const char* title, const Html& body) {
  return html("<section id=\"{}\" aria-labelledby=\"{}-title\"><h2 id=\"{}-title\">{}</h2>\n{}</section>\n", id, id, id,
              title, body);
}

// ---- Sections -------------------------------------------------------------------------------------------------------

Html summary(Runs runs, const Detail& detail) {
  const auto rows = std::vector<Row>{
      row_of(runs, "steps",
             [](const RunFiles& r) { return short_number(r.metrics.steps.empty() ? 0 : r.metrics.steps.back()); }),
      row_of(runs, "loss of the last step",
             [](const RunFiles& r) { return short_number(last_of(r.metrics.of("loss"))); }),
      row_of(runs, "best held-out loss", [](const RunFiles& r) { return best_text(r.metrics); }),
      row_of(runs, "tokens", [](const RunFiles& r) { return short_number(sum_of(r.metrics.of("tokens"))); }),
      row_of(runs, "tokens per second, median",
             [](const RunFiles& r) { return short_number(quantile_of(r.metrics.of("tokens_per_second"), 0.5)); }),
      row_of(runs, "seconds a step, median",
             [](const RunFiles& r) { return short_number(quantile_of(r.metrics.of("step_seconds"), 0.5)); }),
      row_of(runs, "seconds a step, planned",
             [](const RunFiles& r) { return short_number(r.plan.step_seconds.value_or(kMissing)); }),
      row_of(runs, "trained parameters",
             [](const RunFiles& r) {
               return fmt::format("{} of {}", short_number(r.plan.trainable_parameters),
                                  short_number(r.plan.parameters));
             }),
      row_of(runs, "arrangement", [](const RunFiles& r) { return r.plan.arrangement; }),
  };
  Html notes;
  for (const RunFiles& run : runs) {
    if (run.metrics.steps.empty()) notes.text += html("<p>{}: no step has been written yet.</p>", run.name).text;
    if (run.metrics.torn)
      notes.text += html("<p>{}: the last line of metrics was not whole and is left out.</p>", run.name).text;
  }
  return section(
      "summary", "At a glance",
      {scrollable("Runs at a glance", table_by_run(runs, "Runs at a glance", rows, detail, false)).text + notes.text});
}

ChartSpec spec_of(Runs runs, const std::string& key, const std::string& id) {
  ChartSpec spec{.id = id, .title = cut_text(key, 60), .about = "", .series = {}};
  for (const KnownMetric& known : kKnown)
    if (key == known.key) {
      spec.title = known.title, spec.about = known.about;
      spec.from_zero = known.from_zero, spec.smooth = known.smooth;
    }
  for (size_t i = 0; i < runs.size(); i++)
    if (const std::vector<double>& values = runs[i].metrics.of(key); !values.empty())
      spec.series.push_back({runs[i].name, i, runs[i].metrics.steps, values});
  return spec;
}

Html curves(Runs runs, const Detail& detail) {
  std::vector<std::string> keys;
  for (const KnownMetric& known : kKnown) keys.push_back(known.key);
  for (const RunFiles& run : runs)
    for (const auto& [key, values] : run.metrics.values)
      if (std::ranges::find(keys, key) == keys.end() && std::ranges::find(kNoChart, key) == std::end(kNoChart))
        keys.push_back(key);
  Html figures;
  for (size_t i = 0; i < keys.size(); i++)
    figures.text += chart(spec_of(runs, keys[i], fmt::format("chart-{}", i)), detail).text;
  if (figures.text.empty()) figures.text = "<p>No step has been written yet.</p>";
  return section("curves", "Curves", html("<div class=\"figures\">{}</div>", figures));
}

// `names`: of the classes of all runs, so that each has one colour on the whole page.
Html memory_of(const RunFiles& run, size_t number, const std::vector<std::string>& names, const Detail& detail) {
  const Runs alone(&run, 1);
  const double device = most_of(run.metrics.of("device_bytes")), host = most_of(run.metrics.of("host_bytes"));
  std::vector<StackedBar> bars{{"plan, by class", run.plan.classes}};
  if (std::isfinite(device)) bars.push_back({"measured", {{"measured", device}}});
  for (const NamedBytes& phase : run.plan.phases) bars.push_back({"phase " + phase.name, {phase}});
  const std::string description =
      fmt::format("Bytes of the device, of rank 0: the plan {}, measured {}; the table below has the numbers",
                  bytes_text(run.plan.device_bytes), bytes_text(device));
  Html rows;
  const double all = std::max(1.0, run.plan.device_bytes);
  for (const NamedBytes& part : run.plan.classes) {
    rows.text += html(
                     "<tr><th scope=\"row\"><span class=\"key c{}\"></span>{}</th><td class=\"number\">{}</td>"
                     "<td class=\"number\">{}</td></tr>",
                     (std::ranges::find(names, part.name) - names.begin()) % kColours, cut_text(part.name, detail.cell),
                     bytes_text(part.bytes), fmt::format("{:.1f} %", 100 * part.bytes / all))
                     .text;
  }
  const Html classes = html(
      "<table><caption>Ledger of the device by class, where it is fullest: {}</caption><thead><tr><th scope=\"col\">"
      "class</th><th scope=\"col\">bytes</th><th scope=\"col\">share</th></tr></thead><tbody>{}</tbody></table>",
      cut_text(run.plan.peak, detail.cell), rows);
  std::vector<Row> phases;
  for (const NamedBytes& phase : run.plan.phases) phases.push_back({phase.name, {bytes_text(phase.bytes)}});
  const auto against = [](double planned, double measured) {
    return fmt::format("{} planned, {} measured{}", bytes_text(planned), bytes_text(measured),
                       planned == measured ? ": the same to the byte" : "");
  };
  const std::vector<Row> spaces{{"device", {against(run.plan.device_bytes, device)}},
                                {"host", {against(run.plan.host_bytes, host)}}};
  return html("<h3 id=\"memory-{}\">{}</h3>\n{}<div class=\"tables\">{}<div>{}{}</div></div>\n", number, run.name,
              stacked_bars(description, bars, names), classes,
              table_by_run(alone, "Memory of rank 0 against the plan", spaces, detail, false),
              table_by_run(alone, "Ledger of the device by phase", phases, detail, false));
}

Html memory(Runs runs, const Detail& detail) {
  Html parts;
  std::vector<std::string> names;
  for (const RunFiles& run : runs)
    for (const NamedBytes& part : run.plan.classes)
      if (std::ranges::find(names, part.name) == names.end()) names.push_back(part.name);
  for (size_t i = 0; i < runs.size(); i++) parts.text += memory_of(runs[i], i, names, detail).text;
  return section("memory", "Memory against the plan", parts);
}

// What each lane did in the step: the timeline's numbers.
Html lanes_table(const Timeline& timeline) {
  std::map<std::pair<size_t, OpGroup>, std::pair<size_t, double>> sums;
  for (const TimelineOp& op : timeline.ops) {
    auto& [count, time] = sums[{op.lane, op.group}];
    count++, time += op.duration;
  }
  Html rows;
  for (const auto& [key, sum] : sums)
    rows.text +=
        html(
            "<tr><th scope=\"row\"><span class=\"key g{}\"></span>{}</th><td>{}</td><td class=\"number\">{}</td>"
            "<td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            static_cast<int>(key.second), name(key.second), cut_text(timeline.lanes[key.first], 60), sum.first,
            fmt::format("{:.3f}", sum.second / 1e3),
            fmt::format("{:.1f} %", 100 * sum.second / std::max(1e-9, timeline.duration)))
            .text;
  return html(
      "<table><caption>What lanes did in that step</caption><thead><tr><th scope=\"col\">what</th>"
      "<th scope=\"col\">lane</th><th scope=\"col\">ops</th><th scope=\"col\">ms</th><th scope=\"col\">of the "
      "step</th></tr></thead><tbody>{}</tbody></table>",
      rows);
}

Html timelines(Runs runs, const Detail& detail) {
  Html parts;
  for (const RunFiles& run : runs)
    if (run.timeline && !run.timeline->ops.empty()) {
      const Timeline& timeline = *run.timeline;
      const std::string description =
          fmt::format("Timeline of a step of {}: {:.1f} ms; traced step {} of {}; the table below has the sums",
                      run.name, timeline.duration / 1e3, timeline.step, timeline.steps);
      parts.text += html("<h3>{}</h3><p>Traced step {} of {}, {} ms. Thin bars below a lane are waits.</p>\n{}{}\n",
                         run.name, timeline.step, timeline.steps, fmt::format("{:.1f}", timeline.duration / 1e3),
                         timeline_chart(timeline, description, detail), lanes_table(timeline))
                        .text;
    }
  if (parts.text.empty())
    parts.text =
        "<p>No run has a trace: <code>snug train " + option_name("trace") + " RUN/trace.json</code> writes one.</p>";
  return section("timeline", "Timeline of a step", parts);
}

Html samples(Runs runs, const Detail& detail) {
  Html parts;
  const auto cell = [&](bool there, const std::string& text) {
    return there ? html("<td class=\"text\">{}</td>", cut_text(text, detail.text)) : Html{"<td>-</td>"};
  };
  for (const RunFiles& run : runs) {
    if (run.samples.empty()) continue;
    Html rows;
    const size_t count = std::min(run.samples.size(), detail.samples);
    for (const ReplyPair& s : std::span(run.samples).first(count))
      rows.text += html("<tr><th scope=\"row\" class=\"text\">{}</th>{}{}</tr>", cut_text(s.prompt, detail.text),
                        cell(s.has_before, s.before), cell(s.has_after, s.after))
                       .text;
    const Html table = html(
        "<table class=\"samples\"><caption>{} of {} prompts</caption><thead><tr><th scope=\"col\">prompt</th>"
        "<th scope=\"col\">before</th><th scope=\"col\">after</th></tr></thead><tbody>{}</tbody></table>",
        count, run.samples.size(), rows);
    parts.text += html("<h3>{}</h3>{}", run.name, scrollable("Samples of " + run.name, table)).text;
  }
  if (parts.text.empty())
    parts.text = "<p>No run has samples: what <code>snug generate " + option_name("json") +
                 "</code> prints is read from <code>RUN/samples-before.jsonl</code> and "
                 "<code>RUN/samples-after.jsonl</code>.</p>";
  return section("samples", "Held-out samples, before and after", parts);
}

Html job(Runs runs, const Detail& detail) {
  std::vector<Row> fingerprint{row_of(runs, "programs", [](const RunFiles& r) { return r.plan.hash; })};
  std::ranges::move(rows_by_key(runs, &RunFiles::fingerprint), std::back_inserter(fingerprint));
  Html text;
  const auto add = [&](const char* caption, const std::vector<Row>& rows) {
    text.text += scrollable(caption, table_by_run(runs, caption, rows, detail, runs.size() > 1)).text;
  };
  add("The job: every option as it took effect", rows_by_key(runs, &RunFiles::job));
  add("The fingerprint: what decides results, as the last checkpoint has it", fingerprint);
  return section("job", "The job and its fingerprint", text);
}

std::string title_of(Runs runs) {
  return runs.size() == 1 ? fmt::format("Run {}", runs[0].name) : fmt::format("{} runs compared", runs.size());
}

// The template with a text for each mark in it.
std::string filled(std::string_view page, const std::map<std::string_view, Html>& texts) {
  std::string out;
  for (size_t at = 0; at < page.size();) {
    const size_t open = page.find("{{", at), close = page.find("}}", std::min(open, page.size()));
    out += page.substr(at, open - at);
    if (open == page.npos) break;
    check(close != page.npos, "the page's template ends within a mark");
    out += texts.at(page.substr(open + 2, close - open - 2)).text;
    at = close + 2;
  }
  return out;
}

std::string page_of(Runs runs, const std::string& made, const Detail& detail) {
  const Html body{summary(runs, detail).text + curves(runs, detail).text + memory(runs, detail).text +
                  timelines(runs, detail).text + samples(runs, detail).text + job(runs, detail).text};
  return filled(kPageTemplate, {{"title", html("{}", title_of(runs))}, {"made", html("{}", made)}, {"body", body}});
}

}  // namespace

std::string report_page(Runs runs, const std::string& made) {
  check(!runs.empty() && runs.size() <= kMaxRuns, "a report of {} runs", runs.size());
  Detail detail;
  std::string page = page_of(runs, made, detail);
  while (page.size() > kMaxPage) {
    for (size_t* most : {&detail.columns, &detail.rows, &detail.slots, &detail.samples, &detail.text, &detail.cell})
      *most = std::max<size_t>(*most / 2, 1);
    if (detail.cell == 1)
      user_error("report: the page takes {} bytes at its shortest, expected at most {}: name fewer runs", page.size(),
                 kMaxPage);
    page = page_of(runs, made, detail);
  }
  return page;
}

}  // namespace snug
