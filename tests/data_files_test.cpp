// Data files as people have them: compressed, tables, directories, and files that are something else.
#include "data/data_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/records.h"
#include "expect_error.h"
#include "temp_directory.h"

namespace snug {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// ---- Compression by zlib's and zstd's own writers -------------------------------------------------------------------

std::string gzipped(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstandard(std::string_view text, int window_log = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);  // the window then is what was asked for
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer from{text.data(), text.size(), 0};
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  while (ZSTD_compressStream2(context, &to, &from, ZSTD_e_continue) != 0 && from.pos < from.size) continue;
  while (ZSTD_compressStream2(context, &to, &from, ZSTD_e_end) != 0) continue;
  out.resize(to.pos);
  ZSTD_freeCCtx(context);
  return out;
}

class DataFilesTest : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, std::string_view text) {
    const std::filesystem::path path = directory_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::vector<std::string> records(const std::string& name, std::string_view text, RecordOptions options = {}) {
    RecordReader reader(write(name, text), std::move(options));
    std::vector<std::string> out;
    for (Record record; reader.next(record);) {
      out.push_back(record.place.substr(record.place.find(',') + 2) + ": " + record.text);
    }
    note_ = reader.note();
    return out;
  }
  testing::AssertionResult refused(const std::string& name, std::string_view text, std::string_view part) {
    return fails_with<UserError>([&] { records(name, text); }, part);
  }

  TempDirectory directory_;
  std::string note_;
};

TEST_F(DataFilesTest, EveryTextualKindMayBeCompressed) {
  const std::string json = "\xef\xbb\xbf{\"a\": 1}\r\n{}", csv = "a\n1\n", text = "one\n\ntwo\n";
  for (const auto& [ending, pack] : {std::pair(
                                         ".gz", +[](std::string_view t) { return gzipped(t); }),
                                     std::pair(
                                         ".zst", +[](std::string_view t) { return zstandard(t); })}) {
    EXPECT_THAT(records(std::string("a.jsonl") + ending, pack(json)), ElementsAre("line 1: {\"a\": 1}", "line 2: {}"));
    EXPECT_THAT(records(std::string("a.json") + ending, pack("[{}]")), ElementsAre("element 1 (line 1): {}"));
    EXPECT_THAT(records(std::string("a.csv") + ending, pack(csv)), ElementsAre("line 2: {\"a\":\"1\"}"));
    EXPECT_THAT(records(std::string("a.TXT") + ending, pack(text)), ElementsAre("line 1: one\n\ntwo"));
    // Parts that were compressed apart and joined.
    EXPECT_THAT(records(std::string("a.jsonl") + ending, pack("{}\n{") + pack("") + pack("}\n")),
                ElementsAre("line 1: {}", "line 2: {}"));
    EXPECT_THAT(records(std::string("a.jsonl") + ending, ""), ElementsAre());
  }
  EXPECT_THAT(records("a.jsonl.gz", gzipped("{}") + std::string(1000, '\0')), ElementsAre("line 1: {}"));
}

TEST_F(DataFilesTest, LongFilesCrossEveryBuffer) {
  std::string text;
  uint64_t state = 1;
  std::vector<std::string> expected;
  for (int i = 1; i <= 40000; ++i) {
    std::string word;
    for (int k = 0; k < 60; ++k) word += static_cast<char>('a' + (state = state * 6364136223846793005 + 1) % 97 % 26);
    text += "{\"a\":\"" + word + "\"}\n";
    expected.push_back("line " + std::to_string(i) + ": {\"a\":\"" + word + "\"}");
  }
  EXPECT_EQ(records("a.jsonl.gz", gzipped(text)), expected);
  EXPECT_EQ(records("a.jsonl.zst", zstandard(text)), expected);
}

TEST_F(DataFilesTest, DamagedStreamsAreRefusedWithTheOffset) {
  const std::string text = "{\"text\": \"some words that do not compress to nothing at all\"}\n";
  for (const auto& [name, whole] :
       {std::pair("a.jsonl.gz", gzipped(text)), std::pair("a.jsonl.zst", zstandard(text))}) {
    for (size_t size = 4; size < whole.size(); ++size) {
      EXPECT_TRUE(
          refused(name, whole.substr(0, size), "near offset " + std::to_string(size) + ": the file ends inside"))
          << name << " " << size;
    }
    EXPECT_TRUE(refused(name, whole + "rubbish", "found a damaged"));
    for (size_t i = 0; i < whole.size(); ++i) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
      try {
        records(name, damaged);
      } catch (const UserError&) {
        continue;  // any other exception fails the test
      }
    }
  }
  EXPECT_TRUE(
      refused("a.jsonl.gz", text,
              "a.jsonl.gz: found bytes that gzip did not write, expected what its name says: without .gz it is"));
  EXPECT_TRUE(refused("a.jsonl.zst", zstandard(text, 30), "compress it without --long"));
}

// ---- Tables ---------------------------------------------------------------------------------------------------------

TEST_F(DataFilesTest, RowsAreObjects) {
  EXPECT_THAT(records("a.csv", "\xef\xbb\xbfq,a\r\n1,x\r\n\r\n\"2, \"\"two\"\"\",\"y\r\nz\"\r\n,\"\"\r\n5\" pipe,\\"),
              ElementsAre("line 2: {\"q\":\"1\",\"a\":\"x\"}", "line 4: {\"q\":\"2, \\\"two\\\"\",\"a\":\"y\\u000az\"}",
                          "line 6: {\"q\":null,\"a\":null}", "line 7: {\"q\":\"5\\\" pipe\",\"a\":\"\\\\\"}"));
  EXPECT_THAT(records("a.csv", "a,b\n1,"), ElementsAre("line 2: {\"a\":\"1\",\"b\":null}"));
  EXPECT_THAT(records("a.csv", "a,b\n"), ElementsAre());
  EXPECT_THAT(records("a.csv", "text\n\"\"\nx;y\n"),
              ElementsAre("line 2: {\"text\":null}", "line 3: {\"text\":\"x;y\"}"));
}

TEST_F(DataFilesTest, CellsOfColumnsThatHoldListsAreReadAsJson) {
  RecordOptions options;
  options.json_columns = {"messages"};
  EXPECT_THAT(
      records("a.csv", "messages,output\n\"[{\"\"role\"\": \"\"user\"\"}]\",\"[1, 2]\"\n[1],{}\n[1,{}\n", options),
      ElementsAre("line 2: {\"messages\":[{\"role\": \"user\"}],\"output\":\"[1, 2]\"}",
                  "line 3: {\"messages\":[1],\"output\":\"{}\"}", "line 4: {\"messages\":\"[1\",\"output\":\"{}\"}"));
}

TEST_F(DataFilesTest, AColumnWithoutANameIsPassedOverAndSaid) {
  EXPECT_THAT(records("a.csv", ",text\n0,x\n1,y\n"),
              ElementsAre("line 2: {\"text\":\"x\"}", "line 3: {\"text\":\"y\"}"));
  EXPECT_THAT(note_, HasSubstr("a.csv: passed over: a column without a name"));
}

TEST_F(DataFilesTest, TablesThatAreNotTablesAreRefusedByLine) {
  EXPECT_TRUE(refused("a.csv", "a,b\n1,2\n\n3\n", "a.csv, line 4: found 1 cells, expected 2 as in the header row"));
  EXPECT_TRUE(refused("a.csv", "a,b\n1,2,3\n", "line 2: found 3 cells"));
  EXPECT_TRUE(refused("a.csv", "a,b,a\n", "line 1: found column 'a' twice"));
  EXPECT_TRUE(refused("a.csv", "a;b\n1;2\n", "line 1: found ';' between the columns' names, expected commas"));
  EXPECT_TRUE(refused("a.csv", "a\tb\n1\t2\n", "found tabs between"));
  EXPECT_TRUE(refused("a.csv", "a\n\"x\n\n", "line 2: the file ends inside the quoted cell that begins here"));
  EXPECT_TRUE(refused("a.csv", "a\n\"x\"y\n", "line 2: found 'y' behind a quoted cell"));
  EXPECT_TRUE(refused("a.csv", "a,b\nx,caf\xe9\n", "line 2, column 2: found byte 0xe9, which is not UTF-8"));
  EXPECT_TRUE(refused("a.csv", "", "expected a header row"));
  EXPECT_TRUE(refused("a.csv", ",\n1,2\n", "found no name in the header row"));
}

TEST_F(DataFilesTest, RowsOfParquetAreRecords) {
  RecordReader reader(SNUG_FIXTURES "/parquet/chats_zstd.parquet");
  Record record;
  ASSERT_TRUE(reader.next(record));
  EXPECT_THAT(record.place, HasSubstr("chats_zstd.parquet, row 1"));
  EXPECT_EQ(Json::parse(record.text)["messages"][1]["role"], "assistant");
  EXPECT_TRUE(refused("a.parquet", "{}", "expected a Parquet file"));
  EXPECT_TRUE(refused("a.parquet", "version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"));
}

// ---- Names and directories ------------------------------------------------------------------------------------------

TEST_F(DataFilesTest, OtherEndingsAreRefusedWithWhatToDo) {
  for (const auto& [name, part] :
       {std::pair("a.tsv", "write it with commas"), std::pair("a.arrow", "to_parquet()"),
        std::pair("a.XLSX", "save it as CSV"), std::pair("a.jsonl.bz2", "bunzip2"), std::pair("a.jsonl.xz", "unxz"),
        std::pair("a.tar.gz", "an archive"), std::pair("a.zip", "an archive"), std::pair("a.ndjson", "name it .jsonl"),
        std::pair("a.parquet.gz", "expected .parquet alone"),
        std::pair("a.yaml", "found the ending .yaml, expected a file that ends in .json, .jsonl"),
        std::pair("a.gz", "found no ending"), std::pair("a", "found no ending")}) {
    EXPECT_TRUE(refused(name, "{}", part)) << name;
  }
  EXPECT_TRUE(
      fails_with<UserError>([] { data_file_type("owner/set"); }, "owner/set: cannot open: No such file or directory"));
}

TEST_F(DataFilesTest, FilesThatAreSomethingElseAreRefusedByWhatTheyAre) {
  using namespace std::string_literals;
  EXPECT_TRUE(refused("a.jsonl", gzipped("{}"), "found bytes compressed by gzip; name it so: .gz"));
  EXPECT_TRUE(refused("a.jsonl.gz", zstandard("{}"), "found bytes compressed by zstd"));
  EXPECT_TRUE(refused("a.jsonl.gz", gzipped(gzipped("{}")), "found compressed, bytes compressed by gzip"));
  EXPECT_TRUE(refused("a.json", "PAR1abcd", "found a Parquet file; name it .parquet"));
  EXPECT_TRUE(refused("a.json", "ARROW1\0\0"s, "found an Arrow file"));
  EXPECT_TRUE(refused("a.csv", "PK\3\4", "found a zip archive or a spreadsheet"));
  EXPECT_TRUE(refused("a.csv",
                      "\xff\xfe"
                      "a\0"s,
                      "found text in UTF-16"));
  for (const char* name : {"a.jsonl", "a.txt", "a.jsonl.gz", "a.csv.zst"}) {
    EXPECT_TRUE(refused(name, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "git lfs pull"));
  }
}

TEST_F(DataFilesTest, ADirectoryIsTheDataFilesInIt) {
  for (const char* name : {"d/b.jsonl", "d/a.txt", "d/a.csv", "d/deep/er/c.json.gz", "d/.cache/x.json",
                           "d/.hidden.json", "d/README.md", "d/dataset_infos.json"}) {
    write(name, "x");
  }
  write("d/empty.txt", "");
  std::filesystem::create_symlink("nowhere", directory_.path() / "d/link.csv");
  const std::filesystem::path d = directory_.path() / "d";
  const DataFiles found = find_data_files({"first.jsonl", d.string()});
  EXPECT_THAT(found.files,
              ElementsAre("first.jsonl", d / "a.csv", d / "a.txt", d / "b.jsonl", d / "deep/er/c.json.gz"));
  EXPECT_THAT(found.notes, ElementsAre(d.string() + ": 4 data files: a.csv, a.txt, b.jsonl, deep/er/c.json.gz; passed "
                                                    "over: README.md, dataset_infos.json, empty.txt (an empty file), "
                                                    "link.csv (a link to nothing), .hidden.json (hidden)"));
}

TEST_F(DataFilesTest, WhatIsOnAnotherMachineIsToBeFetched) {
  const auto refused = [](const char* path, std::string_view part) {
    return fails_with<UserError>([&] { find_data_files({path}); }, part);
  };
  EXPECT_TRUE(refused("https://host/a.jsonl", "found 'https://host/a.jsonl', expected a file or a directory here"));
  EXPECT_TRUE(refused("maker/data_set", "'hf download maker/data_set --repo-type dataset --local-dir DIR' fetches it"));
  EXPECT_NO_THROW(find_data_files({"maker/a.jsonl"})) << "refused where it is read";
}

TEST_F(DataFilesTest, LinesOfATableThatEndInCrAloneAreNamed) {
  write("a.csv", "instruction,output\rhi,yo\rhi,yo\r");
  EXPECT_TRUE(fails_with<UserError>([&] { RecordReader(directory_.path() / "a.csv"); },
                                    "a.csv, line 1: found lines that end in CR alone, expected LF or CR LF"));
}

TEST_F(DataFilesTest, ATableWithoutRowsHasNoRecord) {
  RecordReader reader(std::filesystem::path(SNUG_FIXTURES) / "parquet/empty.parquet");
  Record record;
  EXPECT_FALSE(reader.next(record));
}

TEST_F(DataFilesTest, ADirectoryWithoutDataIsRefusedByWhatLiesThere) {
  write("d/notes.doc", "");
  std::filesystem::create_directories(directory_.path() / "empty");
  write("saved/train/data-00000-of-00001.arrow", "");
  write("saved/train/state.json", "{}");
  write("saved/dataset_dict.json", "{}");
  const auto find = [&](const char* name) { find_data_files({(directory_.path() / name).string()}); };
  EXPECT_TRUE(
      fails_with<UserError>([&] { find("d"); }, "found a directory with notes.doc, expected files that end in"));
  EXPECT_TRUE(fails_with<UserError>([&] { find("empty"); }, "found a directory without files"));
  EXPECT_TRUE(fails_with<UserError>([&] { find("saved"); }, "written by save_to_disk()"));
}

}  // namespace
}  // namespace snug
