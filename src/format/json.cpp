#include "format/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"

namespace snug {
namespace {

constexpr int kMaxNesting = 64;
constexpr size_t kMessageBytes = 60, kReasonBytes = 100;

// Returns "line 3, column 14" of a byte in a text, "column 14" if the text is a single line; columns count bytes.
std::string position(std::string_view text, size_t byte, int64_t first_line) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = first_line + std::count(before.begin(), before.end(), '\n');
  const size_t start = before.rfind('\n');
  const size_t column = before.size() - (start == std::string_view::npos ? 0 : start + 1);
  if (text.find('\n') == std::string_view::npos) return fmt::format("column {}", column);
  return fmt::format("line {}, column {}", line, column);
}

}  // namespace

Json parse_json(std::string_view text, std::string_view source, int64_t first_line) {
  std::vector<std::set<std::string, std::less<>>> keys;  // of the open objects
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxNesting) user_error("{}: found more than {} levels of nesting", source, kMaxNesting);
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get_ref<const std::string&>()).second) {
      user_error("{}: found key {} twice in one object, expected it once", source, shortened(parsed));
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::parse_error& error) {
    std::string reason = error.what();  // "[json...] parse error at line 1, column 2: <the part that is kept>"
    reason.erase(0, reason.find(": ") + 2);
    // The library quotes what it read last, however long that is.
    if (reason.size() > 3 * kReasonBytes) reason.replace(2 * kReasonBytes, reason.size() - 3 * kReasonBytes, " ... ");
    const std::string_view near = text.substr(error.byte > 9 ? error.byte - 9 : 0, 18);
    const bool no_number = near.find("NaN") != near.npos || near.find("Infinity") != near.npos;
    user_error("{}, {}: expected JSON: {}{}", source, position(text, error.byte, first_line), reason,
               no_number ? "; NaN and Infinity are no JSON, which has null for what is not there" : "");
  } catch (const Json::out_of_range& error) {
    user_error("{}: found a number that no 64-bit type holds: {}", source, error.what());
  }
}

JsonObject::JsonObject(const Json& value, std::string source, std::string place)
    : value_(&value), source_(std::move(source)), place_(std::move(place)) {
  if (value.is_object()) return;
  user_error("{}{}: found {}, expected an object", source_, place_.empty() ? "" : ", key '" + place_ + "'",
             shortened(value));
}

bool JsonObject::has(std::string_view key) const {
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

const Json& JsonObject::at(std::string_view key) const {
  const auto found = value_->find(key);
  if (found == value_->end()) user_error("{}: key '{}' is missing", source_, path_to(key));
  return *found;
}

int64_t JsonObject::integer(std::string_view key, int64_t low, int64_t high, std::optional<int64_t> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const Json& found = at(key);
  // An unsigned number above the signed range reads as negative, which `low` alone might let pass.
  const bool fits = found.is_number_integer() && !(found.is_number_unsigned() && found.get<uint64_t>() > INT64_MAX);
  if (!fits || found.get<int64_t>() < low || found.get<int64_t>() > high) {
    fail(key, fmt::format("an integer from {} to {}", low, high));
  }
  return found.get<int64_t>();
}

double JsonObject::number(std::string_view key, double low, double high, std::optional<double> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const Json& found = at(key);
  if (!found.is_number() || !(found.get<double>() >= low && found.get<double>() <= high)) {
    fail(key, fmt::format("a number from {} to {}", low, high));
  }
  return found.get<double>();
}

bool JsonObject::boolean(std::string_view key, std::optional<bool> fallback) const {
  if (!has(key) && fallback) return *fallback;
  const Json& found = at(key);
  if (!found.is_boolean()) fail(key, "true or false");
  return found.get<bool>();
}

std::string JsonObject::string(std::string_view key, std::optional<std::string> fallback) const {
  if (!has(key) && fallback) return *std::move(fallback);
  const Json& found = at(key);
  if (!found.is_string()) fail(key, "a string");
  return found.get<std::string>();
}

JsonObject JsonObject::object(std::string_view key) const { return JsonObject(at(key), source_, path_to(key)); }

std::string JsonObject::where(std::string_view key) const { return fmt::format("{}, key '{}'", source_, path_to(key)); }

void JsonObject::fail(std::string_view key, std::string_view expected) const {
  const auto found = value_->find(key);
  user_error("{}: found {}, expected {}", where(key), found == value_->end() ? "nothing" : shortened(*found), expected);
}

std::string JsonObject::path_to(std::string_view key) const {
  return place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key);
}

std::string shortened(const Json& value) {
  if (value.is_object() && !value.empty()) return fmt::format("an object of {} keys", value.size());
  if (value.is_array() && value.size() > 8) return fmt::format("a list of {} values", value.size());
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMessageBytes) text = text.substr(0, kMessageBytes) + "...";
  return text;
}

}  // namespace snug
