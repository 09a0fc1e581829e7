// Records as named fields: one visitor a record serves hashing, comparing, printing and files.
//
// A visitor is a function template beside its record, which binds all of the record's members, so that one that is
// added does not compile until it is bound; tests/fingerprint_test.cpp counts that each is visited or decides nothing:
//   template <RecordOf<Numerics> R, class Visit>
//   void visit_fields(R& record, Visit&& visit) {
//     auto& [compute, seed] = record;
//     visit("compute", compute);
//     visit("seed", seed);
//   }
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace snug {

template <class R, class Record>
concept RecordOf = std::same_as<std::remove_const_t<R>, Record>;

// Holds one thing that decides a run's results, as text.
struct Field {
  std::string group, name;                        // "model", "rope_theta"
  std::string value;                              // "" for nothing
  std::string default_value = {};                 // its default, which never changes: a field that is not given has it
  std::map<std::string, std::string> words = {};  // what people call its values, where files spell them otherwise
  bool is_default() const { return value == default_value; }
};
using Fields = std::vector<Field>;

// Holds for records that have a visitor.
template <class T>
concept Visited = requires(T& record) {
  visit_fields(record, [](std::string_view, auto&) {});
};

// Returns people's words for the values of an enumeration that files spell otherwise: "0" is "fp32".
template <class T>
std::map<std::string, std::string> field_words(const T& value) {
  if constexpr (requires { words_of(value); })
    return words_of(value);
  else
    return {};
}

inline std::string field_text(bool value) { return value ? "true" : "false"; }
inline std::string field_text(const std::string& value) { return value; }
template <class T>
std::string field_text(const T& value);
template <class T>
std::string field_text(const std::vector<T>& values);

template <class T>
std::string field_text(const std::optional<T>& value) {
  return value ? field_text(*value) : "";
}

// Returns the items as text, with runs of equal items counted: "4096 x3, 0".
template <class T>
std::string field_text(const std::vector<T>& values) {
  std::string text;
  for (size_t i = 0; i < values.size();) {
    size_t end = i + 1;
    while (end < values.size() && values[end] == values[i]) end++;
    text += text.empty() ? "" : ", ";
    text += field_text(values[i]);
    if (end - i > 1) text += fmt::format(" x{}", end - i);
    i = end;
  }
  return text;
}

// Returns a number, an enumerator by its name() if it has one, or a record by its fields: "factor 8, low_freq_factor
// 1".
template <class T>
std::string field_text(const T& value) {
  if constexpr (Visited<const T>) {
    std::string text;
    visit_fields(value, [&](std::string_view name, const auto& field) {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, field_text(field));
    });
    return text;
  } else if constexpr (requires { std::string(name(value)); }) {
    return std::string(name(value));
  } else if constexpr (std::is_enum_v<T>) {
    return fmt::format("{}", static_cast<int64_t>(value));
  } else {
    return fmt::format("{}", value);
  }
}

// Visits the fields of a record; a field that is a record itself is replaced by its fields: "rope.theta".
template <class Record, class Visit>
void visit_leaves(Record& record, Visit&& visit, const std::string& prefix = "") {
  visit_fields(record, [&](std::string_view name, auto& field) {
    const std::string path = prefix + std::string(name);
    if constexpr (Visited<decltype(field)>)
      visit_leaves(field, visit, path + ".");
    else
      visit(path, field);
  });
}

// Adds the leaves of a record to the fields of a group; their defaults are those of `defaults`.
template <class Record>
void add_fields(Fields& fields, std::string_view group, const Record& record, const Record& defaults = {}) {
  const size_t first = fields.size();
  visit_leaves(record, [&](const std::string& name, const auto& field) {
    fields.push_back({std::string(group), name, field_text(field), {}, field_words(field)});
  });
  size_t next = first;
  visit_leaves(defaults,
               [&](const std::string&, const auto& field) { fields[next++].default_value = field_text(field); });
}

// Returns a hash of the fields of some groups, or of all if none is named. Fields at their defaults are left out, so
// that a new field does not change hashes made before.
uint64_t hash_of_fields(const Fields& fields, const std::vector<std::string_view>& groups = {});

// Returns in words which fields of some groups differ: "rope_theta: found 500000, expected 10000". `expected` may lack
// those at their defaults; the words of values are those of `found`.
std::vector<std::string> differences(const Fields& found, const Fields& expected,
                                     const std::vector<std::string_view>& groups);

}  // namespace snug
