#include "report/http_request.h"

#include <algorithm>
#include <utility>

namespace snug {
namespace {

// Returns whether a text is a token: the name of a method or a header.
bool is_token(std::string_view text) {
  static constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOthers.find(c) != kOthers.npos;
  });
}

// Returns whether all characters can be seen.
bool is_visible(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

bool is_host(std::string_view name) {
  constexpr std::string_view kHost = "host";
  return std::ranges::equal(name, kHost, [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; });
}

// Takes what stands before the mark, and the mark, off the text; all of it where there is none.
std::string_view take_until(std::string_view& text, std::string_view mark) {
  const size_t at = std::min(text.find(mark), text.size());
  const std::string_view before = text.substr(0, at);
  text.remove_prefix(std::min(at + mark.size(), text.size()));
  return before;
}

// Reads "GET /path?query HTTP/1.1". Returns the status.
int read_request_line(std::string_view line, RequestHead& head) {
  head.method = take_until(line, " ");
  std::string_view target = take_until(line, " ");
  if (!is_token(head.method) || !is_visible(target) || !line.starts_with("HTTP/")) return 400;
  if (line != "HTTP/1.1" && line != "HTTP/1.0") return 505;
  head.path = take_until(target, "?");
  return 200;
}

}  // namespace

RequestHead parse_request_head(std::string_view bytes) {
  const size_t end = bytes.substr(0, kMaxRequestHead).find("\r\n\r\n");
  if (end == bytes.npos) return {.status = bytes.size() < kMaxRequestHead ? 0 : 431};
  std::string_view lines = bytes.substr(0, end);
  RequestHead head;
  if (const int status = read_request_line(take_until(lines, "\r\n"), head); status != 200) return {.status = status};
  while (!lines.empty()) {
    std::string_view value = take_until(lines, "\r\n");
    if (value.find(':') == value.npos) return {.status = 400};
    const std::string_view name = take_until(value, ":");
    if (!is_token(name) || value.find_first_of(std::string_view("\r\n\0", 3)) != value.npos) return {.status = 400};
    if (!is_host(name)) continue;
    if (!head.host.empty() || !is_visible(trimmed(value))) return {.status = 400};
    head.host = trimmed(value);
  }
  head.status = 200;
  return head;
}

}  // namespace snug
