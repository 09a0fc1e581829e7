// The head of an HTTP request (RFC 9112), as a browser sends it to the loopback: foreign bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace snug {

inline constexpr size_t kMaxRequestHead = 8192;  // bytes, with the empty line behind it

struct RequestHead {
  // 0 where the head does not end yet; 200 where it was read; else what is to be answered: 400 for what is no head, 431
  // for one that is too long, 505 for another version than 1.0 and 1.1.
  int status = 0;
  std::string method{}, path{};  // the path without what follows a '?', as it was sent
  std::string host{};            // of the header of that name; empty without one

  bool operator==(const RequestHead&) const = default;
};

// Reads a head from all bytes that have come. What follows it is left alone.
RequestHead parse_request_head(std::string_view bytes);

}  // namespace snug
