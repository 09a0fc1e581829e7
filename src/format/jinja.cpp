#include "format/jinja.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "format/jinja_eval.h"
#include "format/jinja_parser.h"

namespace snug {
namespace {

std::tm parsed_date(std::string_view date) {
  int year = 0, month = 0, day = 0;
  const auto number = [&](size_t at, size_t digits, int& value) {
    const char* const end = date.data() + at + digits;
    const auto [stop, error] = std::from_chars(date.data() + at, end, value);
    return error == std::errc() && stop == end;
  };
  const bool read = date.size() == 10 && date[4] == '-' && date[7] == '-' && number(0, 4, year) &&
                    number(5, 2, month) && number(8, 2, day) && year >= 1900 && month >= 1 && month <= 12 && day >= 1 &&
                    day <= 31;
  if (!read) user_error("date: found '{}', expected one like 2024-07-26", date);
  std::tm out{};
  out.tm_year = year - 1900;
  out.tm_mon = month - 1;
  out.tm_mday = day;
  // Computes days of the week and the year, by the calendar and without time zones.
  constexpr int kDaysBefore[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  out.tm_yday = kDaysBefore[out.tm_mon] + day - 1 + (leap && month > 2 ? 1 : 0);
  const int before = year - 1;
  out.tm_wday = (before * 365 + before / 4 - before / 100 + before / 400 + out.tm_yday + 1) % 7;
  return out;
}

// Returns the function of a global name that no variable has.
jinja::Value global(std::string_view name) {
  const jinja::Builtin* const builtin = jinja::find_global(name);
  if (!builtin) return {};
  auto* const rep = new jinja::FunctionRep;
  rep->builtin = builtin;
  return {jinja::Kind::Function, rep};
}

}  // namespace

JinjaTemplate JinjaTemplate::parse(std::string_view text, std::string source) {
  JinjaTemplate out;
  out.program_ = jinja::parse_program(text, source);
  out.source_ = std::move(source);
  return out;
}

jinja::Text JinjaTemplate::render(const Variables& variables, const JinjaLimits& limits, std::string_view date) const {
  const std::tm now = parsed_date(date);
  jinja::Budget budget{.steps = limits.steps, .bytes = limits.memory};
  std::vector<jinja::Value> context;
  for (const std::string& name : program_->context_names) {
    const auto found = std::find_if(variables.begin(), variables.end(), [&](const auto& v) { return v.first == name; });
    context.push_back(found != variables.end() ? found->second : global(name));
  }
  jinja::Evaluator evaluator(*program_, std::move(context), now, budget);
  try {
    return evaluator.run();
  } catch (const jinja::Exhausted& failure) {
    throw JinjaLimitError(fmt::format("{}, line {}: {}", source_, evaluator.line(), failure.what()));
  } catch (const jinja::Failure& failure) {
    user_error("{}, line {}: {}", source_, evaluator.line(), failure.what());
  }
}

std::span<const std::string> JinjaTemplate::names() const { return program_->context_names; }

}  // namespace snug
