// Every kind of tokenizer.json against stored answers of the `tokenizers` library: those of the fixtures, or of another
// folder that scripts/make_tokenizer_kinds.py has made, if it is named behind gtest's options.
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "base/file.h"
#include "format/tokenizer.h"
#include "packed_ids.h"

namespace snug {
namespace {

std::filesystem::path& fixtures() {
  static std::filesystem::path folder = std::filesystem::path(SNUG_FIXTURES) / "tokenizer_kinds";
  return folder;
}

Json read_json(const char* name) { return Json::parse(read_text(fixtures() / name, 10'000'000)); }

// What kinds.json says of each kind: a vocabulary and what is patched into it.
std::vector<std::pair<std::string, Tokenizer>> all_kinds() {
  const Json bases = read_json("bases.json");
  std::vector<std::pair<std::string, Tokenizer>> kinds;
  const Json described = read_json("kinds.json");
  for (const auto& [kind, description] : described.items()) {
    Json json = bases.at(description.at("base").get<std::string>());
    json.merge_patch(description.at("patch"));
    kinds.emplace_back(kind, Tokenizer::parse({.tokenizer = json.dump()}));
  }
  return kinds;
}

TEST(TokenizerKinds, EncodeEveryCaseAsTheTokenizersLibrary) {
  const auto kinds = all_kinds();
  EXPECT_EQ(kinds.size(), 28u);
  size_t compared = 0;
  std::ifstream file(fixtures() / "cases.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    const std::string text = json["text"];
    for (const auto& [kind, tokenizer] : kinds) {
      ASSERT_EQ(tokenizer.encode(text), unpack_ids(json[kind])) << kind << ": " << json["text"];
      const auto plain = json.contains(kind + "_plain") ? json[kind + "_plain"] : json[kind];
      ASSERT_EQ(tokenizer.encode(text, /*parse_special=*/false), unpack_ids(plain)) << kind << ": " << json["text"];
      ++compared;
    }
  }
  EXPECT_GE(compared, 5000u);
}

TEST(TokenizerKinds, DecodeAsTheTokenizersLibraryWholeAndTokenByToken) {
  const auto all = all_kinds();
  const std::map<std::string, Tokenizer> kinds(all.begin(), all.end());
  size_t compared = 0;
  std::ifstream file(fixtures() / "decoded.jsonl");
  for (std::string line; std::getline(file, line); ++compared) {
    const Json json = Json::parse(line);
    const Tokenizer& tokenizer = kinds.at(json["kind"]);
    const std::vector<int32_t> ids = unpack_ids(json["ids"]);
    ASSERT_EQ(tokenizer.decode(ids, /*skip_special=*/false), json["all"].get<std::string>()) << json["kind"];
    ASSERT_EQ(tokenizer.decode(ids, /*skip_special=*/true), json["skipped"].get<std::string>()) << json["kind"];
    TokenStream stream(tokenizer, /*skip_special=*/true);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.next(id);
    ASSERT_EQ(streamed, json["skipped"].get<std::string>()) << json["kind"];
  }
  EXPECT_GE(compared, 300u);
}

// A text that is cut anywhere: the prefix of a stretch is put before its first part alone.
TEST(TokenizerKinds, TextsThatGoOnHaveNoPrefixOfTheirOwn) {
  for (const auto& [kind, tokenizer] : all_kinds()) {
    if (kind != "llama2_pieces" && kind != "mistral") continue;
    const std::string text = "<|im_start|>the and<|im_end|> of";
    const std::vector<int32_t> whole = tokenizer.encode(text);
    for (const size_t cut : {12u, 15u, 19u, 29u}) {  // where no token of the whole is cut
      Before before = Before::Nothing;
      std::vector<int32_t> ids = tokenizer.encode_next(text.substr(0, cut), before);
      for (const int32_t id : tokenizer.encode_next(text.substr(cut), before)) ids.push_back(id);
      EXPECT_EQ(ids, whole) << kind << " " << cut;
    }
  }
}

TEST(TokenizerKinds, KnowWhatTheirPostProcessorPutsBeforeATextOfSeveralTokensToo) {
  const auto all = all_kinds();
  const std::map<std::string, Tokenizer> kinds(all.begin(), all.end());
  EXPECT_EQ(kinds.at("glm").prefix(), (std::vector<int32_t>{1, 0}));
  EXPECT_FALSE(kinds.at("glm").adds_bos());
  EXPECT_EQ(kinds.at("llama2").prefix(), (std::vector<int32_t>{1}));
  EXPECT_TRUE(kinds.at("llama2").adds_bos());
  EXPECT_TRUE(kinds.at("gpt2").prefix().empty());
}

// Texts without a seam, and of seams alone: a quadratic loop would take hours.
TEST(TokenizerKinds, EncodeLongTextsInBoundedTime) {
  for (const auto& [kind, tokenizer] : all_kinds()) {
    for (const char* const part : {"a", " ", "the of ", "\u65e5", "\u0301", "\n", "1", "<|im_", "\t ", "A\u0301"}) {
      std::string text;
      while (text.size() < 100'000) text += part;
      EXPECT_FALSE(tokenizer.encode(text + "x").empty()) << kind;
    }
  }
}

}  // namespace
}  // namespace snug

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) snug::fixtures() = argv[1];
  return RUN_ALL_TESTS();
}
