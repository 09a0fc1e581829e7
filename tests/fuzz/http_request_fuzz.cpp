// The head of a request: a status that docs know, and a method, path and host without a character that could end a
// line.
#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "report/page_server.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace snug;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const RequestHead head = parse_request_head(bytes);
  for (const std::string* text : {&head.method, &head.path, &head.host})
    check(std::ranges::all_of(*text, [](char c) { return c > ' ' && c < 0x7f; }), "a character that is none");
  check((head.status == 200) == !head.method.empty(), "status {} with method '{}'", head.status, head.method);
  if (head.status == 0) check(size < kMaxRequestHead, "more is wanted than {} bytes", size);
  if (head.status == 200) check(parse_request_head(std::string(bytes) + "x") == head, "what follows is read");
  const std::string answered = answer(head, 80, [] { return ServedPage{"page", false}; });
  check(head.status == 200 || !answered.ends_with("page"), "a page for what is no request");
  return 0;
}
