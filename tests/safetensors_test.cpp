#include "format/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

const fs::path kFixtures = fs::path(SNUG_FIXTURES) / "safetensors";

void parse(std::string_view json, uint64_t data_bytes) {
  parse_safetensors_header(json, /*data_begin=*/100, 100 + data_bytes, "x.safetensors");
}

TEST(SafetensorsIndex, AFileThatIsCutShortIsSaidToBe) {
  const TempDirectory directory;
  const fs::path path = directory.path() / "adapter_model.safetensors";
  const std::string whole = read_text(kFixtures / "mixed.safetensors", 1 << 20);
  const auto refused = [&](size_t bytes, const std::string& part) {
    write_text(path, whole.substr(0, bytes));
    return fails_with<UserError>([&] { SafetensorsIndex::open_file(path); }, part);
  };
  const size_t size = whole.size();
  EXPECT_TRUE(
      refused(size - 1, fmt::format("adapter_model.safetensors: found {} bytes, expected {}, as its header says: "
                                    "the file is cut short; fetch or copy it again",
                                    size - 1, size)));
  EXPECT_TRUE(refused(20, "adapter_model.safetensors: found 20 bytes, expected at least "));
}

TEST(SafetensorsIndex, WhatLiesWhereAnAdaptersWeightsAreMissingIsNamed) {
  const TempDirectory directory;
  write_text(directory.path() / "adapter_config.json", "{}");
  const auto refused = [&](const std::string& part) {
    return fails_with<UserError>([&] { SafetensorsIndex::open_adapter(directory.path()); }, part);
  };
  EXPECT_TRUE(
      refused("found no weights of an adapter, expected adapter_model.safetensors or adapter_model.bin; beside "
              "adapter_config.json lies nothing"));
  write_text(directory.path() / "adapter_model.pt", "");
  EXPECT_TRUE(refused("beside adapter_config.json lies 'adapter_model.pt'"));
}

// mixed.safetensors was written by the safetensors library.
TEST(SafetensorsIndex, FindsTypesShapesAndBytes) {
  const SafetensorsIndex index = SafetensorsIndex::open_file(kFixtures / "mixed.safetensors");
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : index.entries()) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("brain", "five", "half", "long", "none", "scalar", "single"));
  EXPECT_EQ(index.find("half")->dtype, DType::F16);
  EXPECT_EQ(index.find("brain")->dtype, DType::BF16);
  EXPECT_THAT(index.find("five")->shape, ElementsAre(1, 2, 1, 2, 1));
  EXPECT_THAT(index.find("none")->shape, ElementsAre(0, 4));
  EXPECT_EQ(index.find("none")->bytes, 0u);
  EXPECT_THAT(index.find("scalar")->shape, ElementsAre());
  EXPECT_EQ(index.find("absent"), nullptr);

  const SafetensorsEntry& single = index.require("single", {1, 2}, "the test");
  std::array<float, 2> values{};
  File::open_read(index.files()[0], IoMode::Buffered).read(single.offset, std::as_writable_bytes(std::span(values)));
  EXPECT_THAT(values, ElementsAre(1.5f, -2.0f));
}

TEST(SafetensorsIndex, NamesUnreadableTensorsOnlyWhenTheyAreAskedFor) {
  const SafetensorsIndex index = SafetensorsIndex::open_file(kFixtures / "mixed.safetensors");
  EXPECT_EQ(index.find("long")->dtype, std::nullopt);
  EXPECT_TRUE(fails_with<UserError>([&] { index.require("long", {3}, ""); },
                                    "tensor 'long': found dtype I64, expected BF16, F16 or F32"));
  EXPECT_TRUE(fails_with<UserError>(
      [&] {
        index.require("half", {3, 2}, "config.json, 'hidden_size'");
      },
      "'half': found F16 [2, 3], expected [3, 2] (config.json, 'hidden_size')"));
  EXPECT_TRUE(fails_with<UserError>([&] { index.require("lost", {3, 2}, ""); }, "tensor 'lost' is missing"));
}

// sharded/ was written by transformers.
TEST(SafetensorsIndex, JoinsShards) {
  const SafetensorsIndex index = SafetensorsIndex::open_model(kFixtures / "sharded");
  EXPECT_EQ(index.files().size(), 3u);
  EXPECT_EQ(index.entries().size(), 11u);
  const SafetensorsEntry& norm = index.require("model.norm.weight", {32}, "");
  std::array<BFloat16, 32> values;
  File::open_read(index.files()[norm.file], IoMode::Buffered)
      .read(norm.offset, std::as_writable_bytes(std::span(values)));
  for (const BFloat16 value : values) EXPECT_EQ(static_cast<float>(value), 1.0f);
}

class BrokenModel : public testing::Test {
 protected:
  void index_of(const std::string& text) { write_text(directory_.path() / "model.safetensors.index.json", text); }
  testing::AssertionResult refused(std::string_view part) {
    return fails_with<UserError>([&] { SafetensorsIndex::open_model(directory_.path()); }, part);
  }
  TempDirectory directory_;
};

TEST_F(BrokenModel, NeedsWeights) {
  EXPECT_TRUE(refused("found none of model.safetensors, model.safetensors.index.json, pytorch_model.bin"));
}

TEST(SafetensorsShards, AreListedWithTheirTensors) {
  const auto shards = parse_safetensors_index(R"({"weight_map": {"a": "2", "b": "1", "c": "2"}})", "x");
  EXPECT_THAT(shards, ElementsAre(testing::Pair("1", ElementsAre("b")), testing::Pair("2", ElementsAre("a", "c"))));
  EXPECT_TRUE(fails_with<UserError>([] { parse_safetensors_index("{}", "x"); }, "x: key 'weight_map' is missing"));
}

TEST_F(BrokenModel, NamesAMissingShardAndAMissingTensorOnceTheyAreNeeded) {
  const auto needed = [&](std::string_view part) {
    const SafetensorsIndex index = SafetensorsIndex::open_model(directory_.path());
    return fails_with<UserError>([&] { index.require("a", {3, 2}, ""); }, part);
  };
  index_of(R"({"weight_map": {"a": "one.safetensors", "single": "two.safetensors"}})");
  EXPECT_TRUE(needed("model.safetensors.index.json names it in 'one.safetensors', which is missing"));
  fs::create_symlink("../blobs/1", directory_.path() / "one.safetensors");
  EXPECT_TRUE(needed("names it in 'one.safetensors', which is a link to nothing"));
  fs::remove(directory_.path() / "one.safetensors");
  fs::copy(kFixtures / "mixed.safetensors", directory_.path() / "one.safetensors");
  fs::copy(kFixtures / "mixed.safetensors", directory_.path() / "two.safetensors");
  EXPECT_TRUE(needed("names it in 'one.safetensors', which does not hold it"));
  const SafetensorsIndex index = SafetensorsIndex::open_model(directory_.path());
  EXPECT_THAT(index.absent(), ElementsAre(testing::Key("a")));
  EXPECT_TRUE(index.find("single"));
}

TEST_F(BrokenModel, ABaseModelWithoutItsHeadIsNamedAsThat) {
  const SafetensorsTensor tensor{"norm.weight", DType::F32, Shape{0}};
  write_text(directory_.path() / "model.safetensors", layout_safetensors(std::span(&tensor, 1)).header);
  const SafetensorsIndex index = SafetensorsIndex::open_model(directory_.path());
  EXPECT_TRUE(fails_with<UserError>([&] { index.require("model.norm.weight", {0}, ""); },
                                    "found tensor 'norm.weight', expected 'model.norm.weight': a base model whose"));
}

TEST_F(BrokenModel, ShardsStayInTheirDirectory) {
  for (const char* name : {"../x", "/etc/passwd", "a/b", "..", ""}) {
    index_of(fmt::format(R"({{"weight_map": {{"a": "{}"}}}})", name));
    EXPECT_TRUE(refused("expected the name of a file in the same directory")) << name;
  }
}

TEST_F(BrokenModel, IsRefusedWhereverItIsCutShort) {
  const fs::path path = directory_.path() / "model.safetensors";
  const std::string whole = read_text(kFixtures / "mixed.safetensors", 10000);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    PendingFile file(path, IoMode::Buffered);
    file.file().write(0, std::as_bytes(std::span(whole).first(bytes)));
    EXPECT_THROW(SafetensorsIndex::open_file(file.file().path()), UserError) << bytes;
  }
}

TEST(SafetensorsHeader, RefusesWhatBreaksTheFormat) {
  const struct {
    const char* json;
    uint64_t data_bytes;
    const char* message;
  } cases[] = {
      {"", 0, "expected JSON"},
      {"[]", 0, "expected an object"},
      {R"({"a": {}})", 0, "key 'a.dtype' is missing"},
      {R"({"a": {"dtype": "F32", "shape": 3, "data_offsets": [0, 4]}})", 4, "'a.shape': found 3"},
      {R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4, "expected sizes of 0 or more"},
      {R"({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}})", 4, "expected sizes of 0 or more"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}})", 4,
       "found 104 bytes, expected 108, as its header says: the file is cut short"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4, "within the file's 4 bytes"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4, "expected the bytes of F32 [2]"},
      {R"({"a": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}})", 0, "the bytes of F32"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 5, "found 105 bytes, expected 104"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]}})", 5, "at byte 101, expected byte 100"},
      {R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
           "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}})",
       3, "tensor 'b': found its data at byte 101"},
      {R"({"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},
           "a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}})",
       0, "found key \"a\" twice"},
  };
  for (const auto& c : cases) EXPECT_TRUE(fails_with<UserError>([&] { parse(c.json, c.data_bytes); }, c.message));
}

// A corrupted byte gives a UserError or another valid header, never anything else.
TEST(SafetensorsHeader, SurvivesEveryCorruptedByte) {
  const std::string whole = read_text(kFixtures / "mixed.safetensors", 10000);
  uint64_t length = 0;
  std::memcpy(&length, whole.data(), sizeof(length));
  const std::string header = whole.substr(8, length);
  for (size_t at = 0; at < header.size(); ++at) {
    for (const char byte : {'\0', '"', '9', '}', '\xff'}) {
      std::string damaged = header;
      damaged[at] = byte;
      try {
        parse_safetensors_header(damaged, 8 + length, whole.size(), "x");
      } catch (const UserError&) {
      }
    }
  }
}

TEST(SafetensorsLayout, PutsWiderTypesFirstAndDataOnAPage) {
  const std::vector<SafetensorsTensor> tensors{
      {"a", DType::BF16, {3}}, {"b", DType::F32, {2, 2}}, {"c", DType::BF16, {1}}};
  const SafetensorsLayout layout = layout_safetensors(tensors);
  EXPECT_EQ(layout.header.size(), 4096u);
  EXPECT_THAT(layout.offset, ElementsAre(4096 + 16, 4096, 4096 + 22));
  EXPECT_EQ(layout.file_bytes, 4096u + 24);
  EXPECT_EQ(layout.header.substr(0, 8), std::string("\xf8\x0f\0\0\0\0\0\0", 8));  // 4088
}

TEST(SafetensorsLayout, ReadsBackAsItWasGiven) {
  const std::vector<SafetensorsTensor> tensors{
      {"x", DType::F16, {2, 3}}, {"scalar", DType::F32, {}}, {"none", DType::F32, {0}}};
  const SafetensorsLayout layout = layout_safetensors(tensors);
  const auto entries =
      parse_safetensors_header(std::string_view(layout.header).substr(8), layout.header.size(), layout.file_bytes, "x");
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[2].name, "x");
  EXPECT_EQ(entries[2].dtype, DType::F16);
  EXPECT_THAT(entries[2].shape, ElementsAre(2, 3));
  EXPECT_EQ(entries[2].offset, layout.offset[0]);
  EXPECT_EQ(entries[1].offset, layout.offset[1]);
}

TEST(SafetensorsLayout, GrowsByWholePages) {
  std::vector<SafetensorsTensor> tensors;
  for (int i = 0; i < 100; ++i) tensors.push_back({fmt::format("tensor.{}", i), DType::BF16, {8}});
  const SafetensorsLayout layout = layout_safetensors(tensors);
  EXPECT_EQ(layout.header.size(), 8192u);
  EXPECT_EQ(layout.offset[99], 8192u + 99 * 16);
}

TEST(SafetensorsLayout, RefusesANameTwice) {
  const std::vector<SafetensorsTensor> tensors{{"x", DType::F32, {1}}, {"x", DType::F32, {1}}};
  EXPECT_THROW(layout_safetensors(tensors), InternalError);
}

TEST(ShardSafetensors, OneFileNeedsNoIndex) {
  const ShardedLayout sharded = shard_safetensors(std::vector<SafetensorsTensor>{{"x", DType::F32, {4}}}, 16);
  ASSERT_EQ(sharded.shards.size(), 1u);
  EXPECT_EQ(sharded.shards[0].file_name, "model.safetensors");
  EXPECT_EQ(sharded.index_json, "");
}

//   limit 40    a 16  b 24 | c 100 | d 4
TEST(ShardSafetensors, FillsInOrderAndGivesALargerTensorItsOwnShard) {
  const std::vector<SafetensorsTensor> tensors{
      {"a", DType::F32, {4}}, {"b", DType::F32, {6}}, {"c", DType::F32, {25}}, {"d", DType::F32, {1}}};
  const ShardedLayout sharded = shard_safetensors(tensors, 40);
  ASSERT_EQ(sharded.shards.size(), 3u);
  EXPECT_THAT(sharded.shards[0].tensors, ElementsAre(0, 1));
  EXPECT_THAT(sharded.shards[1].tensors, ElementsAre(2));
  EXPECT_THAT(sharded.shards[2].tensors, ElementsAre(3));
  EXPECT_EQ(sharded.shards[2].file_name, "model-00003-of-00003.safetensors");

  const TempDirectory directory;
  write_text(directory.path() / "model.safetensors.index.json", sharded.index_json);
  for (const auto& shard : sharded.shards) {
    std::string file = shard.layout.header;
    file.resize(shard.layout.file_bytes);
    write_text(directory.path() / shard.file_name, file);
  }
  const SafetensorsIndex index = SafetensorsIndex::open_model(directory.path());
  EXPECT_EQ(index.files()[index.require("c", {25}, "").file].filename(), "model-00002-of-00003.safetensors");
}

}  // namespace
}  // namespace snug
