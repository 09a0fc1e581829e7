#include "data/null_fields.h"

#include "base/parallel.h"

namespace snug {
namespace {

constexpr size_t kNamed = 5;

}  // namespace

void refuse_null(const JsonObject& object, std::string_view key) {
  try {
    object.fail(key, "a value: what is null, as an empty cell of a table is, says nothing; leave such records out");
  } catch (const UserError& error) {
    throw NullFieldError(error.what());
  }
}

void NullCounter::count(std::span<const Record> records) {
  std::vector<SampleMaker::Nulls> nulls(records.size());
  parallel_for(std::ssize(records), [&](int64_t index) {
    const auto i = static_cast<size_t>(index);
    nulls[i] = maker_.nulls_of(records[i]);
  });
  for (size_t i = 0; i < records.size(); i++) {
    if (nulls[i] == SampleMaker::Nulls::None) continue;
    all_empty_ = all_empty_ && nulls[i] == SampleMaker::Nulls::All;
    if (++count_ <= kNamed) named_.push_back(place_in_file(records[i].place));
  }
}

void NullCounter::refuse(const std::string& first) const {
  std::string text = first;
  if (count_ > 1)
    text += fmt::format("; {} records of the file have such fields: {}{}", count_, fmt::join(named_, ", "),
                        count_ > kNamed ? fmt::format(" and {} more", count_ - kNamed) : "");
  if (all_empty_ && file_.extension() == ".csv")
    text += fmt::format("; {} nothing but empty cells: grep -Ev '^(,|\"\")+[[:space:]]*$' {} > filled.csv",
                        count_ > 1 ? "these have" : "it has", file_.string());
  throw NullFieldError(text);
}

// Returns "line 12" of "train.csv, line 12".
std::string NullCounter::place_in_file(const std::string& place) const {
  const std::string begin = file_.string() + ", ";
  return place.starts_with(begin) ? place.substr(begin.size()) : place;
}

}  // namespace snug
