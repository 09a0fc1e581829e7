// Data sets as files, and the text that tells what one was made of.
#include "data/dataset_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "base/hash.h"
#include "byte_encoder.h"
#include "data/dataset_fields.h"
#include "data/dataset_key.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

constexpr std::string_view kKey = "a key";
constexpr size_t kHeader = sizeof(DatasetHeader);

class DatasetFileTest : public ::testing::Test {
 protected:
  DatasetFileTest() {
    options_.files = {"a", "b"};
    options_.vocabulary = 300;
  }

  // Samples of 1 token, of all labels, of none, with labels that are not their token, and over more than a word of
  // bits.
  static Dataset dataset(size_t length = 70) {
    Dataset made;
    made.set_kinds({.conversations = true, .texts = false});
    made.add({{7}, {kNoLabel}});
    made.add({{1, 2, 3}, {kNoLabel, 2, 3}});
    std::vector<int32_t> ids, labels;
    for (size_t i = 0; i < length; ++i) {
      ids.push_back(static_cast<int32_t>(i));
      labels.push_back(i % 3 == 0 ? kNoLabel : i % 5 == 0 ? 299 : static_cast<int32_t>(i));
    }
    labels[0] = kNoLabel;
    made.add({ids, labels});
    return made;
  }
  static std::vector<DatasetNote> notes() { return {{0, ": one"}, {-1, "another"}, {1, ""}}; }

  std::filesystem::path path() const { return directory_.path() / "entry"; }

  std::string written(const Dataset& dataset) const {
    {
      File file = File::create(path(), IoMode::Buffered);
      DatasetFile::write(dataset, notes(), kKey, file, {});
    }
    return read_text(path(), uint64_t{1} << 30);
  }

  std::optional<DatasetFile::Content> read(std::string_view key = kKey) const {
    return DatasetFile::read(path(), key, options_);
  }
  void put(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }
  // With the checksum that belongs to them.
  void put_summed(std::string bytes) const {
    const uint64_t sum = hash_of(std::string_view(bytes).substr(0, bytes.size() - sizeof(uint64_t)));
    std::memcpy(bytes.data() + bytes.size() - sizeof(sum), &sum, sizeof(sum));
    put(bytes);
  }
  template <class T>
  static void set(std::string& bytes, size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
  }

  TempDirectory directory_;
  DataOptions options_;
};

TEST_F(DatasetFileTest, WhatIsWrittenIsReadBackToTheBit) {
  for (const size_t length : {1u, 59u, 60u, 61u, 70u, 200'000u}) {
    SCOPED_TRACE(length);
    options_.vocabulary = 200'000;
    const Dataset made = dataset(length);
    const std::string bytes = written(made);
    EXPECT_EQ(bytes.size(), DatasetFile::bytes(made, notes(), kKey));
    const auto found = read();
    ASSERT_TRUE(found);
    EXPECT_TRUE(found->dataset == made);
    EXPECT_EQ(found->notes, notes());
    EXPECT_EQ(found->dataset.kinds(), made.kinds());
    std::vector<int32_t> labels(length);
    found->dataset.labels(2, 0, labels);
    EXPECT_EQ(labels[length - 1], length % 3 == 1   ? kNoLabel
                                  : length % 5 == 1 ? 299
                                                    : static_cast<int32_t>(length) - 1);
  }
}

TEST_F(DatasetFileTest, PairsAreReadBackAndHoldTogetherOrItIsDamaged) {
  Dataset pairs;
  pairs.add({{1, 2, 1, 3}, {kNoLabel, 2, kNoLabel, 3}, 2, 0.5f});
  pairs.add({{4, 5, 4, 6, 7}, {kNoLabel, 5, kNoLabel, 6, 7}, 2, -1.0f});
  const std::string bytes = written(pairs);
  const auto found = read();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->dataset, pairs);
  EXPECT_TRUE(found->dataset.has_pairs());
  EXPECT_EQ(found->dataset.second(1), 2u);
  EXPECT_EQ(found->dataset.value(1), -1.0f);
  EXPECT_EQ(bytes.size(), DatasetFile::bytes(pairs, notes(), kKey));
  // Behind the last checksum stand, from the end: no other labels, two values, two starts of second documents.
  const size_t values = bytes.size() - sizeof(uint64_t) - 2 * sizeof(float), seconds = values - 2 * sizeof(uint32_t);
  for (const uint32_t start : {0u, 4u, 1u}) {  // none, beyond the sample, at a token with a label
    std::string damaged = bytes;
    set(damaged, seconds, start);
    put_summed(damaged);
    EXPECT_TRUE(fails_with<UserError>([&] { read(); }, "damaged"));
  }
  std::string damaged = bytes;
  set(damaged, values, std::numeric_limits<float>::quiet_NaN());
  put_summed(damaged);
  EXPECT_TRUE(fails_with<UserError>([&] { read(); }, "not finite"));
}

TEST_F(DatasetFileTest, EndsOfFilesAreReadBackAndAreThoseOfTheDataOrItIsDamaged) {
  Dataset of_two;
  of_two.add({{1, 2}, {kNoLabel, 2}});
  of_two.end_file();
  of_two.add({{3, 4}, {kNoLabel, 4}});
  of_two.end_file();
  const std::string bytes = written(of_two);
  EXPECT_EQ(bytes.size(), DatasetFile::bytes(of_two, notes(), kKey));
  const auto found = read();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->dataset.file_ends(), (std::vector<uint64_t>{1, 2}));
  const size_t last = bytes.size() - sizeof(uint64_t) - sizeof(uint64_t);
  for (const auto& [offset, end] : {std::pair(last, uint64_t{3}), {last, 1}, {last - sizeof(uint64_t), 3}}) {
    std::string damaged = bytes;
    set(damaged, offset, end);
    put_summed(damaged);
    EXPECT_TRUE(fails_with<UserError>([&] { read(); }, "other files than the data has")) << end;
  }
  of_two.end_file();
  written(of_two);
  EXPECT_TRUE(fails_with<UserError>([&] { read(); }, "other files than the data has")) << "of three";
}

TEST_F(DatasetFileTest, WeightsAreReadBackAndHaveLabelsOrItIsDamaged) {
  Dataset weighed;
  Sample sample{{1, 2, 3, 4}, {kNoLabel, 2, kNoLabel, 4}};
  sample.weights = {1, -0.5f, 9, 1};
  weighed.add(sample);
  const std::string bytes = written(weighed);
  EXPECT_EQ(bytes.size(), DatasetFile::bytes(weighed, notes(), kKey));
  const auto found = read();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->dataset, weighed);
  std::vector<float> weights(3);
  found->dataset.weights(0, 1, weights);
  EXPECT_EQ(weights, (std::vector<float>{-0.5f, 1, 1})) << "what has no label weighs nothing else";
  const size_t value = bytes.size() - sizeof(uint64_t) - sizeof(float), place = value - sizeof(uint64_t);
  const auto refused = [&](size_t offset, auto other) {
    std::string damaged = bytes;
    set(damaged, offset, other);
    put_summed(damaged);
    return fails_with<UserError>([&] { read(); }, "a weight without a label");
  };
  EXPECT_TRUE(refused(place, uint64_t{2}));
  EXPECT_TRUE(refused(place, uint64_t{4}));
  EXPECT_TRUE(refused(value, 0.0f));
  EXPECT_TRUE(refused(value, std::numeric_limits<float>::infinity()));
}

TEST_F(DatasetFileTest, OfAnotherKeyOrFormatItIsNoDataSetOfThese) {
  std::string bytes = written(dataset());
  EXPECT_FALSE(read("a keX"));
  EXPECT_FALSE(read("a key "));
  EXPECT_FALSE(read(""));
  set<uint64_t>(bytes, offsetof(DatasetHeader, format), DatasetHeader::kFormat + 1);
  put_summed(bytes);
  EXPECT_FALSE(read());
}

// A byte that is another is never read for what was written: it is damage, or another key's.
TEST_F(DatasetFileTest, NoByteMayBeAnotherNorMissing) {
  const std::string bytes = written(dataset());
  const auto refused = [&] {
    try {
      return !read();
    } catch (const UserError& error) {
      return std::string_view(error.what()).find("it is damaged") != std::string_view::npos;
    }
  };
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string other = bytes;
    other[i] = static_cast<char>(other[i] ^ (1 << i % 8));
    put(other);
    EXPECT_TRUE(refused()) << "byte " << i;
    put(bytes.substr(0, i));
    EXPECT_TRUE(refused()) << "cut before " << i;
  }
  put(bytes + '\0');
  EXPECT_TRUE(refused());
}

// What has its checksum and is no data set all the same: readers would index by it.
TEST_F(DatasetFileTest, IdsPlacesAndSizesHoldTogetherOrItIsDamaged) {
  const std::string bytes = written(dataset());
  size_t of_notes = 0;
  for (const DatasetNote& note : notes()) of_notes += 12 + note.text.size();
  const size_t ids = kHeader + kKey.size() + of_notes, bits = ids + 74 * 4, ends = bits + 2 * 8, places = ends + 3 * 8;
  const size_t others = 9;  // of 5, 10, 20, ..., 65, what 3 does not divide
  const size_t labels = places + others * 8;
  ASSERT_EQ(labels + others * 4 + 8, bytes.size());
  const auto expect_refused = [&](size_t offset, auto value, std::string_view found) {
    std::string other = bytes;
    set(other, offset, value);
    put_summed(other);
    EXPECT_TRUE(fails_with<UserError>([&] { read(); }, found)) << offset;
  };
  expect_refused(ids, int32_t{300}, "ids beyond the vocabulary");
  expect_refused(ids + 4, int32_t{-1}, "ids beyond the vocabulary");
  expect_refused(bits, uint8_t{1}, "a label of a first token");
  expect_refused(bits + 15, uint8_t{128}, "labels beyond the last token");
  expect_refused(ends, uint64_t{0}, "samples that overlap");
  expect_refused(ends, uint64_t{5}, "samples that overlap");
  expect_refused(ends, uint64_t{1} << 60, "samples that overlap");
  expect_refused(ends + 16, uint64_t{73}, "samples beyond the last token");
  expect_refused(places, uint64_t{74}, "a label without a place");
  expect_refused(places, uint64_t{4}, "a label without a place");      // that has none
  expect_refused(places + 8, uint64_t{9}, "a label without a place");  // which is the first one's
  expect_refused(labels, int32_t{300}, "a label without a place");
  expect_refused(labels, int32_t{kNoLabel}, "a label without a place");
  expect_refused(kHeader + kKey.size(), int32_t{2}, "a note that is none");  // of a third file
  expect_refused(kHeader + kKey.size() + 4, uint64_t{1} << 63, "a note that is none");
  expect_refused(offsetof(DatasetHeader, notes), uint64_t{4}, "notes beyond their end");
  expect_refused(offsetof(DatasetHeader, notes), uint64_t{2}, "more bytes of notes than notes");
  expect_refused(offsetof(DatasetHeader, kinds), uint64_t{4}, "a header that no data set has");
}

TEST_F(DatasetFileTest, MemoryIsAskedForBeforeItIsTakenAndNeverForMoreThanTheFileHolds) {
  const std::string bytes = written(dataset());
  uint64_t asked = 0;
  options_.take = [&](uint64_t more) { asked += more; };
  ASSERT_TRUE(read());
  EXPECT_GE(asked, 74 * 4 + 2 * 8 + 3 * 8 + 9 * 16u);
  EXPECT_LT(asked, bytes.size() + 9 * 4);
  options_.take = [](uint64_t) { throw CapacityError("no memory"); };
  EXPECT_TRUE(fails_with<CapacityError>([&] { read(); }, "no memory"));
  for (const size_t member :
       {offsetof(DatasetHeader, key_bytes), offsetof(DatasetHeader, notes_bytes), offsetof(DatasetHeader, tokens),
        offsetof(DatasetHeader, samples), offsetof(DatasetHeader, other_labels)})
    for (const uint64_t size : {uint64_t{1} << 20, uint64_t{1} << 61, uint64_t{1} << 62, UINT64_MAX}) {
      std::string other = bytes;
      set(other, member, size);
      put_summed(other);
      EXPECT_TRUE(fails_with<UserError>([&] { read(); }, "sizes beyond the file's end")) << member << " " << size;
    }
}

// ---- Keys -----------------------------------------------------------------------------------------------------------

void perturb(bool& value) { value = !value; }
void perturb(int64_t& value) { value++; }
void perturb(int32_t& value) { value++; }
void perturb(std::string& value) { value += "x"; }
void perturb(std::vector<int32_t>& values) { values.push_back(0); }
void perturb(std::map<std::string, std::string>& values) { values["input"] += "question"; }
void perturb(std::map<std::string, ChatRole>& values) { values["bot"] = ChatRole::Assistant; }
template <class T>
requires std::is_enum_v<T>
void perturb(T& value) { value = static_cast<T>(static_cast<int>(value) == 0 ? 1 : 0); }
void perturb(double& value) { value += 1; }
void perturb(std::filesystem::path& value) { value /= "x"; }
void perturb(std::array<double, 3>& values) { values[2] += 1; }
void perturb(decltype(ImageProcessor::sizing)& value) { value = FixedSize{.width = 14, .height = 28}; }
void perturb(ImageMarkup& markup) { markup.pad += "x"; }
void perturb(ImageInput& input) { input.pad_token++; }
void perturb(std::optional<ChatTemplate>& value) {
  value = ChatTemplate::choose(value && value->name() == "chatml" ? "none" : "chatml", "", {"<s>", "</s>"});
}
template <class T>
void perturb(std::optional<T>& value) {
  if (value) return perturb(*value);
  value.emplace();
}

TEST(DatasetKey, EveryFieldOfOptionsAndEncoderCounts) {
  DataOptions used;
  used.format = DataFormat::Text;
  used.shape = {Samples::Judged, {{"input", "a"}}, "{a}", true, {{"bot", ChatRole::User}}};
  used.prompt_format.chat = ChatTemplate::choose("chatml", "", {"<s>", "</s>"});
  used.max_samples = 3;
  size_t fields = 0;
  for (const DataOptions& options : {DataOptions(), used}) {
    const TextEncoder encoder = byte_encoder();
    const std::string key = dataset_key(options, encoder);
    const auto expect_each_counts = [&](const auto& record, auto&& key_with) {
      size_t count = 0;
      visit_leaves(record, [&](const std::string&, const auto&) { count++; });
      for (size_t i = 0; i < count; ++i) {
        auto other = record;
        size_t next = 0;
        std::string name;
        visit_leaves(other, [&](const std::string& path, auto& field) {
          if (next++ != i) return;
          perturb(field);
          name = path;
        });
        EXPECT_NE(key_with(other), key) << name;
      }
      fields += count;
    };
    expect_each_counts(options, [&](const DataOptions& other) { return dataset_key(other, encoder); });
    expect_each_counts(encoder, [&](const TextEncoder& other) { return dataset_key(options, other); });
  }
  EXPECT_EQ(fields, 2 * (17 + 7u));
}

TEST(DatasetKey, EveryFieldOfWhatTheModelTakesOfImagesCounts) {
  DataOptions options;
  options.images.emplace();
  const TextEncoder encoder = byte_encoder();
  const std::string key = dataset_key(options, encoder);
  size_t count = 0;
  visit_leaves(*options.images, [&](const std::string&, const auto&) { count++; });
  EXPECT_EQ(count, 11 + 10 + 3u);
  for (size_t i = 0; i < count; i++) {
    DataOptions other = options;
    size_t next = 0;
    visit_leaves(*other.images, [&](const std::string&, auto& field) {
      if (next++ == i) perturb(field);
    });
    EXPECT_NE(dataset_key(other, encoder), key) << i;
  }
  for (const auto& sizing : {BoundedPixels{.min_pixels = 1}, BoundedPixels{.max_pixels = 1}}) {
    DataOptions other = options;
    other.images->processor.sizing = sizing;
    EXPECT_NE(dataset_key(other, encoder), key);
  }
}

TEST(DatasetKey, WhereTheDataStandsCountsWhereItMayHaveImages) {
  const TextEncoder encoder = byte_encoder();
  DataOptions here, there;
  here.files = {"here/data.jsonl"};
  there.files = {"there/data.jsonl"};
  EXPECT_EQ(dataset_key(here, encoder), dataset_key(there, encoder));
  here.images.emplace();
  there.images.emplace();
  EXPECT_NE(dataset_key(here, encoder), dataset_key(there, encoder));
}

TEST(DatasetKey, ValuesDoNotRunIntoEachOther) {
  const TextEncoder encoder = byte_encoder();
  const auto key = [&](std::map<std::string, std::string> columns, std::optional<std::string> prompt) {
    DataOptions options;
    options.shape.columns = std::move(columns);
    options.shape.prompt = std::move(prompt);
    return dataset_key(options, encoder);
  };
  EXPECT_NE(key({}, std::nullopt), key({}, ""));
  EXPECT_NE(key({}, std::nullopt), key({}, "nothing"));
  EXPECT_NE(key({{"input", "a 5:b"}}, {}), key({{"input", "a"}, {"b", ""}}, {}));
  EXPECT_NE(key({{"a", "bc"}}, {}), key({{"ab", "c"}}, {}));
  EXPECT_NE(key({}, "x\nshape.prompt_is_all 1:1"), key({}, "x"));
}

TEST(DatasetKey, ItIsTheTextOfTheTemplateThatCounts) {
  const TextEncoder encoder = byte_encoder();
  const auto key = [&](const char* jinja) {
    DataOptions options;
    options.prompt_format.chat = ChatTemplate::choose("auto", jinja, {"<s>", "</s>"});
    return dataset_key(options, encoder);
  };
  constexpr const char* kOne = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}";
  constexpr const char* kOther = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}";
  EXPECT_EQ(key(kOne), key(kOne));
  EXPECT_NE(key(kOne), key(kOther));
}

}  // namespace
}  // namespace snug
