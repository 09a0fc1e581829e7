// Models of SentencePiece against stored answers of its library.
#include "format/sentencepiece.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "expect_error.h"
#include "format/tokenizer.h"
#include "packed_ids.h"
#include "temp_directory.h"

namespace snug {
namespace {

const std::filesystem::path kFixtures = std::filesystem::path(SNUG_FIXTURES) / "sentencepiece";

std::string model(const std::string& name) { return read_text(kFixtures / (name + ".model"), 1'000'000); }
Tokenizer tokenizer_of(const std::string& bytes, const std::string& config = "") {
  return Tokenizer::parse({.config = config, .sentencepiece = bytes});
}

// A field of bytes as protocol buffers write it, of fewer than 128.
std::string field(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
std::string number(int field, int value) {
  const int key = field << 3;
  return key < 128 ? std::string{static_cast<char>(key), static_cast<char>(value)}
                   : std::string{static_cast<char>(key | 128), static_cast<char>(key >> 7), static_cast<char>(value)};
}

TEST(SentencePiece, EncodesEveryCaseAsItsLibrary) {
  std::map<std::string, Tokenizer> kinds;
  for (const char* name : {"llama", "gemma", "collapsed", "unknown"}) kinds.emplace(name, tokenizer_of(model(name)));
  std::ifstream cases(kFixtures / "cases.jsonl"), decoded(kFixtures / "decoded.jsonl");
  size_t compared = 0;
  for (std::string line; std::getline(cases, line); ++compared) {
    const Json json = Json::parse(line);
    for (const auto& [name, tokenizer] : kinds) {
      ASSERT_EQ(tokenizer.encode(json["text"].get<std::string>(), /*parse_special=*/false), unpack_ids(json[name]))
          << name << ": " << json["text"];
    }
  }
  EXPECT_GE(compared, 100u);
  for (std::string line; std::getline(decoded, line);) {
    const Json json = Json::parse(line);
    ASSERT_EQ(kinds.at(json["kind"]).decode(unpack_ids(json["ids"]), false), json["all"].get<std::string>());
  }
}

TEST(SentencePiece, NamesTheTokensThatBeginAndEndATextAndItsHabit) {
  const Tokenizer llama = tokenizer_of(model("llama")), gemma = tokenizer_of(model("gemma"));
  EXPECT_EQ(llama.bos_id(), 1);
  EXPECT_EQ(llama.eos_id(), 2);
  EXPECT_TRUE(llama.adds_bos());
  EXPECT_EQ(gemma.bos_id(), 2);
  EXPECT_EQ(gemma.eos_id(), 1);
  EXPECT_FALSE(tokenizer_of(model("llama"), R"({"add_bos_token": false})").adds_bos());
}

// As prompts have them: what SentencePiece never finds in a text is found where special tokens are.
TEST(SentencePiece, FindsSpecialTokensAndThoseThatWereAdded) {
  const std::string config = R"({"eos_token": "<|end|>", "added_tokens_decoder": {
    "2": {"content": "</s>", "special": true, "rstrip": true}, "1200": {"content": "<|end|>", "special": true}}})";
  const Tokenizer tokenizer = tokenizer_of(model("llama"), config);
  EXPECT_EQ(tokenizer.encode("<s></s>  <|end|>"), (std::vector<int32_t>{1, 2, 1200}));
  EXPECT_EQ(tokenizer.eos_id(), 1200);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("<s>the</s>"), /*skip_special=*/true), "the");
  const Tokenizer::Files files{.sentencepiece = model("llama"), .added_tokens = R"({"<pad>": 1200})"};
  EXPECT_EQ(Tokenizer::parse(files).token_id("<pad>"), 1200);
  for (const char* wrong : {R"({"added_tokens_decoder": {"5": {"content": "<x>"}}})",
                            R"({"added_tokens_decoder": {"7": {"content": "</s>"}}})"}) {
    EXPECT_TRUE(fails_with<UserError>([&] { tokenizer_of(model("llama"), wrong); }, "expected an id of its own"));
  }
  EXPECT_TRUE(fails_with<UserError>([&] { tokenizer_of(model("llama"), R"({"added_tokens_decoder": {"x": {}}})"); },
                                    "key 'added_tokens_decoder': found an object of 1 keys, expected ids as keys"));
}

TEST(SentencePiece, IsReadOnlyWhereThereIsNoTokenizerJson) {
  TempDirectory directory;
  EXPECT_TRUE(fails_with<UserError>([&] { Tokenizer::load(directory.path()); }, "neither tokenizer.json nor"));
  write_text(directory.path() / "tokenizer.model", model("llama"));
  EXPECT_EQ(Tokenizer::load(directory.path()).encode("<s>"), (std::vector<int32_t>{1}));
  write_text(directory.path() / "tokenizer.json", "{}");
  EXPECT_TRUE(fails_with<UserError>([&] { Tokenizer::load(directory.path()); }, "tokenizer.json"));
}

TEST(SentencePiece, RefusesWhatItDoesNotKnowByName) {
  const std::string whole = model("llama");
  const std::pair<std::string, const char*> cases[] = {
      {whole + field(2, number(3, 1)), "trainer_spec.model_type: found 1 (unigram), expected 2 (BPE)"},
      {whole + field(2, number(3, 4)), "trainer_spec.model_type: found 4 (char), expected 2"},
      {whole + field(2, number(3, 2) + number(24, 1)), "trainer_spec.treat_whitespace_as_suffix: found true"},
      {whole + field(3, field(2, "map")), "normalizer_spec.precompiled_charsmap: found 3 bytes, expected none"},
      {whole + field(3, number(5, 0)), "normalizer_spec.escape_whitespaces: found false"},
      {whole + field(1, field(1, "<s>")), "piece 1200: found \"<s>\", which another piece has too"},
      {whole + field(1, ""), "piece 1200: found a text of 0 bytes"},
      {whole + field(1, field(1, "\xff")), "piece 1200: found a text of 1 bytes"},
      {whole + field(1, field(1, "x") + number(3, 7)), "piece 1200: found type 7, expected 1 to 6"},
      {whole.substr(0, whole.size() - 1), "of a protocol buffer"},
      {field(1, field(1, "x")), "found 1 pieces and no trainer_spec"},
      {"version https", "of a protocol buffer"},
  };
  for (const auto& [bytes, message] : cases) {
    EXPECT_TRUE(fails_with<UserError>([&, &text = bytes] { tokenizer_of(text); }, message));
  }
}

// Bytes changed at random: a UserError or a tokenizer that encodes, never anything else.
TEST(SentencePiece, SurvivesCorruptedFiles) {
  std::mt19937 random(11);
  const std::string whole = model("gemma");
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    for (int change = 0; change < 3; ++change) bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    try {
      tokenizer_of(bytes).encode("abc <s> \u00e9");
    } catch (const UserError&) {
    }
  }
}

}  // namespace
}  // namespace snug
