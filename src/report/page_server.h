// Serves a page to browsers of this machine, and to nobody else.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "report/http_request.h"

namespace snug {

struct ServedPage {
  std::string html;
  bool goes_on = false;  // the browser is to load it again after some seconds
};

// Returns the bytes to answer a request by. "/" is the page, for GET alone; nothing else is there. A request for
// another host than 127.0.0.1 or localhost with this port is refused, which a page of another site would make by a name
// of its own for this address. Where `page` throws UserError, its text is the answer, to be asked for again.
std::string answer(const RequestHead& head, uint16_t port, const std::function<ServedPage()>& page);

// Listens on 127.0.0.1. It reads heads of kMaxRequestHead bytes at most and never a body, holds sixteen connections,
// each for ten seconds, and is used by one thread.
class PageServer {
 public:
  // Port 0: one that is free. UserError that names `port` where it cannot be had.
  explicit PageServer(uint16_t port);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  uint16_t port() const { return port_; }
  // Asks `page` for each request, and several times a second whether it is to end.
  void serve(const std::function<ServedPage()>& page, const std::function<bool()>& ends);

 private:
  int socket_ = -1;
  uint16_t port_ = 0;
};

}  // namespace snug
