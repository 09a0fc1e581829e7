// The regular expressions by which tokenizers cut texts; their sets are compared with the library in
// tokenizer_kinds_test.
#include "format/split_regex.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "expect_error.h"
#include "format/json.h"
#include "format/word_scanner.h"

namespace snug {
namespace {

SplitRegex regex_from(std::string_view expression) {
  return SplitRegex(expression, [](const std::string& expected) { user_error("expected {}", expected); });
}

// The matches of a text, between bars.
std::string cut(std::string_view expression, std::string_view text) {
  const SplitRegex regex = regex_from(expression);
  SplitRegex::Scratch scratch;
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto match = regex.find(text, at, scratch);
    if (!match) return out + std::string(text.substr(at));
    out += std::string(text.substr(at, match->first - at)) + "|";
    out += std::string(text.substr(match->first, match->second - match->first)) + "|";
    at = match->second;
  }
  return out;
}

TEST(SplitRegex, PrefersAsABacktrackingEngineDoes) {
  EXPECT_EQ(cut("a|ab", "ab"), "|a|b");
  EXPECT_EQ(cut("a*b", "aab aa"), "|aab| aa");
  EXPECT_EQ(cut("(?:a|ab)(?:c|bcd)", "abcd"), "|abcd|");
  EXPECT_EQ(cut("a{2,3}", "aaaaa"), "|aaa||aa|");
  EXPECT_EQ(cut("a{2}", "aaaaa"), "|aa||aa|a");
  EXPECT_EQ(cut("[^x]+x", "abxcx"), "|abx||cx|");
  EXPECT_EQ(cut("(?:ab|a)*b", "ababb"), "|ababb|");
  EXPECT_EQ(cut(R"(\s+(?!\S)|\s+)", "a   b  "), "a|  || |b|  |");
  EXPECT_EQ(cut(R"(\s+$)", "a  b  "), "a  b|  |");
  EXPECT_EQ(cut(R"(.+$)", "ab\ncd"), "|ab|\n|cd|");
  EXPECT_EQ(cut(R"(a++ab|a)", "aab"), "|a||a|b");
  EXPECT_EQ(cut(R"(a?+ab|b)", "ab"), "a|b|");
  EXPECT_EQ(cut(R"((?i:'s|k)x)", "'Sx \u212ax '\u017fx"), "|'Sx| |\u212ax| |'\u017fx|");
  EXPECT_EQ(cut(R"([\p{Lu}\-\]]+)", "A-]b\u00c9"), "|A-]|b|\u00c9|");
  EXPECT_EQ(cut(R"(\P{L}|\p{^Ll})", "a1B"), "a|1||B|");
  EXPECT_EQ(cut(R"([\x{e9}\u4e00-\u9fff])", "\u00e9e\u65e5"), "|\u00e9|e|\u65e5|");
}

TEST(SplitRegex, RefusesWhatItDoesNotKnow) {
  for (const char* expression : {"",         "a*",        "a|",          "(?:a|b?)",
                                 "(a",       "a)",        "[a",          "[]",
                                 "[a[b]]",   "[a&&b]",    "\\w",         "\\b",
                                 "\\p{Han}", "\\p{L",     "a+?",         "a**",
                                 "(?<=a)b",  "(?:ab)++",  "a{3,1}",      "a{0}",
                                 "a{99999}", "a{2}+",     "*a",          "^a",
                                 "(?=ab)c",  "(?=a)*b",   "(?i:\u00e9)", "(?i:ss)",
                                 "(?i:st)",  "(?i:[^a])", "\\x{110000}", "\\ud800",
                                 "[b-a]",    "a\\",       "(?#a)",       "((((a{99}){99}){99}){99})"}) {
    EXPECT_TRUE(fails_with<UserError>([&] { regex_from(expression); }, "expected ")) << expression;
  }
  EXPECT_TRUE(fails_with<UserError>([&] { regex_from(std::string(200, '(')); }, "fewer groups"));
}

// The two ways of cutting by the patterns that have a scanner.
TEST(SplitRegex, CutsAsTheScannersDo) {
  std::ifstream file(std::string(SNUG_FIXTURES) + "/tokenizer/cases.jsonl");
  size_t compared = 0;
  SplitRegex::Scratch scratch;
  const WordPattern patterns[] = {WordPattern::Gpt2, WordPattern::Llama3, WordPattern::Qwen2};
  std::vector<SplitRegex> regexes;
  for (const WordPattern pattern : patterns) regexes.push_back(regex_from(regex_of(pattern)));
  for (std::string line; std::getline(file, line); ++compared) {
    const std::string text = Json::parse(line)["text"];
    for (size_t i = 0; i < regexes.size(); ++i) {
      for (size_t at = 0; at < text.size();) {
        const auto match = regexes[i].find(text, at, scratch);
        const size_t end = word_end(patterns[i], text, at);
        ASSERT_EQ(match, (std::optional{std::pair{at, end}})) << line;
        at = end;
      }
    }
  }
  EXPECT_GE(compared, 2000u);
}

TEST(SplitRegex, TakesTimeLinearInTheText) {
  const std::string many(300'000, ' ');
  std::string runs;
  for (int i = 0; i < 300; ++i) runs += std::string(999, ' ') + "x";
  for (const char* expression :
       {R"(\s+$)", R"(\s*[\r\n]+|\s+x)", R"(\s+\s+\s+\s+y|\s+z)", R"(\s{2,}(?!\s)\S\d)", R"( +\s* *$)"}) {
    cut(expression, many + "x");
    cut(expression, runs);
  }
  EXPECT_TRUE(fails_with<UserError>([] { cut(R"((?:(?:a+)+)+b)", std::string(64, 'a')); }, "takes more than"));
}

}  // namespace
}  // namespace snug
