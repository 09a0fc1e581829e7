// The page of `snug report`: what it shows of a run, that it is well formed and asks for nothing, whatever runs hold.
#include "report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <set>

#include "base/error.h"
#include "expect_error.h"
#include "report/chart.h"
#include "temp_directory.h"

namespace snug {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

void expect_refusal(const std::function<void()>& read, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(fails_with<UserError>(read, part));
}

constexpr const char* kPlan = R"({"format": 1, "fits": true, "hash": "00c0ffee", "peak": "pass: head.project",
  "arrangement": {"words": "1 pass of 2 blocks"}, "device_bytes": 1073741824, "host_bytes": 2048, "driver_bytes": 0,
  "ranks": [{"rank": 0, "device_bytes": 1073741824, "host_bytes": 1024, "disk_bytes": 0}],
  "phases": {"eval": 4096, "load": 1048576, "step": 1073741824},
  "classes": {"weights": 1000000000, "packing": 73741824}, "parameters": 1000, "trainable_parameters": 10,
  "tokens_per_step": 64, "step_seconds": null})";

std::string line(int64_t step, double loss, const std::string& more = "") {
  return fmt::format(
      R"({{"step":{},"loss":{},"grad_norm":0.5,"learning_rate":1e-4,"tokens":64,"loss_tokens":32,"step_seconds":0.5,)"
      R"("tokens_per_second":128,"device_bytes":1073741824,"host_bytes":1024{}}})"
      "\n",
      step, loss, more);
}

RunFiles run(const std::string& name, const std::string& metrics) {
  RunFiles files;
  files.name = name;
  files.plan = parse_plan(kPlan, "plan.json");
  files.metrics = parse_metrics(metrics, "metrics.jsonl");
  files.job = {{"learning_rate", "1e-4"}, {"seed", "42"}};
  files.fingerprint = {{"data: hash", "d0ab1d03"}};
  return files;
}

// Fails unless every element is closed in order, every attribute is quoted, no id stands twice, and every label that is
// referred to is there. Returns how often each element stands there.
std::map<std::string, int> require_well_formed(const std::string& page) {
  const std::set<std::string> empty{"meta", "link"};
  std::vector<std::string> open;
  std::map<std::string, int> counts;
  std::set<std::string> ids, labels;
  for (size_t at = page.find('<'); at != page.npos; at = page.find('<', at)) {
    const size_t end = page.find('>', at);
    if (end == page.npos) {
      ADD_FAILURE() << "an element that does not end: " << page.substr(at, 60);
      return counts;
    }
    std::string tag = page.substr(at + 1, end - at - 1);
    at = end;
    if (tag == "!doctype html") continue;
    if (tag.starts_with('/')) {
      EXPECT_EQ(open.empty() ? "" : open.back(), tag.substr(1)) << page.substr(end - 60, 80);
      if (!open.empty()) open.pop_back();
      continue;
    }
    const bool closed = tag.ends_with('/');
    if (closed) tag.pop_back();
    const std::string name = tag.substr(0, tag.find(' '));
    counts[name]++;
    for (size_t i = name.size(); i < tag.size();) {  // name="value"
      const size_t equals = tag.find("=\"", i), quote = tag.find('"', equals + 2);
      if (equals == tag.npos || quote == tag.npos) {
        ADD_FAILURE() << "attributes of <" << tag << ">";
        return counts;
      }
      const std::string key = tag.substr(i + 1, equals - i - 1), value = tag.substr(equals + 2, quote - equals - 2);
      EXPECT_EQ(key.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-"), key.npos) << tag;
      const bool seen = key == "id" && !ids.insert(value).second;
      EXPECT_FALSE(seen) << "id " << value << " stands there twice";
      if (key == "aria-labelledby") labels.insert(value);
      i = quote + 1;
    }
    if (name == "script" || name == "style") at = page.find("</" + name, at);
    if (!closed && !empty.contains(name)) open.push_back(name);
  }
  EXPECT_THAT(open, ElementsAre());
  for (const std::string& label : labels) EXPECT_TRUE(ids.contains(label)) << label;
  return counts;
}

TEST(Report, APageIsWellFormedAndEveryChartHasATable) {
  const std::vector<RunFiles> runs{
      run("first", line(1, 4) + line(2, 3, R"(,"eval_loss":3.5)") + line(3, 2.5, R"(,"eval_loss":null)"))};
  const std::string page = report_page(runs, "today");
  const auto counts = require_well_formed(page);
  EXPECT_EQ(counts.at("figure"), 5);  // loss, held-out loss, norm, rate, tokens
  EXPECT_EQ(counts.at("details"), counts.at("figure"));
  EXPECT_EQ(counts.at("h1"), 1);
  EXPECT_EQ(counts.at("h2"), 6);
  EXPECT_THAT(page, HasSubstr("lang=\"en\""));
  EXPECT_THAT(page, HasSubstr("<title>Run first - snug report</title>"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, HasSubstr("aria-label=\"Loss. first: 4 at step 1, 2.5 at step 3; least 2.5 at step 3, most 4"));
  EXPECT_THAT(page, HasSubstr("<td>3.5 at step 2</td>"));
  EXPECT_THAT(page, HasSubstr("1.00 GiB planned, 1.00 GiB measured: the same to the byte"));
  EXPECT_THAT(page, HasSubstr("93.1 %"));
  EXPECT_THAT(page, HasSubstr("d0ab1d03"));
}

TEST(Report, APageAsksForNothing) {
  std::string page = report_page(std::vector{run("a", line(1, 2))}, "today");
  const std::string name_space = "\"http://www.w3.org/2000/svg\"";  // a name, by which nothing is fetched
  page.erase(page.find(name_space), name_space.size());
  page.erase(page.find("\n// "), page.find('\n', page.find("\n// ") + 1) - page.find("\n// "));  // the script's comment
  for (const char* asks : {"http:", "https:", "//", "src=", "url(", "@import", "fetch", "XMLHttp", "WebSocket"})
    EXPECT_EQ(page.find(asks), page.npos) << asks;
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(Report, WhatRunsHoldIsTextAndNothingElse) {
  const std::string evil = "</td><script>alert(1)</script>\"'&<img src=x onerror=a>";
  RunFiles files = run(evil, line(1, 2, R"(,"</script><b>":1)"));
  files.job.emplace_back(evil, evil);
  files.fingerprint.emplace_back(evil, evil);
  files.samples.push_back({evil, evil, std::string("a\xff\0\x1b[31m\xc2\x9b", 10), true, true});
  files.plan.peak = files.plan.arrangement = files.plan.hash = evil;
  files.plan.classes.push_back({evil, 7});
  files.plan.phases.push_back({evil, 7});
  files.timeline = Timeline{{evil}, {{0, OpGroup::Products, evil, evil, 0, 50}}, 50, 1, 1};
  const std::string page = report_page(std::vector{files, files}, evil);
  const auto counts = require_well_formed(page);
  EXPECT_EQ(counts.at("script"), 1);
  EXPECT_FALSE(counts.contains("img"));
  EXPECT_FALSE(counts.contains("b"));
  EXPECT_THAT(page, HasSubstr("a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd[31m\xef\xbf\xbd"));
}

TEST(Report, RunsAreComparedRowByRow) {
  RunFiles other = run("second", line(1, 3.5));
  other.job[0].second = "2e-4";
  other.job.emplace_back("epochs", "3");
  const std::string page = report_page(std::vector{run("first", line(1, 4)), other}, "today");
  require_well_formed(page);
  EXPECT_THAT(page, HasSubstr("<h1>2 runs compared</h1>"));
  EXPECT_THAT(page, HasSubstr("<tr class=\"differs\"><th scope=\"row\">learning_rate (differs)</th><td>1e-4</td>"
                              "<td>2e-4</td></tr><tr><th scope=\"row\">seed</th>"));
  EXPECT_THAT(page, HasSubstr("epochs (differs)</th><td>-</td><td>3</td>"));
}

TEST(Report, ARunWithoutAStepHasAPage) {
  const std::string page = report_page(std::vector{run("empty", "")}, "today");
  require_well_formed(page);
  EXPECT_THAT(page, HasSubstr("empty: no step has been written yet."));
  EXPECT_THAT(page, HasSubstr("1.00 GiB planned, - measured"));
}

TEST(Report, ALastLineThatIsBeingWrittenIsLeftOut) {
  const MetricsTable table = parse_metrics(line(1, 4) + line(2, 3) + R"({"step":3,"lo)", "m");
  EXPECT_TRUE(table.torn);
  EXPECT_THAT(table.of("loss"), ElementsAre(4, 3));
  const MetricsTable whole = parse_metrics(line(1, 4) + R"({"step":2,"loss":3})", "m");
  EXPECT_FALSE(whole.torn);
  EXPECT_THAT(whole.of("loss"), ElementsAre(4, 3));
  EXPECT_TRUE(std::isnan(whole.of("grad_norm").at(1)));
}

TEST(Report, MetricsThatAreNoneAreRefusedByLine) {
  expect_refusal([] { parse_metrics("{\"step\":1,\"lo\n" + line(2, 3), "m"); }, {"m, line 1", "JSON"});
  expect_refusal([] { parse_metrics(line(2, 3) + line(2, 3), "m"); }, {"m, line 2", "step", "more than 2"});
  expect_refusal([] { parse_metrics("[1]\n", "m"); }, {"m, line 1", "an object"});
  expect_refusal([] { parse_metrics("{\"step\":1,\"loss\":\"x\"}\n", "m"); }, {"m, line 1", "loss", "a number"});
  expect_refusal([] { parse_metrics("{\"loss\":1}\n", "m"); }, {"m, line 1", "step"});
  std::string many = "{\"step\":1";
  for (int i = 0; i < 65; i++) many += fmt::format(",\"k{}\":1", i);
  expect_refusal([&] { parse_metrics(many + "}\n", "m"); }, {"m, line 1", "more than 64"});
}

TEST(Report, ThinningKeepsEndsAndExtremes) {
  std::vector<double> steps, values;
  for (int i = 1; i <= 100'000; i++) steps.push_back(i), values.push_back(std::sin(i));
  values[31'337] = 50, values[77'777] = -50, values[5] = kMissing;
  const std::vector<Point> points = thinned(steps, values, 100);
  EXPECT_LE(points.size(), 202U);
  EXPECT_EQ(points.front().step, 1);
  EXPECT_EQ(points.back().step, 100'000);
  EXPECT_TRUE(std::ranges::is_sorted(points, std::less_equal(), &Point::step));
  const auto [least, most] = std::ranges::minmax_element(points, {}, &Point::value);
  EXPECT_EQ(least->step, 77'778);
  EXPECT_EQ(most->step, 31'338);
  EXPECT_EQ(thinned(std::vector<double>{1, 2, 3}, std::vector<double>{7, kMissing, 8}, 100).size(), 2U);
}

TEST(Report, AMeanOverNeighboursIsOfThoseThatAreThere) {
  EXPECT_THAT(smoothed(std::vector<double>{1, 2, kMissing, 6}, 2), ElementsAre(1.5, 1.5, 4, 6));
}

// Eight runs of many steps, with all else that a run may have.
TEST(Report, APageStaysSmall) {
  std::string metrics;
  for (int i = 1; i <= 3000; i++)
    metrics += line(i, 2 + std::sin(i * 0.7), fmt::format(",\"eval_loss\":{},\"a\":{},\"b\":{}", i % 7, i % 5, i % 3));
  RunFiles files = run("long", metrics);
  for (int i = 0; i < 200; i++)
    files.samples.push_back({std::string(3000, '<'), std::string(3000, '&'), "x", true, true});
  for (int i = 0; i < 3000; i++) files.job.emplace_back(fmt::format("key{}", i), std::string(500, '"'));
  files.timeline = Timeline{{"compute"}, {}, 30'000, 1, 1};
  for (int i = 0; i < 3000; i++)
    files.timeline->ops.push_back({0, kOpGroups[i % 5], fmt::format("op.{}", i), "gemm", i * 10.0, 10});
  const std::string page = report_page(std::vector<RunFiles>(kMaxRuns, files), "today");
  EXPECT_LE(page.size(), kMaxPage);
  EXPECT_GT(page.size(), kMaxPage / 4);
}

std::string event(const char* program, int op, const char* category, double begin, double duration) {
  return fmt::format(
      R"({{"name":"site.{}","cat":"{}","ph":"X","ts":{},"dur":{},"pid":0,"tid":0,"args":{{"program":"{}","op":{}}}}})",
      op, category, begin, duration, program, op);
}

constexpr const char* kLane = R"({"name":"thread_name","ph":"M","pid":0,"tid":0,"args":{"name":"compute"}})";

TEST(Report, ATimelineIsTheLastWholeStepOfATrace) {
  const std::vector<std::string> events{kLane,
                                        event("pass.4_eighths", 0, "gemm", 100, 10),
                                        event("update", 0, "adamw", 110, 5),
                                        event("update", 1, "wait", 115, 20),  // before the next step's first op
                                        event("pass", 0, "attention", 135, 7),
                                        event("update", 0, "adamw", 142, 3),
                                        event("pass", 0, "gemm", 150, 1)};
  const Timeline timeline = parse_trace(fmt::format("[\n{}\n]\n", fmt::join(events, ",\n")), "t");
  EXPECT_EQ(timeline.steps, 3U);
  EXPECT_EQ(timeline.step, 2U);
  EXPECT_EQ(timeline.duration, 30);
  EXPECT_THAT(timeline.lanes, ElementsAre("compute"));
  ASSERT_EQ(timeline.ops.size(), 3U);
  EXPECT_EQ(timeline.ops[0].group, OpGroup::Wait);
  EXPECT_EQ(timeline.ops[1].group, OpGroup::Attention);
  EXPECT_EQ(timeline.ops[1].begin, 20);
  EXPECT_EQ(timeline.ops[2].group, OpGroup::Update);
  EXPECT_TRUE(parse_trace("[\n\n]\n", "t").ops.empty());
}

TEST(Report, WhatIsNoTraceIsRefusedByLine) {
  expect_refusal([] { parse_trace("{\"traceEvents\": []}\n", "t"); }, {"t, line 1", "--trace"});
  expect_refusal([] { parse_trace("[\n{\"ph\":\"X\"}\n]\n", "t"); }, {"t, line 2", "tid"});
  expect_refusal([] { parse_trace(std::string("[\n") + kLane + "\n]\n1\n", "t"); }, {"t, line 4", "nothing"});
}

TEST(Report, SamplesAreJoinedByPrompt) {
  std::vector<ReplyPair> samples;
  add_samples("{\"prompt\":\"a\",\"text\":\"1\"}\n{\"prompt\":\"b\",\"text\":\"2\"}\n", "s", false, samples);
  add_samples("{\"prompt\":\"b\",\"text\":\"3\"}\n{\"prompt\":\"c\",\"text\":\"4\"}\n", "s", true, samples);
  ASSERT_EQ(samples.size(), 3U);
  EXPECT_EQ(samples[1].before + samples[1].after, "23");
  EXPECT_FALSE(samples[2].has_before);
  expect_refusal([&] { add_samples("{\"prompt\":1}\n", "s", true, samples); }, {"s, line 1", "prompt"});
}

TEST(Report, ADirectoryIsReadAsFarAsItHasFiles) {
  const TempDirectory directory;
  const auto put = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((directory.path() / name).parent_path());
    std::ofstream(directory.path() / name) << text;
  };
  expect_refusal([&] { read_run(directory.path()); }, {"found no run", "job.yaml"});
  put("job.yaml", "format: 1\nmodel: m: n\nseed: 42\n");
  put("plan.json", kPlan);
  RunFiles files = read_run(directory.path() / "");
  EXPECT_EQ(files.name, directory.path().filename());
  EXPECT_THAT(files.job, ElementsAre(std::pair("model", "m: n"), std::pair("seed", "42")));
  EXPECT_TRUE(files.metrics.steps.empty());
  put("metrics.jsonl", line(1, 4));
  put("checkpoints/step-9/state.json", R"({"fields": {"data": {"hash": "old"}}})");
  put("checkpoints/step-10/state.json", R"({"fields": {"data": {"hash": "new"}}})");
  put("checkpoints/step-11.partial/state.json", "{");
  put("samples-before.jsonl", "{\"prompt\":\"a\",\"text\":\"1\"}\n");
  files = read_run(directory.path());
  EXPECT_THAT(files.metrics.of("loss"), ElementsAre(4));
  EXPECT_THAT(files.fingerprint, ElementsAre(std::pair("data: hash", "new")));
  EXPECT_EQ(files.samples.size(), 1U);
  EXPECT_THAT(files.plan.phases.front().name, "load");
  put("plan.json", R"({"format": 2})");
  expect_refusal([&] { read_run(directory.path()); }, {"plan.json", "format", "newer"});
}

}  // namespace
}  // namespace snug
