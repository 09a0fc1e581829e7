// Parquet files of pyarrow, polars and duckdb (scripts/make_data_fixtures.py), against their rows as JSON.
#include "format/parquet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "expect_error.h"
#include "format/json.h"
#include "temp_directory.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

const fs::path kFixtures = fs::path(SNUG_FIXTURES) / "parquet";
constexpr uint64_t kMaxRow = 1 << 20;

std::string bytes_of(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

std::vector<Json> rows_of(const fs::path& path, std::set<std::string, std::less<>> json_columns = {}) {
  ParquetReader reader(path, std::move(json_columns));
  std::vector<Json> out;
  for (std::string row; reader.next(row, kMaxRow); row.clear()) out.push_back(parse_json(row, path.string()));
  return out;
}

std::vector<Json> expected_rows(const std::string& name) {
  std::ifstream in(kFixtures / (name + ".jsonl"));
  std::vector<Json> out;
  for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
  return out;
}

class Parquet : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Parquet, RowsAreWhatTheirWriterHad) {
  const auto [file, rows] = GetParam();
  const std::vector<Json> expected = expected_rows(rows), found = rows_of(kFixtures / (std::string(file) + ".parquet"));
  ASSERT_GT(expected.size(), 0u);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(found[i], expected[i]) << "row " << i + 1;
}

INSTANTIATE_TEST_SUITE_P(Files, Parquet,
                         testing::Values(std::pair("chats_none", "chats"), std::pair("chats_snappy", "chats"),
                                         std::pair("chats_gzip", "chats"), std::pair("chats_zstd", "chats"),
                                         std::pair("chats_v2", "chats"), std::pair("chats_plain", "chats"),
                                         std::pair("chats_polars", "chats"), std::pair("chats_duckdb", "chats"),
                                         std::pair("scalars", "scalars"), std::pair("scalars_v2", "scalars"),
                                         std::pair("nested", "nested"), std::pair("nested_v2", "nested"),
                                         std::pair("long", "long"), std::pair("long_v2", "long"),
                                         std::pair("images", "images"), std::pair("images_v2", "images"),
                                         std::pair("decimals", "decimals"), std::pair("wide", "wide")),
                         [](const auto& info) { return info.param.first; });

TEST(ParquetFiles, WhatCannotBeReadIsRefusedByFileAndColumn) {
  const auto refused = [](const char* name, std::string_view part) {
    return fails_with<UserError>([&] { rows_of(kFixtures / name); }, part);
  };
  EXPECT_TRUE(refused("refused_lz4.parquet", "refused_lz4.parquet, column 'id': found pages compressed by LZ4"));
  EXPECT_TRUE(refused("refused_delta.parquet", "column 'text': found values in encoding DELTA_BYTE_ARRAY"));
  EXPECT_TRUE(refused("refused_int96.parquet", "column 't': found times of 96 bits (INT96)"));
  EXPECT_TRUE(refused("refused_map.parquet", "column 'm': found a map"));
  EXPECT_TRUE(refused("refused_bytes.parquet", "column 'image', row 1: found byte 0xff, which is not UTF-8"));
}

TEST(ParquetFiles, ATableWithoutRowsHasNone) { EXPECT_TRUE(rows_of(kFixtures / "empty.parquet").empty()); }

TEST(ParquetFiles, FilesThatEndEarlyAreRefused) {
  const TempDirectory directory;
  const fs::path path = directory.path() / "a.parquet";
  const std::string whole = bytes_of(kFixtures / "chats_snappy.parquet");
  const auto refused = [&](std::string_view bytes, std::string_view part) {
    std::ofstream(path, std::ios::binary) << bytes;
    return fails_with<UserError>([&] { rows_of(path); }, part);
  };
  EXPECT_TRUE(refused("", "a.parquet: found 0 bytes, expected a Parquet file"));
  EXPECT_TRUE(refused("{\"text\": \"json under another name\"}", "found no Parquet file, which begins with PAR1"));
  EXPECT_TRUE(refused(whole.substr(0, whole.size() - 100), "it is cut short, or still being written"));
  EXPECT_TRUE(refused(whole.substr(0, 4) + whole.substr(200), "column"));
}

TEST(ParquetFiles, ARowOfTooManyBytesIsRefused) {
  ParquetReader reader(kFixtures / "chats_plain.parquet");
  std::string row;
  EXPECT_TRUE(reader.next(row, 2000));
  EXPECT_TRUE(fails_with<UserError>([&] { reader.next(row, 20); }, "row 2: found a row of too many bytes"));
}

// Two row groups with two pages of 104 bytes in each of four columns, of which one is held: of the last column those of
// the file are there too.
TEST(ParquetFiles, WhatAllColumnsHoldAtOnceIsBounded) {
  constexpr uint64_t kPage = 104, kLast = 2 * kPage, kBefore = 3 * (sizeof(ParquetColumn) + kPage);
  constexpr uint64_t kNeeded = kBefore + sizeof(ParquetColumn) + kLast;
  const auto read = [](uint64_t most_held) {
    ParquetReader reader(kFixtures / "wide.parquet", {}, most_held);
    int rows = 0;
    for (std::string row; reader.next(row, kMaxRow); row.clear()) ++rows;
    return rows;
  };
  EXPECT_EQ(read(kNeeded), 4);
  EXPECT_TRUE(fails_with<UserError>(
      [&] { read(kNeeded - 1); },
      fmt::format("wide.parquet, column 'd': found {} bytes beside {} of all columns' pages and dictionaries that are "
                  "read at once, expected at most {} together; leave columns out of the file, or write it again with "
                  "smaller pages",
                  kLast, kBefore + sizeof(ParquetColumn), kNeeded - 1)));
  EXPECT_TRUE(fails_with<UserError>([&] { read(sizeof(ParquetColumn) + kLast - 1); }, "column 'a': found 208 bytes"));
}

// Any other exception, or a signal, fails the test.
TEST(ParquetFiles, AnyCorruptionIsRefusedOrRead) {
  const TempDirectory directory;
  const fs::path path = directory.path() / "a.parquet";
  for (const char* name : {"chats_v2.parquet", "nested.parquet"}) {
    const std::string whole = bytes_of(kFixtures / name);
    for (size_t i = 0; i < whole.size(); ++i) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ (i % 3 ? 1 << i % 8 : 0xff));
      std::ofstream(path, std::ios::binary) << bytes;
      try {
        ParquetReader reader(path);
        std::string row;
        for (int r = 0; r < 1000 && reader.next(row, kMaxRow); ++r) row.clear();
      } catch (const UserError&) {
      }
    }
  }
}

}  // namespace
}  // namespace snug
