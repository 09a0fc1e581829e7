// What a trace says of the steps it saw.
#include <gtest/gtest.h>

#include <set>

#include "deferred_backend.h"
#include "expect_error.h"
#include "temp_directory.h"
#include "tiny_model.h"
#include "train/trace_json.h"

namespace snug {
namespace {

constexpr int64_t kSteps = 2;

JobSpec job() {
  JobSpec spec = tiny_job("llama", std::nullopt, DType::BF16);
  spec.cut.micro_batch = 2;
  spec.cut.passes = 2;
  for (GroupPlacement& group : spec.strategy.groups) group.states = group.weights = Space::Disk;
  for (ActivationPolicy& policy : spec.strategy.activations) policy = offloaded(policy);
  return spec;
}

// Trains one step more than are traced.
nlohmann::json trace_of(Session& session) {
  const TempDirectory directory;
  session.load();
  TinyTrainer trainer(session);
  session.start_trace(kSteps);
  for (int64_t number = 1; number <= kSteps + 1; number++)
    trainer.step(step_samples(tiny_samples(), number, 4), number, 1e-3);
  session.write_trace(directory.path() / "trace.json");
  return read_json(directory.path() / "trace.json");
}

// What runs lanes.
enum class By { Caller, Threads, Streams };

struct TraceTest : testing::TestWithParam<By> {
  static Session session() {
    if (GetParam() != By::Streams)
      return Session(job(), 1, GetParam() == By::Caller ? LaneMode::Inline : LaneMode::Threads);
    JobSpec spec = job();
    Session::Resources means;
    means.backend = [] { return std::make_unique<DeferredBackend>(1); };
    Compiled compiled = compile(spec, CpuFacts());
    return Session(std::move(spec), std::move(compiled), means);
  }
};

TEST_P(TraceTest, EveryOpOfEveryStepIsThereOnItsLane) {
  Session session = TraceTest::session();
  const nlohmann::json trace = trace_of(session);
  std::map<std::tuple<std::string, size_t, std::string, size_t>, int64_t> found, expected;
  for (const auto& event : trace)
    if (event["ph"] == "X" && event["cat"] != "wait")
      found[{event["args"]["program"], event["args"]["op"], event["name"], event["tid"]}]++;
  std::vector<Task> tasks = session.compiled().passes;
  tasks.push_back(Task::Update);
  for (const Task task : tasks) {
    const Program& program = session.compiled().set.programs[session.compiled().at(task)];
    for (size_t i = 0; i < program.ops.size(); i++)
      expected[{program.name, i, program.ops[i].site, index(program.ops[i].lane)}] = kSteps;
  }
  EXPECT_EQ(found, expected);
}

TEST_P(TraceTest, WhatALaneDoesDoesNotOverlap) {
  Session session = TraceTest::session();
  std::map<size_t, std::vector<std::pair<double, double>>> spans;  // by lane
  for (const auto& event : trace_of(session))
    if (event["ph"] == "X")
      spans[event["tid"]].emplace_back(event["ts"].get<double>(),
                                       event["ts"].get<double>() + event["dur"].get<double>());
  EXPECT_GT(spans.size(), 3u);
  for (auto& [lane, of_lane] : spans) {
    std::ranges::sort(of_lane);
    for (size_t i = 1; i < of_lane.size(); i++) ASSERT_LE(of_lane[i - 1].second, of_lane[i].first + 1e-3) << lane;
  }
}

// When the wait is over, the op that was waited for is not at work.
TEST_P(TraceTest, WaitsNameTheOpAndTheBuffersOfTheHazard) {
  Session session = TraceTest::session();
  std::set<std::string> buffers;
  for (const Buffer& buffer : session.compiled().set.buffers) buffers.insert(buffer.name);
  const nlohmann::json trace = trace_of(session);
  std::map<std::pair<std::string, size_t>, std::vector<std::pair<double, double>>> ran;  // by program, op
  for (const auto& event : trace)
    if (event["ph"] == "X" && event["cat"] != "wait")
      ran[{event["args"]["program"], event["args"]["op"]}].emplace_back(
          event["ts"].get<double>(), event["ts"].get<double>() + event["dur"].get<double>());
  int waits = 0;
  for (const auto& event : trace) {
    if (event["ph"] != "X" || event["cat"] != "wait") continue;
    waits++;
    ASSERT_EQ(event["name"], "wait for " + event["args"]["site"].get<std::string>());
    ASSERT_EQ(event["args"]["hazard"].size(), 2u);
    for (const auto& buffer : event["args"]["hazard"]) ASSERT_TRUE(buffers.contains(buffer)) << buffer;
    const double over = event["ts"].get<double>() + event["dur"].get<double>();
    for (const auto& [begin, end] : ran[{event["args"]["program"], event["args"]["op"]}])
      ASSERT_FALSE(begin < over - 1e-3 && end > over + 1e-3) << event;
  }
  EXPECT_EQ(waits > 0, GetParam() != By::Caller);
}

INSTANTIATE_TEST_SUITE_P(Lanes, TraceTest, testing::Values(By::Caller, By::Threads, By::Streams));

// Where there is no room for a whole run of a program it is left out, and all after it.
TEST(Trace, TakesWholeRunsAsLongAsThereIsRoom) {
  Trace trace({0, 2}, 10);
  EXPECT_NE(trace.room(0, 4), nullptr);
  EXPECT_EQ(trace.room(1, 1), nullptr) << "not one of those to be traced";
  EXPECT_NE(trace.room(2, 4), nullptr);
  EXPECT_EQ(trace.room(0, 4), nullptr);
  EXPECT_EQ(trace.room(2, 1), nullptr);
  EXPECT_EQ(trace.events().size(), 8u);
}

}  // namespace
}  // namespace snug
