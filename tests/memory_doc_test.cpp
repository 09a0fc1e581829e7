// The tables of docs/memory.md say what the program says. A change that means to alter them rewrites them (run with
// --gtest_also_run_disabled_tests --gtest_filter=*Rewrite*), and the text around them is read again.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/file.h"
#include "model/model_config.h"
#include "no_scratch.h"
#include "plan/search/fit.h"

namespace snug {
namespace {

struct Table {
  std::string model;  // in tests/fixtures/configs
  bool full;
  std::vector<int> ranks;
};
const std::vector<Table>& tables() {
  static const std::vector<Table> all{{"llama-3-8b", true, {1, 2, 8, 64}},
                                      {"llama-3-70b", true, {1, 8, 64}},
                                      {"llama-3-8b", false, {1, 2, 8}},
                                      {"llama-3-70b", false, {1, 2, 8}}};
  return all;
}

constexpr std::array<std::string_view, 6> kClasses{"weights",     "states", "gradients",
                                                   "activations", "logits", "gathers"};

std::string gib(uint64_t bytes) { return fmt::format("{:.2f}", static_cast<double>(bytes) / 0x1p30); }

std::string row(const JobSpec& spec, int stage) {
  const Compiled compiled = compile(spec, NoScratch());
  const Forecast f = forecast(compiled);
  std::string text = fmt::format("| {} | {} |", spec.cut.ranks, stage);
  for (const std::string_view name : kClasses) {
    const auto found = std::ranges::find(f.classes, name, &Forecast::Class::name);
    text += fmt::format(" {} |", gib(found == f.classes.end() ? 0 : found->bytes));
  }
  return text +
         fmt::format(" {} | {} |\n", gib(f.arena_bytes[index(Space::Device)]), f.peak_sites[index(Space::Device)]);
}

std::string rows(const Table& table) {
  JobSpec spec;
  spec.step_only = true;
  spec.model = read_model_config(std::filesystem::path(SNUG_FIXTURES) / "configs" / table.model).spec;
  spec.table =
      table.full
          ? full_parameters(spec.model, true)
          : lora_parameters(spec.model, {.rank = 16, .alpha = 32, .target_modules = linear_names(spec.model)}, true);
  std::string text;
  for (const int ranks : table.ranks)
    for (const int stage : ranks == 1 ? std::vector{0} : std::vector{0, 1, 2, 3}) {
      spec.cut.ranks = ranks;
      spec.strategy = plain_strategy(spec.table, Recompute::Block);
      set_zero_stage(spec.strategy, stage);
      text += row(spec, stage);
    }
  return text;
}

std::filesystem::path document() { return std::filesystem::path(SNUG_DOCS) / "memory.md"; }

std::string marker(const Table& table) {
  return fmt::format("<!-- {} {} -->\n", table.model, table.full ? "full" : "lora");
}

// Where a table's rows stand in the text, behind their marker and two lines of heading.
std::pair<size_t, size_t> place(const std::string& text, const Table& table) {
  const size_t at = text.find(marker(table));
  EXPECT_NE(at, text.npos) << marker(table);
  size_t begin = at;
  for (int line = 0; line < 3; line++) begin = text.find('\n', begin) + 1;
  const size_t end = text.find("\n\n", begin - 1) + 1;  // none of them, or behind the last
  return {begin, end - begin};
}

TEST(MemoryDocument, TablesAreWhatThePlanSays) {
  const std::string text = read_text(document(), 1 << 20);
  for (const Table& table : tables()) {
    const auto [begin, count] = place(text, table);
    EXPECT_EQ(text.substr(begin, count), rows(table)) << marker(table);
  }
}

TEST(DISABLED_MemoryDocument, Rewrite) {
  std::string text = read_text(document(), 1 << 20);
  for (const Table& table : tables()) {
    const auto [begin, count] = place(text, table);
    text.replace(begin, count, rows(table));
  }
  std::ofstream(document()) << text;
}

}  // namespace
}  // namespace snug
