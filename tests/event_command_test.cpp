// The command of --on-event: told everything, and never waited for.
#include "train/event_command.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "temp_directory.h"

namespace snug {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Events : public ::testing::Test {
 protected:
  void SetUp() override { std::signal(SIGPIPE, SIG_IGN); }

  EventCommand::Terms terms(double patience = 30) {
    return {.most_waiting = 10'000, .patience_seconds = patience, .say = [this](const std::string& line) {
              said_.push_back(line);
            }};
  }
  // Sends until something is said, for a while; returns the longest time that one event took.
  double send_until_said(EventCommand& command) {
    double longest = 0;
    for (int i = 0; i < 5000 && said_.empty(); i++) {
      const auto begin = std::chrono::steady_clock::now();
      command.send({{"event", "step"}, {"text", std::string(200, 'x')}});
      longest = std::max(longest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      if (i % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return longest;
  }

  std::vector<std::string> said_;
  TempDirectory directory_;
};

TEST_F(Events, ACommandReadsALineAnEvent) {
  const std::string file = directory_.path() / "lines";
  EventCommand::Terms patient = terms();
  patient.most_waiting = 1 << 20;
  EventCommand command(fmt::format("sleep 0.1; cat > '{}'", file), patient);
  const std::string text(200, 'x');
  for (int i = 0; i < 1000; i++)  // more than the pipe has room for
    command.send({{"event", "step"}, {"step", i}, {"text", text + "\n\xff"}});
  command.end();
  std::ifstream lines(file);
  int count = 0;
  for (std::string line; std::getline(lines, line); count++) {
    const auto event = nlohmann::ordered_json::parse(line);
    ASSERT_TRUE(line.starts_with(
        fmt::format(R"({{"event":"step","time":{},"step":{},"text":"xx)", event["time"].dump(), count)))
        << line;
    ASSERT_EQ(event["text"], text + "\n\xef\xbf\xbd");
  }
  EXPECT_EQ(count, 1000);
  EXPECT_THAT(said_, ::testing::IsEmpty());
}

TEST_F(Events, ACommandThatEndsIsSaidOnceAndDropped) {
  EventCommand command("exit 3", terms());
  send_until_said(command);
  command.send({{"event", "step"}});
  command.end();
  EXPECT_THAT(said_, ElementsAre(AllOf(HasSubstr("'exit 3' ended with exit code 3"), HasSubstr("the run goes on"))));
}

TEST_F(Events, ACommandThatReadsNothingIsSaidOnceAndDropped) {
  EventCommand command("exec sleep 2", terms());
  EXPECT_LT(send_until_said(command), 1) << "sending waits for nobody";
  command.send({{"event", "step"}});
  command.end();
  EXPECT_THAT(said_, ElementsAre(AllOf(HasSubstr("bytes of events to read"), HasSubstr("the run goes on"))));
}

TEST_F(Events, TheEndWaitsForSoLong) {
  EventCommand command("exec sleep 2", terms(0.05));
  command.send({{"event", "end"}});
  const auto begin = std::chrono::steady_clock::now();
  command.end();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("still runs")));
}

TEST_F(Events, ACommandThatFailsAtTheEndIsSaid) {
  EventCommand command("cat > /dev/null; exit 7", terms());
  command.send({{"event", "end"}});
  command.end();
  EXPECT_THAT(said_, ElementsAre(HasSubstr("ended with exit code 7")));
}

}  // namespace
}  // namespace snug
