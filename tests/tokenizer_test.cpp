// Tokenizers against stored answers of the `tokenizers` library, and what no file of that library can hold.
#include "format/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/unicode.h"
#include "packed_ids.h"
#include "temp_directory.h"

namespace snug {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::filesystem::path kFixtures = std::filesystem::path(SNUG_FIXTURES) / "tokenizer";

std::vector<Json> read_lines(const char* name) {
  std::ifstream file(kFixtures / name);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

class Family : public testing::TestWithParam<const char*> {
 protected:
  Tokenizer tokenizer_ = Tokenizer::load(kFixtures / GetParam());
};
INSTANTIATE_TEST_SUITE_P(All, Family, testing::Values("smollm", "llama3", "qwen2"),
                         [](const auto& info) { return info.param; });

TEST_P(Family, EncodesEveryCaseAsTheTokenizersLibrary) {
  const std::string family = GetParam();
  const auto cases = read_lines("cases.jsonl");
  EXPECT_GE(cases.size(), 2000u);
  for (const Json& line : cases) {
    const std::string text = line["text"];
    ASSERT_EQ(tokenizer_.encode(text), unpack_ids(line[family])) << line["text"];
    const auto plain = line.contains(family + "_plain") ? line[family + "_plain"] : line[family];
    ASSERT_EQ(tokenizer_.encode(text, /*parse_special=*/false), unpack_ids(plain)) << line["text"];
  }
}

TEST_P(Family, DecodesAsTheTokenizersLibrary) {
  size_t compared = 0;
  for (const Json& line : read_lines("decoded.jsonl")) {
    if (!line.contains(GetParam())) continue;
    const auto ids = unpack_ids(line[GetParam()]);
    ASSERT_EQ(tokenizer_.decode(ids, /*skip_special=*/false), line["all"].get<std::string>());
    ASSERT_EQ(tokenizer_.decode(ids, /*skip_special=*/true), line["skipped"].get<std::string>());
    ++compared;
  }
  EXPECT_EQ(compared, 60u);
}

// A word of megabytes: a quadratic loop would take hours.
TEST_P(Family, EncodesWordsOfMegabytesAsTheTokenizersLibrary) {
  for (const Json& line : read_lines("repeated.jsonl")) {
    if (!line.contains(GetParam())) continue;
    const std::string part = line["text"];
    std::string text;
    for (int64_t i = 0; i < line["times"]; ++i) text += part;
    std::vector<int32_t> expected;
    for (const Json& run : line[GetParam()]) expected.insert(expected.end(), run[1], unpack_ids(run[0]).front());
    EXPECT_TRUE(tokenizer_.encode(text) == expected) << line["times"] << " times '" << part << "'";
  }
}

TEST_P(Family, RefusesInvalidUtf8WithItsOffset) {
  const std::pair<std::string, const char*> cases[] = {
      {"\x80", "byte 0x80 at offset 0,"},              // a continuation without a lead
      {"ab\xff", "byte 0xff at offset 2,"},            // never a lead
      {"a\xc3", "byte 0xc3 at offset 1,"},             // cut short by the end
      {"\xe2\x82 ", "byte 0xe2 at offset 0,"},         // cut short by a space
      {"\u00e9\xc0\xaf", "byte 0xc0 at offset 2,"},    // overlong slash
      {"x\xe0\x80\xaf", "byte 0xe0 at offset 1,"},     // overlong, three bytes
      {"x\xed\xa0\x80", "byte 0xed at offset 1,"},     // a surrogate
      {"\xf4\x90\x80\x80", "byte 0xf4 at offset 0,"},  // above U+10FFFF
      {"<|im_end|>\xf5", "byte 0xf5 at offset 10,"},
  };
  for (const auto& one : cases) EXPECT_TRUE(fails_with<UserError>([&] { tokenizer_.encode(one.first); }, one.second));
}

// The library gives up on Llama 3's and Qwen2's patterns after about 10 MB of spaces.
TEST(Tokenizer, EncodesWordsLongerThanTheLibraryTakes) {
  const Tokenizer tokenizer = Tokenizer::load(kFixtures / "llama3");
  const std::string spaces(20'000'000, ' ');
  EXPECT_TRUE(tokenizer.decode(tokenizer.encode(spaces), false) == spaces);

  std::mt19937 random(7);
  std::string letters(1'000'000, ' ');
  for (char& letter : letters) letter = static_cast<char>('a' + random() % 26);
  EXPECT_TRUE(tokenizer.decode(tokenizer.encode(letters), false) == letters);
}

TEST(Tokenizer, SmolLm2HasItsOwnNamesAndNoBosHabit) {
  const Tokenizer tokenizer = Tokenizer::load(kFixtures / "smollm");
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_FALSE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.token_id("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer.token(2), "<|im_end|>");
  EXPECT_EQ(tokenizer.chat_template_text(), "{{ messages[0] }}");  // the one named "default"
}

TEST(Tokenizer, Llama3BeginsTextsWithBosByItsPostProcessor) {
  const Tokenizer tokenizer = Tokenizer::load(kFixtures / "llama3");
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.bos_id(), tokenizer.token_id("<|begin_of_text|>"));
  EXPECT_EQ(tokenizer.eos_id(), tokenizer.token_id("<|eot_id|>"));
  EXPECT_FALSE(tokenizer.chat_template_text());
}

TEST(Tokenizer, Qwen2HasNoBosAndReadsTokensWrittenAsObjects) {
  const Tokenizer tokenizer = Tokenizer::load(kFixtures / "qwen2");
  EXPECT_FALSE(tokenizer.adds_bos());
  EXPECT_FALSE(tokenizer.bos_id());
  EXPECT_EQ(tokenizer.eos_id(), tokenizer.token_id("<|im_end|>"));
  EXPECT_EQ(tokenizer.chat_template_text(), "{{ messages }}");
}

// The first input of tokenizer_fuzz: three files, blank lines between them.
std::string seed() { return read_text(kFixtures / "tiny", 10000); }
// A tokenizer of a few tokens, one option away from a valid file: the first of the three.
Json tiny() { return Json::parse(seed().substr(0, seed().find("\n\n"))); }
Tokenizer made_of(const Json& json) { return Tokenizer::parse({.tokenizer = json.dump()}); }

TEST(Tokenizer, TheFuzzersFirstInputIsWhole) {
  const size_t second = seed().find("\n\n"), third = seed().find("\n\n", second + 2);
  const std::string config = seed().substr(second, third - second), map = seed().substr(third);
  const Tokenizer tokenizer =
      Tokenizer::parse({.tokenizer = tiny().dump(), .config = config, .special_tokens_map = map});
  EXPECT_EQ(tokenizer.bos_id(), 6);
  EXPECT_EQ(tokenizer.eos_id(), 5);
  EXPECT_EQ(tokenizer.chat_template_text(), "{{ messages }}");
}

TEST(Tokenizer, AppliesTheEarlierMergeFirstWhereverItStands) {
  EXPECT_THAT(made_of(tiny()).encode("abc"), ElementsAre(0, 4));
}

TEST(Tokenizer, TakesAWholeWordForATokenWhereMergesAreIgnored) {
  Json json = tiny();
  json["model"]["vocab"]["abc"] = 6;
  json["added_tokens"] = Json::array();
  EXPECT_THAT(made_of(json).encode("abc"), ElementsAre(0, 4));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(made_of(json).encode("abc"), ElementsAre(6));
}

TEST(Tokenizer, LeavesOutBytesWithoutATokenOrCallsThemUnknown) {
  Json json = tiny();
  EXPECT_THAT(made_of(json).encode("azzb"), ElementsAre(3));  // what is left joins
  json["model"]["unk_token"] = "?";
  EXPECT_THAT(made_of(json).encode("azzb"), ElementsAre(0, 5, 5, 1));
  json["model"]["fuse_unk"] = true;
  EXPECT_THAT(made_of(json).encode("azzb"), ElementsAre(0, 5, 1));
}

// The ids are the tokenizers library's.
TEST(Tokenizer, FindsAddedTokensOfWhiteSpaceBesideThoseThatTakeIt) {
  Json json = tiny();
  json["model"]["vocab"] = {{"x", 0}, {"y", 1}, {"Ġ", 2}, {"Ċ", 3}};
  json["model"]["merges"] = Json::array();
  json["added_tokens"] = Json::array();
  const auto add = [&](int id, const char* content, bool lstrip, bool rstrip) {
    json["added_tokens"].push_back({{"id", id},
                                    {"content", content},
                                    {"special", false},
                                    {"normalized", false},
                                    {"single_word", false},
                                    {"lstrip", lstrip},
                                    {"rstrip", rstrip}});
  };
  add(4, "  ", true, false);
  add(5, "[A]", false, true);
  add(6, "\n\n", true, true);
  const Tokenizer tokenizer = made_of(json);
  EXPECT_THAT(tokenizer.encode("x[A]  y"), ElementsAre(0, 5, 1));
  EXPECT_THAT(tokenizer.encode("x    y"), ElementsAre(0, 4, 4, 1));
  EXPECT_THAT(tokenizer.encode("x\n\n\n\ny"), ElementsAre(0, 6, 1));
  EXPECT_THAT(tokenizer.encode("x[A]    y"), ElementsAre(0, 5, 1));  // where that library panics
}

// The ids are the tokenizers library's.
TEST(Tokenizer, PutsNoFirstMarkWhereTheNormaliserTookTheStart) {
  Json json = tiny();
  json["added_tokens"] = Json::array();
  json["normalizer"] = Json::parse(R"({"type": "Sequence", "normalizers": [
      {"type": "Strip", "strip_left": true, "strip_right": false},
      {"type": "Replace", "pattern": {"String": "q"}, "content": ""}]})");
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  json["decoder"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}};
  json["model"]["vocab"] = {{"x", 0}, {"y", 1}, {"▁", 2}};
  json["model"]["merges"] = Json::array();
  const Tokenizer first = made_of(json);
  EXPECT_THAT(first.encode("x"), ElementsAre(2, 0));
  EXPECT_THAT(first.encode("\tx"), ElementsAre(0));
  EXPECT_THAT(first.encode("qx"), ElementsAre(0));
  EXPECT_THAT(first.encode("xq y"), ElementsAre(2, 0, 2, 1));
  json["pre_tokenizer"]["prepend_scheme"] = "always";
  EXPECT_THAT(made_of(json).encode("\tx"), ElementsAre(2, 0));
}

TEST(Tokenizer, SaysThatItsTruncationIsNotApplied) {
  Json json = tiny();
  json["truncation"] = {{"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}, {"direction", "Right"}};
  EXPECT_EQ(made_of(json).encode("aaaa").size(), 4u);
  ASSERT_EQ(made_of(json).notes().size(), 1u);
  EXPECT_EQ(made_of(json).notes()[0],
            "tokenizer.json: it truncates texts to 2 tokens, which is not applied, as by transformers: "
            "--sequence-length is the limit");
}

TEST(Tokenizer, KeepsWhatTheChatTemplateFileSays) {
  TempDirectory directory;
  write_text(directory.path() / "tokenizer.json", tiny().dump());
  write_text(directory.path() / "tokenizer_config.json", R"({"chat_template": "old", "bos_token": "<s>"})");
  write_text(directory.path() / "chat_template.jinja", "new");
  const Tokenizer tokenizer = Tokenizer::load(directory.path());
  EXPECT_EQ(tokenizer.chat_template_text(), "new");
  EXPECT_EQ(tokenizer.bos_id(), 6);
}

TEST(Tokenizer, FollowsTheConfigRatherThanThePostProcessor) {
  Json json = tiny();
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}})");
  EXPECT_TRUE(made_of(json).adds_bos());
  EXPECT_EQ(made_of(json).bos_id(), 6);
  const std::string config = R"({"add_bos_token": false, "bos_token": "<s>"})";
  const Tokenizer without = Tokenizer::parse({.tokenizer = json.dump(), .config = config});
  EXPECT_FALSE(without.adds_bos());
  EXPECT_EQ(without.notes(), std::vector<std::string>{
                                 "tokenizer.json: its post_processor puts '<s>' before a text, and add_bos_token of "
                                 "tokenizer_config.json is false: nothing is put"});
  const std::string adds = R"({"add_bos_token": true, "bos_token": "<s>"})";
  EXPECT_EQ(Tokenizer::parse({.tokenizer = json.dump(), .config = adds}).notes(), std::vector<std::string>{});
  EXPECT_EQ(Tokenizer::parse({.tokenizer = tiny().dump(), .config = adds}).notes(),
            std::vector<std::string>{"tokenizer.json: its post_processor puts nothing before a text, and add_bos_token "
                                     "of tokenizer_config.json is true: '<s>' is put"});
}

TEST(Tokenizer, NamesFileAndKeyOfTokensThatClash) {
  const auto refused = [](const Json& json, const std::string& config, std::string_view message) {
    return fails_with<UserError>([&] { Tokenizer::parse({.tokenizer = json.dump(), .config = config}, "model/"); },
                                 message);
  };
  Json json = tiny();
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}})");
  EXPECT_TRUE(refused(json, R"({"bos_token": "a"})",
                      "model/tokenizer.json, key 'post_processor': found token 6 before a text, expected the "
                      "bos_token, 0"));
  json["post_processor"]["special_tokens"]["<s>"]["ids"][0] = 7;
  EXPECT_TRUE(
      refused(json, "", "model/tokenizer.json, key 'post_processor': found id 7 before a text, expected the id"));
  json = tiny();
  json["added_tokens"].push_back(json["added_tokens"][0]);
  EXPECT_TRUE(
      refused(json, "", "model/tokenizer.json, key 'added_tokens': found \"<s>\" for both token 6 and token 6"));
  json = tiny();
  json["added_tokens"][0]["content"] = std::string(1025, 'x');
  EXPECT_TRUE(refused(json, "", "model/tokenizer.json, key 'added_tokens': found 1025 bytes in token 6, expected"));
}

TEST(Tokenizer, RefusesWhatItDoesNotKnowByName) {
  struct Case {
    const char* pointer;
    Json value;
    const char* message;
  };
  const Json split = Json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})");
  const Json sequence = Json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "ByteLevel", "add_prefix_space": false}, {"type": "Digits", "individual_digits": true}]})");
  const Json fused = Json::parse(R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})");
  const Json strip = Json::parse(R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 0, "stop": 1}]})");
  const Case cases[] = {
      {"/version", "2.0", "'version': found \"2.0\""},
      {"/normalizer", {{"type", "Lowercase"}}, "'normalizer.type': found \"Lowercase\""},
      {"/normalizer",
       {{"type", "Replace"}, {"pattern", {{"Regex", "x"}}}, {"content", ""}},
       "'normalizer.pattern.String'"},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, "'pre_tokenizer.type': found \"Whitespace\""},
      {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}, "found \"ab\", expected one character"},
      {"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}}, "found \"last\""},
      {"/pre_tokenizer", split, "found \"\\\\w+\", expected \\s, \\S, "},
      {"/pre_tokenizer", sequence, "'pre_tokenizer.pretokenizers.type': found \"Digits\", expected nothing after"},
      {"/post_processor", {{"type", "BertProcessing"}}, "found \"BertProcessing\""},
      {"/decoder", {{"type", "WordPiece"}}, "found \"WordPiece\""},
      {"/decoder", fused, "found \"ByteFallback\", expected \"Strip\", \"Replace\" of one character, or"},
      {"/decoder", strip, "'decoder.decoders.stop': found 1, expected 0 behind"},
      {"/model/type", "Unigram", "'model.type': found \"Unigram\""},
      {"/model/dropout", 0.1, "'model.dropout': found 0.1"},
      {"/model/end_of_word_suffix", "</w>", "found \"</w>\""},
      {"/model/unk_token", "<unk>", "'model.unk_token': found \"<unk>\""},
      {"/model/merges/0", "a x", "merge 0 needs \"x\""},
      {"/model/merges/0", "a c", "merge 0 needs \"ac\""},
      {"/model/merges/0", "abc", "instead of \"abc\""},
      {"/model/vocab/b", 0, "an id of its own"},
      {"/model/vocab/b", -1, "'model.vocab.b': found -1"},
      {"/added_tokens/0/id", 9, "'added_tokens.id': found 9, expected 6"},
  };
  for (const auto& [pointer, value, message] : cases) {
    Json json = tiny();
    json[Json::json_pointer(pointer)] = value;
    EXPECT_TRUE(fails_with<UserError>([&] { made_of(json); }, message)) << pointer;
  }
  const std::string config = R"({"eos_token": "</s>"})";
  EXPECT_TRUE(fails_with<UserError>([&] { Tokenizer::parse({.tokenizer = tiny().dump(), .config = config}); },
                                    "tokenizer_config.json, key 'eos_token': found \"</s>\""));
}

// As transformers 5 writes the decoder of a model that came as GGUF.
TEST(Tokenizer, ACharacterIsReplacedBehindFuse) {
  Json json = tiny();
  json["decoder"] = Json::parse(R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, {"type": "ByteLevel"}]})");
  const Tokenizer tokenizer = made_of(json);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("abcab"), false), "bbcbb");
}

// Bytes changed at random: a UserError or a tokenizer that encodes, never anything else.
TEST(Tokenizer, SurvivesCorruptedFiles) {
  std::mt19937 random(11);
  const std::string whole = tiny().dump();
  for (int round = 0; round < 3000; ++round) {
    std::string text = whole;
    for (int change = 0; change < 3; ++change) text[random() % text.size()] = static_cast<char>(random() % 128);
    try {
      Tokenizer::parse({.tokenizer = text}).encode("abc <s> \u00e9");
    } catch (const UserError&) {
    }
  }
}

TEST(Unicode, ComposesAsUnicode9WhateverTheLibraryBelowKnows) {
  EXPECT_EQ(compose_nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(compose_nfc("a\u0301\u0323"), "\u1ea1\u0301");                 // marks in their order first
  EXPECT_EQ(compose_nfc("\u1112\u1161\u11ab"), "\ud55c");                  // Hangul
  EXPECT_EQ(compose_nfc("\u0958"), "\u0915\u093c");                        // excluded from composition
  EXPECT_EQ(compose_nfc("\U00011935\U00011930"), "\U00011935\U00011930");  // composes since Unicode 13
  EXPECT_EQ(compose_nfc("a\u0301\u1ac1\u0323"), "\u00e1\u1ac1\u0323");     // a mark since Unicode 14
}

TEST(Unicode, ComposesLongRunsOfMarksInLinearTime) {
  std::string marks = "a";
  for (int i = 0; i < 100'000; ++i) marks += "\u0345\u0334";
  const std::string composed = compose_nfc(marks);
  EXPECT_EQ(composed.size(), marks.size());
  EXPECT_TRUE(composed.starts_with("a\u0334\u0334"));
  EXPECT_TRUE(composed.ends_with("\u0345\u0345"));
}

}  // namespace
}  // namespace snug
