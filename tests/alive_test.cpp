// Long work on the host gives signs of life, so that a rank at it is not taken for one that hangs.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "backend/cpu/facts.h"
#include "base/disk.h"
#include "base/parallel.h"
#include "comm/threads.h"
#include "data/packing.h"
#include "expect_error.h"
#include "plan/search/fit.h"
#include "temp_directory.h"
#include "tiny_model.h"

namespace snug {
namespace {

using namespace std::chrono_literals;

constexpr size_t kLines = 3000;

// Three lots of samples, encoded one token a line, slowly.
Dataset read_slowly(const TempDirectory& directory, const Heartbeat& heartbeat, std::chrono::microseconds a_line) {
  std::string text;
  for (size_t i = 0; i < kLines; i++) text += "{\"text\": \"one\"}\n";
  write_text(directory.path() / "d.jsonl", text);
  TextEncoder encoder;
  encoder.encode = [a_line](std::string_view) {
    std::this_thread::sleep_for(a_line);
    return std::vector<int32_t>{1, 2};
  };
  encoder.eos_id = 0;
  DataOptions options;
  options.files = {directory.path() / "d.jsonl"};
  options.vocabulary = 3;
  options.heartbeat = heartbeat;
  return load_dataset(options, &encoder);
}

// Rank 1 waits for rank 0, which reads its data for 3 s, in lots of 1 s, with a patience of 2 s.
void read_while_another_waits(bool signs) {
  const TempDirectory directory;
  const auto ranks = thread_ranks(2, 1, 2.0);
  set_threads(1);
  std::exception_ptr error;
  {
    const std::jthread other([&] {
      try {
        ranks[1]->barrier();
      } catch (const std::exception&) {
        error = std::current_exception();
      }
    });
    read_slowly(directory, signs ? heartbeat_of(ranks[0].get()) : Heartbeat{}, 1000us);
    try {
      ranks[0]->barrier();
    } catch (const std::exception&) {
    }
  }
  if (error) std::rethrow_exception(error);
}

TEST(Heartbeat, ARankThatReadsLongIsNotTakenToHang) {
  EXPECT_NO_THROW(read_while_another_waits(true));
  EXPECT_THROW(read_while_another_waits(false), PeerError);
}

TEST(Heartbeat, LongWorkEndsWithTheRankThatHasFailed) {
  const TempDirectory directory;
  const auto ranks = thread_ranks(2);
  const Heartbeat heartbeat = heartbeat_of(ranks[0].get());
  EXPECT_NO_THROW(read_slowly(directory, heartbeat, 0us));
  ranks[1]->leave("disk full");
  EXPECT_TRUE(fails_with<PeerError>([&] { read_slowly(directory, heartbeat, 0us); }, "rank 1 failed: disk full"));
}

TEST(Heartbeat, IsSaidForEachLotOfSamplesAndWhileFilesAreRead) {
  const TempDirectory directory;
  int signs = 0;
  EXPECT_EQ(read_slowly(
                directory, [&] { signs++; }, 0us)
                .samples(),
            kLines);
  EXPECT_GT(signs, 3);
}

TEST(Heartbeat, IsSaidForEachEpochThatIsPacked) {
  const TempDirectory directory;
  const Dataset dataset = read_slowly(directory, {}, 0us);
  int signs = 0;
  PackingOptions packing;
  packing.sequence_length = 16;
  packing.heartbeat = [&] { signs++; };
  BlockStream(dataset, all_samples(dataset.samples()), packing, {1, 1, 1}, {std::nullopt, 5});
  EXPECT_GE(signs, 5);
}

TEST(Heartbeat, IsSaidForEachBlockThatIsHashed) {
  const TempDirectory directory;
  File file = File::create(directory.path() / "f", IoMode::Buffered);
  file.resize((20 << 20) + 1);
  int signs = 0;
  file_checksum(file.path(), [&] { signs++; });
  EXPECT_EQ(signs, 3);
}

TEST(Heartbeat, IsSaidForEachFileThatIsRemoved) {
  const TempDirectory directory;
  std::filesystem::create_directories(directory.path() / "a/b");
  for (const char* name : {"a/one", "a/b/two"}) write_text(directory.path() / name, "x");
  int signs = 0;
  remove_tree(directory.path() / "a", [&] { signs++; });
  EXPECT_EQ(signs, 4);
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "a"));
  EXPECT_NO_THROW(remove_tree(directory.path() / "a", {}));
}

// As hosts that share a file system may have to.
TEST(Heartbeat, IsSaidWhileADirectoryIsWaitedFor) {
  const TempDirectory directory;
  const std::filesystem::path path = directory.path() / "made/later";
  int signs = 0;
  const Heartbeat heartbeat = [&] { signs++; };
  EXPECT_FALSE(is_directory_within(0, path, {}));
  EXPECT_FALSE(is_directory_within(0.3, path, heartbeat));
  EXPECT_GE(signs, 2);
  const std::jthread maker([&] {
    std::this_thread::sleep_for(500ms);
    std::filesystem::create_directories(path);
  });
  EXPECT_TRUE(is_directory_within(60, path, heartbeat));
}

TEST(Heartbeat, IsSaidForEachArrangementThatIsCompiled) {
  size_t signs = 0;
  Choices choices;
  choices.batch_size = 2;
  const JobSpec spec = tiny_job("llama", std::nullopt, DType::F32);
  const CpuFacts facts;
  const Pricing pricing;
  const Heartbeat heartbeat = [&] { signs++; };
  Fitter fitter(spec, choices, facts, pricing, heartbeat);
  fitter.fit({});
  EXPECT_GT(signs, 0u);
  EXPECT_EQ(signs, fitter.compiled());
}

}  // namespace
}  // namespace snug
