// docs/scaling.md: every row says what its plan says. A change that means to alter them rewrites them (run with
// --gtest_also_run_disabled_tests --gtest_filter=*Rewrite*), and the text around them is read again.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <thread>

#include "base/file.h"
#include "doc_tables.h"

namespace snug {
namespace {

std::filesystem::path document() { return std::filesystem::path(SNUG_DOCS) / "scaling.md"; }

struct Row {
  size_t line = 0;  // of the page
  std::string command, options;
  int table = 0;
  nlohmann::json plan{};
};

std::vector<Row> rows_of(const std::vector<std::string>& lines) {
  const std::string command = "    snug plan ";
  std::vector<Row> rows;
  std::string base;
  int table = 0;
  for (size_t i = 0; i < lines.size(); i++) {
    if (lines[i].starts_with(command)) base = lines[i].substr(command.size());
    if (lines[i].starts_with("|---")) table++;
    if (!lines[i].starts_with("| `")) continue;
    const std::string cell = cells_of(lines[i])[0];
    rows.push_back({i, base, cell.substr(1, cell.size() - 2), table});
  }
  return rows;
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> part{};
  while (const size_t count = std::fread(part.data(), 1, part.size(), pipe.get())) text.append(part.data(), count);
  return text;
}

// Two at a time.
void plan(std::vector<Row>& rows) {
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t i = next++; i < rows.size(); i = next++)
      rows[i].plan = nlohmann::json::parse(
          output_of(fmt::format("{} {} 2>/dev/null", SNUG_BINARY,
                                fmt::join(plan_words(rows[i].command + " " + rows[i].options), " "))),
          nullptr, false);
  };
  std::jthread other(work);
  work();
}

// "1,062,513"
std::string grouped(double number) {
  std::string digits = fmt::format("{:.0f}", number);
  for (size_t i = digits.size(); i > 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

double rate_of(const Row& row) {
  return row.plan["tokens_per_step"].get<double>() / row.plan["step_seconds"].get<double>();
}
int ranks_of(const Row& row) { return row.plan["arrangement"]["ranks"]; }

// Of rows of a table the rate is compared with the first's.
std::string text_of(const Row& row, const Row& first) {
  const auto& [plan, rate] = std::pair(row.plan, rate_of(row));
  const double of_first = rate / ranks_of(row) / (rate_of(first) / ranks_of(first));
  const auto& time = plan["step_time"];
  const double links = time.contains("links") ? time["links"]["busy_seconds"].get<double>() : 0;
  std::string words = plan["arrangement"]["words"];
  if (const size_t at = words.find(" ranks, "); at != words.npos) words.erase(0, at + 8);
  return fmt::format("| `{}` | {} | {} | {:.0f} % | {:.2f} | {:.2f} | {} | {} | {} | {} |", row.options, grouped(rate),
                     grouped(rate / ranks_of(row)), 100 * of_first, plan["step_seconds"].get<double>(), links,
                     time["bound_by"].get<std::string>(), gib(plan["device_bytes"]), gib(plan["host_bytes"]), words);
}

void check_rows(std::string_view model, size_t count) {
  const std::vector<std::string> lines = lines_of(read_text(document(), 1 << 20));
  std::vector<Row> rows = rows_of(lines);
  std::erase_if(rows, [&](const Row& row) { return row.command.find(model) == row.command.npos; });
  EXPECT_EQ(rows.size(), count);
  plan(rows);
  const Row* first = nullptr;
  for (const Row& row : rows) {
    ASSERT_TRUE(row.plan.is_object() && row.plan["fits"]) << lines[row.line];
    if (!first || first->table != row.table) first = &row;
    EXPECT_EQ(lines[row.line], text_of(row, *first));
  }
}

TEST(ScalingDocument, RowsOf8BAreWhatTheirPlansSay) { check_rows("llama-3-8b", 29); }

// By itself: it takes twice as long.
TEST(DISABLED_ScalingDocument, RowsOf70BAreWhatTheirPlansSay) { check_rows("llama-3-70b", 16); }

TEST(DISABLED_ScalingDocument, Rewrite) {
  std::vector<std::string> lines = lines_of(read_text(document(), 1 << 20));
  std::vector<Row> rows = rows_of(lines);
  plan(rows);
  const Row* first = nullptr;
  for (const Row& row : rows) {
    ASSERT_TRUE(row.plan.is_object()) << lines[row.line];
    if (!first || first->table != row.table) first = &row;
    lines[row.line] = text_of(row, *first);
  }
  std::ofstream(document()) << fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace
}  // namespace snug
