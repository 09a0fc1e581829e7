// What a run's metrics are written as: lines of JSON, rows of CSV, events for TensorBoard.
#include "train/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::Pair;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

StepMetrics step(int64_t number, std::optional<double> eval_loss = {}) {
  return {.step = number,
          .loss = 0.5 * static_cast<double>(number),
          .grad_norm = 0.25,
          .learning_rate = 1e-5,
          .tokens = 200,
          .loss_tokens = 100,
          .step_seconds = 0.5,
          .device_bytes = uint64_t{1} << 40,
          .host_bytes = 0,
          .eval_loss = eval_loss};
}

struct Event {
  int64_t step = 0;
  double wall_time = 0;
  std::string version;
  bool starts = false;
  std::map<std::string, float> scalars;
};

// Reads what an EventFile wrote, by the framing and the message's definition.
class EventReader {
 public:
  static std::vector<Event> read(std::string_view bytes) {
    std::vector<Event> events;
    while (!bytes.empty()) {
      const auto length = take<uint64_t>(bytes);
      EXPECT_EQ(take<uint32_t>(bytes), masked({reinterpret_cast<const char*>(&length), 8}));
      const std::string_view message = bytes.substr(0, length);
      bytes.remove_prefix(length);
      EXPECT_EQ(take<uint32_t>(bytes), masked(message));
      events.push_back(event(message));
    }
    return events;
  }

 private:
  // Bit by bit, and masked by the framing's words: "((crc >> 15) | (crc << 17)) + 0xa282ead8".
  static uint32_t masked(std::string_view bytes) {
    uint32_t crc = ~0U;
    for (const char c : bytes) {
      crc ^= static_cast<unsigned char>(c);
      for (int i = 0; i < 8; i++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78U : crc >> 1;
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8U;
  }
  template <class T>
  static T take(std::string_view& bytes) {
    T value{};
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes.remove_prefix(sizeof value);
    return value;
  }
  static uint64_t varint(std::string_view& bytes) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = take<uint8_t>(bytes);
      value |= uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
  }
  static std::string_view field(std::string_view& bytes) {
    const uint64_t length = varint(bytes);
    const std::string_view value = bytes.substr(0, length);
    bytes.remove_prefix(length);
    return value;
  }
  static void scalar(std::string_view value, Event& event) {
    std::string tag;
    while (!value.empty()) switch (take<uint8_t>(value)) {
        case 0x0a:
          tag = field(value);
          break;
        case 0x15:
          event.scalars[tag] = take<float>(value);
          break;
        default:
          FAIL() << "an unknown field of a value";
      }
  }
  static Event event(std::string_view message) {
    Event event;
    while (!message.empty()) switch (take<uint8_t>(message)) {
        case 0x09:
          event.wall_time = take<double>(message);
          break;
        case 0x10:
          event.step = static_cast<int64_t>(varint(message));
          break;
        case 0x1a:
          event.version = field(message);
          break;
        case 0x2a:
          for (std::string_view summary = field(message); !summary.empty();) {
            EXPECT_EQ(take<uint8_t>(summary), 0x0a);
            scalar(field(summary), event);
          }
          break;
        case 0x3a:
          event.starts = field(message) == std::string_view("\x08\x01");
          break;
        default:
          ADD_FAILURE() << "an unknown field of an event";
          return event;
      }
    return event;
  }
};

std::vector<fs::path> event_files(const fs::path& out) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(out / "tensorboard")) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// RFC 3720, B.4.
TEST(Metrics, TheChecksumIsCastagnolis) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
}

TEST(Metrics, CsvHasARowAStepAndNothingWhereThereIsNoNumber) {
  const TempDirectory out;
  MetricsFiles(out.path(), 0, {.csv = true}).append(step(1));
  MetricsFiles files(out.path(), 1, {.csv = true});
  files.append(step(2, 3.25));
  EXPECT_EQ(text_of(out.path() / "metrics.csv"),
            "step,loss,grad_norm,learning_rate,tokens,loss_tokens,step_seconds,tokens_per_second,device_bytes,"
            "host_bytes,eval_loss\n"
            "1,0.5,0.25,1e-05,200,100,0.5,400.0,1099511627776,0,\n"
            "2,1.0,0.25,1e-05,200,100,0.5,400.0,1099511627776,0,3.25\n");
  EXPECT_FALSE(fs::exists(out.path() / "tensorboard"));
}

TEST(Metrics, EventsHaveEveryNumberOfAStep) {
  const TempDirectory out;
  MetricsFiles files(out.path(), 0, {.tensorboard = true});
  files.append(step(1));
  files.append(step(300, 3.25));
  const auto paths = event_files(out.path());
  ASSERT_EQ(paths.size(), 1U);
  EXPECT_EQ(paths[0].filename().string().find("events.out.tfevents."), 0U);
  const std::vector<Event> events = EventReader::read(text_of(paths[0]));
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_GT(events[0].wall_time, 1.6e9);
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[2].step, 300);
  EXPECT_THAT(
      events[2].scalars,
      ElementsAre(Pair("device_bytes", 0x1p40F), Pair("eval_loss", 3.25F), Pair("grad_norm", 0.25F),
                  Pair("host_bytes", 0), Pair("learning_rate", 1e-5F), Pair("loss", 150), Pair("loss_tokens", 100),
                  Pair("step_seconds", 0.5F), Pair("tokens", 200), Pair("tokens_per_second", 400)));
}

TEST(Metrics, AResumedRunGoesOnInEveryFormat) {
  const TempDirectory out;
  {
    MetricsFiles files(out.path(), 0, {});
    for (int i = 1; i <= 3; i++) files.append(step(i));
  }
  MetricsFiles(out.path(), 2, {.csv = true, .tensorboard = true}).append(step(3));  // asked for since it was resumed
  MetricsFiles(out.path(), 1, {.tensorboard = true}).append(step(2));               // and resumed again, from before
  const auto paths = event_files(out.path());
  ASSERT_EQ(paths.size(), 2U);
  const std::vector<Event> first = EventReader::read(text_of(paths[0])), second = EventReader::read(text_of(paths[1]));
  ASSERT_EQ(first.size(), 4U);
  EXPECT_FALSE(first[1].starts);
  EXPECT_EQ(first[1].step, 1);
  EXPECT_EQ(first[3].scalars.at("loss"), 1.5F);
  ASSERT_EQ(second.size(), 3U);
  EXPECT_TRUE(second[1].starts);
  EXPECT_EQ(second[1].step, 2);
  EXPECT_EQ(second[2].step, 2);
  EXPECT_EQ(text_of(out.path() / "metrics.jsonl"),
            metrics_json(step(1)).dump() + "\n" + metrics_json(step(2)).dump() + "\n");
}

TEST(Metrics, TheTrendOfALossIsTenStepsBesideTenBefore) {
  LossTrend trend;
  for (const double loss : {4.0, 3.0, 2.0}) trend.add(loss);
  EXPECT_EQ(trend.change(), std::nullopt);
  trend.add(1.0);
  EXPECT_EQ(trend.change(), -2.0) << "1.5 beside 3.5";
  for (int i = 0; i < 10; i++) trend.add(2.0);
  for (int i = 0; i < 10; i++) trend.add(2.5);
  EXPECT_EQ(trend.change(), 0.5);
}

TEST(Metrics, AStatusSaysLossRateAndMemoryBesideThePlan) {
  LossTrend trend;
  StepMetrics metrics = step(3);
  metrics.device_bytes = 3'000'000'000;
  EXPECT_EQ(status_text(metrics, trend, 3'221'225'472, 0, {}), "loss 1.5000  400 tokens/s  device 2.79 of 3.00 GiB");
  for (const double loss : {2.0, 2.0, 1.75, 1.75}) trend.add(loss);
  metrics.host_bytes = uint64_t{1} << 30;
  EXPECT_EQ(
      status_text(metrics, trend, 3'221'225'472, uint64_t{1} << 30, {uint64_t{7} << 29, uint64_t{5} << 28}),
      "loss 1.5000 (-0.2500)  400 tokens/s  device 2.79 of 3.00 GiB (driver: 3.50)  host 1.00 of 1.00 GiB  process "
      "1.25 GiB")
      << "with what driver and kernel count";
}

}  // namespace
}  // namespace snug
