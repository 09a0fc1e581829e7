#include "data/null_fields.h"

#include <algorithm>

#include "base/option_name.h"

namespace snug {
namespace {

constexpr int64_t kNamed = 5;

}  // namespace

void refuse_null(const JsonObject& object, std::string_view key) {
  try {
    object.fail(key, "a value: what is null, as an empty cell of a table is, says nothing; " +
                         option_name("empty_records") + " skip leaves such records out");
  } catch (const UserError& error) {
    throw NullFieldError(error.what());
  }
}

bool is_all_null(const Json& object) {
  return object.is_object() && std::ranges::all_of(object, [](const Json& value) { return value.is_null(); });
}

void NullCounter::add(const std::string& place, bool all_null) {
  all_null_ = all_null_ && all_null;
  const std::string begin = file_.string() + ", ";
  if (++count_ <= kNamed) named_.push_back(place.starts_with(begin) ? place.substr(begin.size()) : place);
}

void NullCounter::refuse(const std::string& first) const {
  std::string text = first;
  if (count_ > 1) text += fmt::format("; {} records of the file have such fields: {}", count_, places());
  if (all_null_) text += count_ > 1 ? "; none of these has any value" : "; it has no value at all";
  throw NullFieldError(text);
}

std::string NullCounter::line(int64_t records) const {
  return fmt::format("{}: {} of {} records {} left out, as a field that {} is null or an empty cell: {}",
                     file_.string(), count_, records, count_ == 1 ? "is" : "are",
                     count_ == 1 ? "it needs" : "they need", places());
}

// Returns "line 3, line 4 and 7 more".
std::string NullCounter::places() const {
  return fmt::format("{}{}", fmt::join(named_, ", "),
                     count_ > kNamed ? fmt::format(" and {} more", count_ - kNamed) : "");
}

}  // namespace snug
