// Token ids that are kept for later runs.
#include "api/token_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "api/cache.h"
#include "base/file.h"
#include "byte_encoder.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kTexts =
    "{\"text\": \"one\", \"foo\": 1}\n{\"text\": \"two and three\"}\n{\"text\": \"<s><s>four\"}\n";

class TokenCache : public ::testing::Test {
 protected:
  TokenCache() {
    fs::create_directory(at("model"));
    put("model/tokenizer.json", "{}");
    put("a.jsonl", kTexts);
    options_.cache_dir = at("cache").string();
    encoder_.encode = [this](std::string_view text) {
      encoded_++;
      std::this_thread::sleep_for(pause_);
      return encode_bytes(text);
    };
  }

  fs::path at(const std::string& name) const { return directory_.path() / name; }
  void put(const std::string& name, const std::string& text) const {
    fs::create_directories(at(name).parent_path());
    std::ofstream(at(name), std::ios::binary) << text;
  }

  DataOptions data(const std::vector<std::string>& names, std::vector<std::string>& notes) const {
    DataOptions data;
    for (const std::string& name : names) data.files.push_back(at(name));
    data.vocabulary = 259;
    data.note = [&notes](const std::string& line) { notes.push_back(line); };
    return data;
  }
  DataOptions data(const std::vector<std::string>& names = {"a.jsonl"}) const {
    DataOptions made = data(names, unused_);
    made.note = {};
    return made;
  }

  struct Loaded {
    Dataset dataset;
    std::vector<std::string> notes;
    int encoded = 0;  // texts
    uint64_t cache_bytes = 0;
  };
  Loaded load(const std::vector<std::string>& names = {"a.jsonl"}, uint64_t least = 0) {
    Loaded loaded;
    encoded_ = 0;
    CachedDataset cached = load_dataset_cached(options_, data(names, loaded.notes), &encoder_, at("model"), least);
    loaded.dataset = std::move(cached.dataset);
    loaded.cache_bytes = cached.cache_bytes;
    loaded.encoded = encoded_;
    return loaded;
  }
  // What load_dataset() makes of it, with its notes.
  Loaded plain(const std::vector<std::string>& names = {"a.jsonl"}) {
    Loaded loaded;
    loaded.dataset = load_dataset(data(names, loaded.notes), &encoder_);
    return loaded;
  }

  std::vector<fs::path> entries() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(at("cache/tokens")))
      if (!entry.path().has_extension()) found.push_back(entry.path());
    return found;
  }
  std::string key(const std::vector<std::string>& names = {"a.jsonl"}) const {
    return token_cache_key(data(names), encoder_, at("model"));
  }

  TempDirectory directory_;
  JobConfig options_;
  TextEncoder encoder_ = byte_encoder();
  std::atomic<int> encoded_ = 0;
  std::chrono::milliseconds pause_{0};
  mutable std::vector<std::string> unused_;
};

TEST_F(TokenCache, ASecondRunEncodesNothingAndHasTheSameSamplesKindsAndNotes) {
  const Loaded expected = plain(), first = load(), second = load();
  ASSERT_EQ(expected.notes.size(), 2u);
  EXPECT_EQ(first.encoded, 3);
  EXPECT_EQ(second.encoded, 0);
  for (const Loaded* loaded : {&first, &second}) {
    EXPECT_TRUE(loaded->dataset == expected.dataset);
    ASSERT_EQ(loaded->notes.size(), 3u);
    EXPECT_EQ(loaded->notes[0], expected.notes[0]);
    EXPECT_EQ(loaded->notes[1], expected.notes[1]);
  }
  const std::string entry = entries().at(0).string();
  EXPECT_THAT(first.notes[2], HasSubstr("a.jsonl: its 26 token ids are kept for later runs in " + entry));
  EXPECT_THAT(second.notes[2],
              HasSubstr("a.jsonl: its 26 token ids are those that an earlier run has kept in " + entry));
  EXPECT_EQ(std::distance(fs::directory_iterator(at("cache/tokens")), fs::directory_iterator()), 2);  // and room.lock
}

TEST_F(TokenCache, AnEntryIsOfBytesNotOfNames) {
  const std::string before = key();
  load();
  put("elsewhere/b.jsonl", kTexts);
  EXPECT_EQ(key({"elsewhere/b.jsonl"}), before);
  const Loaded moved = load({"elsewhere/b.jsonl"});
  EXPECT_EQ(moved.encoded, 0);
  ASSERT_EQ(moved.notes.size(), 3u);
  for (const std::string& line : moved.notes) EXPECT_THAT(line, StartsWith(at("elsewhere/b.jsonl").string() + ": "));
}

TEST_F(TokenCache, EveryByteThatDecidesMakesAnotherKey) {
  std::vector<std::string> keys{key()};
  const auto expect_another = [&](const std::string& what, const std::vector<std::string>& names = {"a.jsonl"}) {
    SCOPED_TRACE(what);
    keys.push_back(key(names));
    EXPECT_EQ(std::ranges::count(keys, keys.back()), 1);
  };
  put("a.json", kTexts);
  expect_another("the type that a name says", {"a.json"});
  put("b.jsonl", "{\"text\": \"five\"}\n");
  expect_another("a file more", {"a.jsonl", "b.jsonl"});
  expect_another("another order", {"b.jsonl", "a.jsonl"});
  put("a.jsonl", std::string(kTexts) + "\n");
  expect_another("a byte more in a file");
  std::string other = kTexts;
  other[12] = 'O';
  put("a.jsonl", other);
  expect_another("another byte in a file");
  put("model/tokenizer.json", "{ }");
  expect_another("a byte more in the tokenizer");
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"}) {
    put("model/" + std::string(name), "");
    expect_another(std::string("another file of the tokenizer: ") + name);
  }
  encoder_.adds_bos = false;
  expect_another("a habit of the tokenizer");
  put("model/model.safetensors", "weights");
  EXPECT_EQ(key(), keys.back());
}

TEST_F(TokenCache, ADamagedEntryIsSaidAndMadeAnew) {
  load();
  const fs::path entry = entries().at(0);
  std::string bytes = read_text(entry, 1 << 20);
  bytes[bytes.size() - 20] ^= 1;
  std::ofstream(entry, std::ios::binary) << bytes;
  const Loaded anew = load();
  EXPECT_EQ(anew.encoded, 3);
  EXPECT_TRUE(anew.dataset == plain().dataset);
  EXPECT_THAT(anew.notes[0], HasSubstr("it is damaged; the data is encoded anew"));
  fs::resize_file(entry, 10);
  EXPECT_THAT(load().notes[0], HasSubstr("it is damaged; the data is encoded anew"));
  EXPECT_EQ(load().encoded, 0);
}

TEST_F(TokenCache, OverwriteHasTheDataEncodedAnewAndKept) {
  load();
  std::ofstream(entries().at(0), std::ios::binary) << "not even looked at";
  options_.overwrite = true;
  const Loaded anew = load();
  EXPECT_EQ(anew.encoded, 3);
  EXPECT_THAT(anew.notes.back(), HasSubstr("are kept for later runs in"));
  options_.overwrite = false;
  EXPECT_EQ(load().encoded, 0);
}

TEST_F(TokenCache, EntriesTakeNoMoreThanAQuarterOfDiskMemoryAndGoByWhenTheyWereUsed) {
  load();
  const uint64_t bytes = fs::file_size(entries().at(0));
  options_.disk_memory = 4 * (3 * bytes - 1);  // for two of about this size
  for (const char* name : {"b.jsonl", "c.jsonl"}) put(name, std::string(kTexts) + "{\"text\": \"" + name + "\"}\n");
  EXPECT_EQ(load({"b.jsonl"}).encoded, 4);
  for (const fs::path& entry : entries()) fs::last_write_time(entry, fs::file_time_type::clock::now() - 1h);
  EXPECT_EQ(load().encoded, 0);  // now b.jsonl is the one that was not used for longest
  EXPECT_EQ(load({"c.jsonl"}).encoded, 4);
  EXPECT_EQ(entries().size(), 2u);
  EXPECT_EQ(load().encoded, 0);
  EXPECT_EQ(load({"c.jsonl"}).encoded, 0);
  EXPECT_EQ(load({"b.jsonl"}).encoded, 4);
  options_.disk_memory = 400;
  put("d.jsonl", "{\"text\": \"more\"}\n");
  const Loaded refused = load({"d.jsonl"});
  EXPECT_THAT(refused.notes.back(), HasSubstr("its token ids are not kept for later runs: they take "));
  EXPECT_THAT(refused.notes.back(), HasSubstr("and a quarter of --disk-memory is 100 B"));
  EXPECT_EQ(entries().size(), 2u);  // nothing goes in vain
}

// Entries that are there when the limit is set go, but for the one that is used; and all that stay are counted.
TEST_F(TokenCache, WhatEntriesTakeIsCountedAgainstDiskMemory) {
  put("b.jsonl", std::string(kTexts) + "{\"text\": \"b\"}\n");
  const uint64_t one = load().cache_bytes;
  EXPECT_EQ(one, fs::file_size(entries().at(0)));
  EXPECT_GT(load({"b.jsonl"}).cache_bytes, 2 * one);
  options_.disk_memory = 4 * one;
  const Loaded used = load();
  EXPECT_EQ(used.encoded, 0);
  EXPECT_EQ(entries().size(), 1u);
  EXPECT_EQ(used.cache_bytes, one);
  options_.disk_memory = 8;
  EXPECT_EQ(load().cache_bytes, one) << "the one that is used stays";
  EXPECT_EQ(load({"a.jsonl"}, UINT64_MAX).cache_bytes, 0u) << "small data has nothing to do with it";
}

TEST_F(TokenCache, WhereNothingCanBeKeptALineSaysSoAndTheDataIsThere) {
  put("file", "");
  options_.cache_dir = at("file").string();
  const Loaded loaded = load();
  EXPECT_TRUE(loaded.dataset == plain().dataset);
  ASSERT_EQ(loaded.notes.size(), 3u);
  EXPECT_THAT(loaded.notes[2], HasSubstr("its token ids are not kept for later runs: " + at("file/tokens").string() +
                                         ": cannot be made"));
  EXPECT_THAT(loaded.notes[2], HasSubstr("--cache-dir names another directory"));
}

TEST_F(TokenCache, WhatIsQuickToEncodeIsLeftAlone) {
  EXPECT_EQ(load({"a.jsonl"}, 1000).notes.size(), 2u);
  put("long.jsonl", kTexts + std::string(1 << 20, '\n'));
  DataOptions few = data({"long.jsonl"}, unused_);
  few.max_samples = 3;  // of a file that is hashed to its end
  load_dataset_cached(options_, few, &encoder_, at("model"), 0);
  put("ids.jsonl", "{\"input_ids\": [1, 2]}\n");
  load_dataset_cached(options_, data({"ids.jsonl"}), nullptr, at("model"), 0);
  EXPECT_FALSE(fs::exists(at("cache")));
  few.max_samples = 40;
  load_dataset_cached(options_, few, &encoder_, at("model"), 0);
  EXPECT_EQ(entries().size(), 1u);
}

TEST_F(TokenCache, AFileThatChangesWhileItIsReadIsNotKept) {
  encoder_.encode = [&](std::string_view text) {
    if (encoded_++ == 0) put("a.jsonl", std::string(kTexts) + "\n");
    return encode_bytes(text);
  };
  EXPECT_THAT(load().notes.back(), HasSubstr("not kept for later runs: a file of them changed while it was read"));
  EXPECT_EQ(load().encoded, 3);
}

TEST_F(TokenCache, WhoWantsWhatAnotherEncodesWaitsForIt) {
  pause_ = 50ms;
  std::atomic<int> heartbeats = 0;
  std::vector<std::thread> threads;
  std::vector<Dataset> found(4);
  for (Dataset& dataset : found)
    threads.emplace_back([&] {
      DataOptions mine = data();
      mine.heartbeat = [&] { heartbeats++; };
      dataset = load_dataset_cached(options_, mine, &encoder_, at("model"), 0).dataset;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(encoded_, 3);
  EXPECT_GT(heartbeats, 4 * 3);
  const Dataset expected = plain().dataset;
  for (const Dataset& dataset : found) EXPECT_TRUE(dataset == expected);
}

TEST_F(TokenCache, WhoWaitsForAProcessThatFailsEncodesItself) {
  fs::create_directories(at("cache/tokens"));
  load();
  const fs::path entry = entries().at(0);
  fs::remove(entry);
  std::optional<FileLock> other = FileLock::alone(entry.string() + ".lock");
  std::thread thread([&] { EXPECT_EQ(load().encoded, 3); });
  std::this_thread::sleep_for(60ms);
  EXPECT_EQ(encoded_, 0);
  other.reset();
  thread.join();
  EXPECT_TRUE(fs::exists(entry));
}

TEST_F(TokenCache, AFailureOfAnotherRankEndsTheWait) {
  load();
  const fs::path entry = entries().at(0);
  fs::remove(entry);
  const FileLock other = FileLock::alone(entry.string() + ".lock");
  DataOptions mine = data();
  int heartbeats = 0;  // more than hashing takes
  mine.heartbeat = [&] {
    if (++heartbeats > 50) throw std::logic_error("rank 1 failed");
  };
  EXPECT_TRUE(fails_with<std::logic_error>([&] { load_dataset_cached(options_, mine, &encoder_, at("model"), 0); },
                                           "rank 1 failed"));
}

TEST_F(TokenCache, WhatAKilledProcessLeftIsInNobodysWay) {
  put("cache/tokens/0123456789abcdef.partial", "half");
  load();
  put("cache/tokens/" + entries().at(0).filename().string() + ".lock", "");
  EXPECT_FALSE(fs::exists(at("cache/tokens/0123456789abcdef.partial")));
  fs::remove(entries().at(0));
  EXPECT_EQ(load().encoded, 3);
  EXPECT_EQ(load().encoded, 0);
}

TEST_F(TokenCache, DataThatDoesNotFitMemoryIsRefusedAlsoWhereItsIdsAreKept) {
  load();
  DataOptions mine = data();
  mine.take = [](uint64_t) { throw CapacityError("data: no memory"); };
  EXPECT_TRUE(fails_with<CapacityError>([&] { load_dataset_cached(options_, mine, &encoder_, at("model"), 0); },
                                        "data: no memory"));
}

}  // namespace
}  // namespace snug
