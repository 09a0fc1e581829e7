// snug report, and what else shows a run: from a run of the tiny model.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "cli_fixture.h"

namespace snug {
namespace {

class ReportCli : public Cli {};

TEST_F(ReportCli, ARunBecomesOnePage) {
  const Words more{"--validation", kModels / "data.jsonl", "--eval-every", "2", "--trace", "run/trace.json"};
  ASSERT_EQ(run(job("train", more)).code, 0) << text_of(at("stderr"));
  put(at("run/samples-before.jsonl"), "{\"prompt\": \"a<b\", \"text\": \"before\", \"ids\": [1]}\n");
  const Outcome outcome = run({"report", "run", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string page = text_of(at("report.html"));
  const auto said = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(said["bytes"], page.size());
  EXPECT_EQ(said["out"], "report.html");
  for (const char* part : {"Held-out loss", "the same to the byte", "Timeline of a step of run", "a&lt;b",
                           "<th scope=\"row\">max_steps</th><td>6</td>", "data: hash", "packing"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("No run has a trace")));

  ASSERT_EQ(run(job("train", {"--out", "other", "--learning-rate", "2e-3"})).code, 0);
  EXPECT_EQ(run({"report", "run", "other", "--out", "both.html"}).code, 0) << text_of(at("stderr"));
  EXPECT_THAT(text_of(at("both.html")), HasSubstr("learning_rate (differs)</th><td>0.001</td><td>0.002</td>"));
  ASSERT_EQ(run(job("train", {"--overwrite"})).code, 0);
  EXPECT_FALSE(fs::exists(at("run/trace.json"))) << "of the run that was replaced";
  EXPECT_TRUE(fs::exists(at("run/samples-before.jsonl"))) << "of the model alone";
}

// Returns the answer of the server on that port.
std::string answer_of(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string request = "GET / HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) + "\r\n\r\n";
  EXPECT_EQ(write(socket, request.data(), request.size()), std::ssize(request));
  std::string text;
  char bytes[4096];
  for (ssize_t count = 0; (count = read(socket, bytes, sizeof bytes)) > 0;)
    text.append(bytes, static_cast<size_t>(count));
  close(socket);
  return text;
}

// Returns the steps that a page at a glance has.
int steps_of(const std::string& page) {
  const std::string before = "<th scope=\"row\">steps</th><td>";
  const size_t at = page.find(before);
  return at == page.npos ? -1 : std::atoi(page.c_str() + at + before.size());
}

TEST_F(ReportCli, ALiveRunIsServedUntilItIsInterrupted) {
  expect_refusal({"report", "nowhere", "--serve"}, {"nowhere: found no run"});
  expect_refusal({"report", "nowhere", "--port", "1"}, {"--port", "--serve"});
  expect_refusal({"report", "nowhere", "--serve", "--out", "a.html"}, {"--out", "a.html", "--serve"});
  const pid_t training = start(job("train", {"--max-steps", "1000000", "--log-every", "100000"}));
  wait_for_steps(3);
  fs::create_directory(at("server"));  // with outputs of its own
  const pid_t server = start({"report", "../run", "--serve"}, SNUG_BINARY, [] { return chdir("server") == 0; });
  const std::string before = "http://127.0.0.1:";
  std::string said;
  for (int i = 0; i < 6000 && !said.ends_with('\n'); i++) usleep(10'000), said = text_of(at("server/stderr"));
  ASSERT_THAT(said, StartsWith(before));
  EXPECT_THAT(said, HasSubstr("/ shows ../run until Ctrl-C\n"));
  const int port = std::atoi(said.c_str() + before.size());
  const std::string first = answer_of(port);
  EXPECT_THAT(first, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(first, HasSubstr("\r\nRefresh: 5\r\n"));
  EXPECT_GE(steps_of(first), 3);
  wait_for_steps(static_cast<size_t>(steps_of(first)) + 1);
  EXPECT_GT(steps_of(answer_of(port)), steps_of(first)) << "the run goes on";
  kill(training, SIGINT);
  EXPECT_EQ(finish(training).code, 130);
  const std::string last = answer_of(port);
  EXPECT_EQ(steps_of(last), static_cast<int>(losses("run").size()));
  EXPECT_THAT(last, ::testing::Not(HasSubstr("Refresh")));
  EXPECT_EQ(run({"report", "run", "--serve", "--port", std::to_string(port)}).code, 2) << "the port is taken";
  kill(server, SIGINT);
  EXPECT_EQ(finish(server).code, 0);
  EXPECT_FALSE(fs::exists(at("server/report.html")));
}

TEST_F(ReportCli, ExplainSaysWhatBecameOfARun) {
  const auto explain = [&] { return run_well({"explain", "run"}).out; };
  const pid_t child = start(job("train", {"--max-steps", "1000000", "--save-every", "2"}));
  wait_for_steps(5);
  EXPECT_THAT(explain(), StartsWith("end      it goes on: process " + std::to_string(child)));
  kill(child, SIGKILL);
  EXPECT_EQ(finish(child).code, 128 + SIGKILL);
  EXPECT_THAT(explain(),
              testing::ContainsRegex("^end      it was killed after step [0-9]+, or its machine stopped: process " +
                                     std::to_string(child)));
  EXPECT_THAT(explain(), HasSubstr("end      --resume goes on from its checkpoint of step "));
  const pid_t resumed = start(job("train", {"--max-steps", "1000000", "--resume"}));
  for (int i = 0; i < 6000 && text_of(at("stderr")).find("goes on after step") == std::string::npos; i++)
    usleep(10'000);
  kill(resumed, SIGINT);
  EXPECT_EQ(finish(resumed).code, 130);
  EXPECT_THAT(explain(), StartsWith("end      it was interrupted on 20"));
  run_well(job("train", {"--overwrite"}));
  const auto findings = nlohmann::json::parse(run_well({"explain", "run", "--json"}).out)[0]["findings"];
  EXPECT_THAT(findings[0]["text"].get<std::string>(), StartsWith("it ended on 20"));
  put(at("run/end.json"), "{}");
  EXPECT_THAT(run({"explain", "run"}).err, HasSubstr("end.json: key 'how' is missing"));
  EXPECT_THAT(run({"explain", "nowhere"}).err, HasSubstr("found no run"));
}

TEST_F(ReportCli, ARunThatFailsSaysSoInItsDirectory) {
  EXPECT_EQ(run(job("train", {"--learning-rate", "999", "--max-grad-norm", "0", "--max-steps", "400"})).code, 2);
  EXPECT_THAT(run_well({"explain", "run"}).out, HasSubstr("end      it failed on 20"));
}

TEST_F(ReportCli, MetricsAreWrittenInOtherFormatsAndToldToACommand) {
  const Words more{"--metrics-format", "csv,tensorboard", "--on-event", "tee events.jsonl", "--json"};
  const Outcome outcome = run(job("train", more));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["steps"], 6) << "what the command prints is not on standard output";
  std::vector<std::string> events;
  std::istringstream lines(text_of(at("events.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    events.push_back(event["event"]);
    if (event["event"] == "step") {
      EXPECT_EQ(event["loss"], losses("run").at(event["step"].get<size_t>() - 1));
    } else if (event["event"] == "checkpoint") {
      EXPECT_TRUE(fs::is_directory(at(event["path"])));
    } else if (event["event"] == "end") {
      EXPECT_TRUE(fs::is_directory(at(event["result"])));
    }
  }
  EXPECT_EQ(events, Words({"begin", "step", "step", "step", "step", "step", "step", "checkpoint", "end"}));
  EXPECT_EQ(std::ranges::count(text_of(at("run/metrics.csv")), '\n'), 7);
  EXPECT_FALSE(fs::is_empty(at("run/tensorboard")));
  EXPECT_THAT(text_of(at("run/job.yaml")), HasSubstr("on_event: tee events.jsonl"));
  ASSERT_EQ(run(job("train", {"--overwrite", "--on-event", "exit 3"})).code, 0);
  EXPECT_THAT(text_of(at("stderr")), HasSubstr("on_event: 'exit 3' ended with exit code 3"));
  EXPECT_FALSE(fs::exists(at("run/metrics.csv")));
  EXPECT_FALSE(fs::exists(at("run/tensorboard")));
  EXPECT_EQ(losses("run").size(), 6U);
  fs::remove_all(at("run"));
  expect_refusal(job("train", {"--metrics-format", "wandb"}), {"metrics_format", "'wandb'", "csv, tensorboard"});
}

TEST_F(ReportCli, WhatHoldsNoRunOrMayNotBeReplacedIsRefused) {
  fs::create_directory(at("empty"));
  expect_refusal({"report", "empty"}, {"empty: found no run", "job.yaml"});
  expect_refusal({"report", "nowhere"}, {"nowhere: found no run"});
  expect_refusal({"report"}, {"run"});
  put(at("notes.txt"), "mine");
  expect_refusal({"report", "empty", "--out", "notes.txt"}, {"--out", "notes.txt", "a report"});
  expect_refusal({"report", "empty", "--out", "nowhere/report.html"}, {"--out", "nowhere"});
  expect_refusal(with({"report"}, Words(9, "empty")), {"9 runs", "at most 8"});
}

}  // namespace
}  // namespace snug
