// Pages of options say what options do; docs/options.md is one of them. A change that means to alter it rewrites it
// (run with --gtest_also_run_disabled_tests --gtest_filter=*Rewrite*).
#include "cli/option_pages.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "cli_fixture.h"

namespace snug {
namespace {

const fs::path kPage = fs::path(SNUG_DOCS) / "options.md";

// Where an option has a value though nothing is given, its line ends with a text that gives this value.
TEST(OptionPages, DefaultsThatAreSaidAreThoseThatHold) {
  for (const OptionSpec& spec : option_specs()) {
    const std::string holds = spec.get(JobConfig());
    if (holds.empty() || spec.type.kind == ValueKind::List) continue;
    JobConfig options;
    try {
      spec.set(options, spec.default_text());
      EXPECT_EQ(spec.get(options), holds) << spec.key;
    } catch (const std::exception& error) {
      ADD_FAILURE() << spec.key << ": " << error.what();
    }
  }
}

TEST(OptionPages, MeaningsEndBeforeTheDefault) {
  for (const OptionSpec& spec : option_specs()) {
    EXPECT_FALSE(spec.meaning().empty()) << spec.key;
    EXPECT_FALSE(spec.meaning().ends_with(' ')) << spec.key;
    EXPECT_FALSE(spec.group.empty()) << spec.key;
  }
  EXPECT_EQ(find_option("beta1", "").meaning(), "of the first moment; of lion, of what gives the sign");
  EXPECT_EQ(find_option("beta1", "").default_text(), "0.9");
  EXPECT_EQ(find_option("optimizer", "").default_text(), "adamw");
}

TEST(OptionPages, ASchemaHasEveryKeyAndItsBounds) {
  const auto schema = nlohmann::json::parse(job_schema());
  EXPECT_EQ(schema["properties"].size(), option_specs().size() + 1);
  for (const OptionSpec& spec : option_specs()) EXPECT_TRUE(schema["properties"].contains(spec.key)) << spec.key;
  EXPECT_EQ(schema["properties"]["beta1"]["type"], "number");
  EXPECT_EQ(schema["properties"]["beta1"]["minimum"], 0);
  EXPECT_EQ(schema["properties"]["zero"]["enum"], nlohmann::json({"auto", "0", 0, "1", 1, "2", 2, "3", 3}));
  EXPECT_EQ(schema["properties"]["shuffle"]["type"], "boolean");
  const auto pattern_of = [&](const char* key) { return schema["properties"][key]["pattern"].get<std::string>(); };
  for (const char* text : {"24GiB", "80GB", "512MiB", "1.5 TiB", "1000"})
    EXPECT_THAT(text, testing::ContainsRegex(pattern_of("device_memory")));
  EXPECT_THAT("much", testing::Not(testing::ContainsRegex(pattern_of("device_memory"))));
  for (const char* text : {"30min", "epoch", "0"}) EXPECT_THAT(text, testing::ContainsRegex(pattern_of("save_every")));
}

TEST(OptionPages, TheDocumentIsWhatTheProgramPrints) { EXPECT_EQ(text_of(kPage), options_page()); }

// Whatever the table says, man finds no command of its own in it.
TEST(OptionPages, AManualPageHasEveryOptionAndCommand) {
  const std::string page = man_page("1.2-3", commands());
  EXPECT_THAT(page, testing::StartsWith(".TH SNUG 1 \"\" \"snug 1.2\\-3\"\n"));
  std::istringstream lines(page);
  const std::set<std::string> known{".TH", ".SH", ".B", ".I", ".TP", ".P"};
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with('.') || line.starts_with('\'')) {
      EXPECT_TRUE(known.contains(line.substr(0, line.find(' ')))) << line;
    }
  for (const Command& command : commands()) EXPECT_THAT(page, testing::HasSubstr("\n.B " + command.name + "\n"));
  EXPECT_THAT(page, testing::HasSubstr("\n.TP\n.B \\-\\-learning\\-rate \\fIFLOAT\\fR\n"));
  size_t options = 0;
  for (size_t at = 0; (at = page.find(".B \\-\\-", at)) != page.npos; at++) options++;
  EXPECT_EQ(options, option_specs().size() + 1);  // and --help
}

TEST(OptionPages, DISABLED_Rewrite) { std::ofstream(kPage) << options_page(); }

struct Completion : Cli {
  // What bash would offer behind these words.
  std::string offered(const std::string& words) {
    run({"schema", "--as", "bash"});
    put(at("script"), run({"schema", "--as", "bash"}).out + "\nCOMP_WORDS=(" + words +
                          ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_snug\necho \"${COMPREPLY[@]}\"\n");
    EXPECT_EQ(std::system(fmt::format("bash {} > {} 2>&1", at("script").string(), at("said").string()).c_str()), 0);
    return text_of(at("said"));
  }
};

TEST_F(Completion, CommandsFlagsAndWordsAreOffered) {
  EXPECT_EQ(offered("snug tr"), "train translate\n");
  EXPECT_EQ(offered("snug train --optim"), "--optimizer\n");
  EXPECT_EQ(offered("snug train --optimizer ''"), "adamw lion schedule_free_adamw muon adafactor apollo\n");
  EXPECT_EQ(offered("snug doctor --optim"), "\n");
}

}  // namespace
}  // namespace snug
